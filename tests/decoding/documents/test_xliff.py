"""XLIFF in, XLIFF out: empty targets are filled in, and everything else is as it was, to the last byte."""

import re
from collections import Counter
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from pytest import mark, raises
from translations import TRANSLATIONS, backwards, same, written

from deepnmt.decoding.documents.xliff import read_xliff
from deepnmt.errors import InputError

NEW = 'state="needs-review-translation" state-qualifier="leveraged-mt"'


def old(unit, language=' target-language="de"', version="1.2"):
    return f'<?xml version="1.0"?>\n<xliff version="{version}"><file{language}><body>\n{unit}\n</body></file></xliff>\n'


def new(unit, language=' trgLang="de"'):
    return f'<xliff version="2.0" srcLang="en"{language}><file id="f"><unit id="u">{unit}</unit></file></xliff>'


def translated(document, translate=backwards):
    return written(read_xliff(document, "de"), translate)


def content(source, translate=backwards, make=old):
    """The translation of this source."""
    unit = "trans-unit" if make is old else "segment"
    result = translated(make(f"<{unit}><source>{source}</source></{unit}>"), translate)
    found = re.search(r"<target[^>]*>(.*)</target>", result, re.DOTALL)
    assert found and result.startswith(make(f"<{unit}><source>{source}</source>").partition("<source>")[0][:40])
    return found[1]


@mark.parametrize(
    ("source", "expected"),
    [
        ("Turn on", "ON TURN"),
        ("Turn <g id='1'>it on</g> now", "NOW <g id='1'>ON IT</g> TURN"),
        ("one <x id='1'/>two", "<x id='1'/>TWO ONE"),
        ("from <x id='1'/> to <x id='2'/> now", "<x id='2'/> NOW <x id='1'/> TO FROM"),
        ("one <bx id='1'/>two<ex id='1'/> three", "THREE <bx id='1'/>TWO<ex id='1'/> ONE"),
        (
            "<x id='START_B'/>a<x id='CLOSE_B'/> <x id='START_B_1'/>b<x id='CLOSE_B'/> c",
            "C <x id='START_B_1'/>B<x id='CLOSE_B'/> <x id='START_B'/>A<x id='CLOSE_B'/>",
        ),
        ("one <bx id='1'/>two three", "THREE <bx id='1'/>TWO ONE"),
        ("a <bpt id='1'>&lt;</bpt>b c<ept id='1'>/</ept>", "<bpt id='1'>&lt;</bpt>C B<ept id='1'>/</ept> A"),
        ("a <ph id='1'>%s and so</ph>b", "<ph id='1'>%s and so</ph>B A"),
        ("call <mrk mtype='protected'>Big Ben</mrk> now", "NOW <mrk mtype='protected'>Big Ben</mrk> CALL"),
        ("a &lt; b &amp; c", "C &amp; B &lt; A"),
        ("<![CDATA[a < b]]>", "B &lt; A"),
        ("one two\n\n  three four", "TWO ONE\n\n  FOUR THREE"),
        ("one <g id='1'>two\nthree</g> four", "FOUR <g id='1'>THREE TWO</g> ONE"),
        ("<g\n id='1'>one two</g>", "<g\n id='1'>TWO ONE</g>"),
        ("<g id='1'>a <bx id='2'/>b</g> c<ex id='2'/> d", "<g id='1'>A <bx id='2'/>B</g> C<ex id='2'/> D"),
        ("x <!-- no --> y", "<!-- no --> Y X"),
    ],
)
def test_inline_tags_follow_their_words(source, expected):
    assert content(source) == expected


@mark.parametrize(
    ("source", "expected"),
    [
        ("one <pc id='1'>two</pc> three", "THREE <pc id='1'>TWO</pc> ONE"),
        ("one <ph id='1'/>two", "<ph id='1'/>TWO ONE"),
        ("one <sc id='1'/>two<ec startRef='1'/> three", "THREE <sc id='1'/>TWO<ec startRef='1'/> ONE"),
        ("call <mrk id='m' translate='no'>Big Ben</mrk> now", "NOW <mrk id='m' translate='no'>Big Ben</mrk> CALL"),
    ],
)
def test_inline_tags_of_version_2(source, expected):
    assert content(source, make=new) == expected


@mark.parametrize(
    ("before", "target"),
    [
        ("<source>a b</source>", f"<target {NEW}>B A</target>"),
        ("\n  <source>a b</source>", f"\n  <target {NEW}>B A</target>"),
        ("<x:source>a b</x:source>", f"<x:target {NEW}>B A</x:target>"),
        ("<source>a b</source><target>x</target>", ""),
        ("<source/>", ""),
        ("<source> </source><target/>", ""),
        ("<source>a b</source><target>x</target><alt-trans><source>a b</source><target/></alt-trans>", ""),
        ("<!-- <source>a</source> --><?x <source>?>", ""),
        (
            "<source>A.</source><seg-source><mrk mtype='seg'>A b.</mrk> <mrk mtype='seg'>C d.</mrk></seg-source>",
            f"<target {NEW}><mrk mtype='seg'>B. A</mrk> <mrk mtype='seg'>D. C</mrk></target>",
        ),
    ],
)
def test_only_missing_targets_are_added(before, target):
    document = old(f"<trans-unit xmlns:x='x'>{before}<note/></trans-unit>")
    assert translated(document) == old(f"<trans-unit xmlns:x='x'>{before}{target}<note/></trans-unit>")
    for unit in (f'<trans-unit xmlns:x="x" translate="no">{before}</trans-unit>', f'<x xmlns:x="x">{before}</x>'):
        assert translated(old(unit)) == old(unit)
        assert translated(old(f'<group translate="no">{unit}</group>')) == old(f'<group translate="no">{unit}</group>')


@mark.parametrize(
    ("empty", "filled"),
    [
        ("<target/>", f"<target {NEW}>"),
        ("<target\n/>", f"<target {NEW}>"),
        (
            "<target state='new' xml:lang='de'> </target>",
            '<target state="needs-review-translation" xml:lang=\'de\' state-qualifier="leveraged-mt">',
        ),
    ],
)
def test_empty_targets_are_filled_in_and_keep_their_attributes(empty, filled):
    result = translated(old(f"<trans-unit><source>a b</source>{empty}</trans-unit>"))
    assert result == old(f"<trans-unit><source>a b</source>{filled}B A</target></trans-unit>")


@mark.parametrize(
    ("start", "rest", "filled"),
    [
        ("<segment>", "</source>", "</source><target>B A</target>"),
        ('<segment state="initial">', "</source><target></target>", "</source><target>B A</target>"),
    ],
)
def test_segments_of_version_2_have_a_state(start, rest, filled):
    result = translated(new(f"{start}<source>a b{rest}</segment>"))
    assert result == new(f'<segment state="translated"><source>a b{filled}</segment>')
    for unit in (
        '<segment state="final"><source>a</source><target>x</target></segment>',
        "<ignorable><source>a</source></ignorable>",
    ):
        assert translated(new(unit)) == new(unit)


def test_the_target_language_is_that_of_the_model():
    assert '<file target-language="de">' in translated(old("", language=""))
    assert '<xliff version="2.0" srcLang="en" trgLang="de">' in translated(new("", language=""))
    assert '"de-AT"' in translated(old("", language=' target-language="de-AT"'))
    with raises(InputError, match="line 2: the document is for 'fr', but the model translates into 'de'"):
        translated(old("", language=' target-language="fr"'))


@mark.parametrize(
    ("document", "message"),
    [
        ("", "line 1: not well-formed XML: no element found"),
        ("<xliff>\n<a></b></xliff>", "line 2: not well-formed XML: mismatched tag"),
        ("<xliff/>", "XLIFF of version '', not 1.x or 2.x"),
        ("<tmx/>", "not XLIFF: it begins with <tmx>"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><xliff/>', "line 1: a document type"),
        ('<?xml version="1.0" encoding="latin1"?><xliff/>', "line 1: the document is in latin1"),
    ],
)
def test_what_is_no_xliff_is_refused(document, message):
    with raises(InputError, match=message):
        read_xliff(document, "de")


texts = st.text(alphabet="ab &\n.,\t", max_size=12).map(lambda text: text.replace("&", "&amp;"))
empties = st.sampled_from(
    ["<x id='1'/>", "<bx id='7'/>", "<ex id='7'/>", "<ph id='2'>c.\nd</ph>", "<!-- c -->", "<g id='0'/>"]
)
contents = st.recursive(
    st.lists(st.one_of(texts, empties), max_size=4).map("".join),
    lambda inner: st.lists(st.one_of(texts, empties, inner.map("<g id='3'>{}</g>".format)), max_size=4).map("".join),
    max_leaves=6,
)


@given(sources=st.lists(contents, max_size=3), translate=st.sampled_from(TRANSLATIONS))
def test_every_tag_is_kept_and_the_rest_does_not_change(sources, translate):
    document = old("".join(f"<trans-unit>\r\n <source>{source}</source></trans-unit>\r\n" for source in sources))
    result = translated(document, translate)
    targets = re.findall(rf"\r\n <target {NEW}>(.*?)</target>", result, re.DOTALL)
    filled = [source for source in sources if source.strip()]
    assert re.sub(rf"\r\n <target {NEW}>.*?</target>", "", result, flags=re.DOTALL) == document
    assert len(targets) == len(filled)
    ElementTree.fromstring(result)
    for source, target in zip(filled, targets, strict=True):
        assert Counter(re.findall(r"<[^>]*>", source)) == Counter(re.findall(r"<[^>]*>", target))
        assert translate is not same or source == target
    if all(target.strip() for target in targets):
        assert translated(result, backwards) == result
