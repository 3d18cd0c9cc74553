"""HTML in, the same HTML out, with other words in it: every tag once, balanced, attributes untouched."""

import re
import time
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from pytest import mark, raises
from translations import TRANSLATIONS, backwards, hypothesis, same, written

from deepnmt.decoding.alignment import word_spans
from deepnmt.decoding.documents.html import _Tokens, read_html, read_page
from deepnmt.decoding.documents.passages import without_labels
from deepnmt.errors import InputError


def translated(document, translate, language="de"):
    return written(read_html(document, language), translate)


@mark.parametrize(
    ("document", "expected"),
    [
        ("<p>Turn on <b>the light</b> now.</p>", "<p>NOW. <b>LIGHT THE</b> ON TURN</p>"),
        ("<p>Turn on <b>the light</b>.</p>", "<p><b>LIGHT. THE</b> ON TURN</p>"),
        ('<a href="x" data-title="a b">One</a> two', 'TWO <a href="x" data-title="a b">ONE</a>'),
        ('<a href="x" title="a > b">One</a> two', 'TWO <a href="x" title="B &gt; A">ONE</a>'),
        ("an <img alt='it&#39;s red'> car", "<img alt='RED IT&#x27;S'> CAR AN"),
        ('<input PLACEHOLDER = "your name" value="a b"/>', '<input PLACEHOLDER = "NAME YOUR" value="a b"/>'),
        ("<p aria-label='One two. Three four.'>a b", "<p aria-label='TWO. ONE FOUR. THREE'>B A"),
        ("<i data-x=' title=\"a b\"' title=c>d e</i>", "<i data-x=' title=\"a b\"' title=c>E D</i>"),
        ("<meta name=description content='a b'>", "<meta name=description content='a b'>"),
        ("<meta content='a b' name='Description'>", "<meta content='B A' name='Description'>"),
        ("<meta name='keywords' content='a b' title='c d'>", "<meta name='keywords' content='a b' title='D C'>"),
        ("<link rel='stylesheet' title='a b'>", "<link rel='stylesheet' title='a b'>"),
        (
            "<img translate=no alt='a b'> <p class=notranslate title='a b'>c",
            "<img translate=no alt='a b'> <p class=notranslate title='a b'>c",
        ),
        ("<code title='a b'>c d</code> e", "E <code title='a b'>c d</code>"),
        ("<b title='\x030\x03 a b'>c d</b>", "<b title='\x030\x03 a b'>D C</b>"),
        ("<i>big <b>old</b></i> house", "HOUSE <i><b>OLD</b> BIG</i>"),
        ("One two.<br>Three four.", "TWO. ONE<br>FOUR. THREE"),
        ("a &amp; b &lt; c", "C &lt; B &amp; A"),
        ("1 < 2", "2 &lt; 1"),
        ("x <!-- no > no -->y z", "Z <!-- no > no -->Y X"),
        ("one <img src=a alt='>'>two", "<img src=a alt='>'>TWO ONE"),
        ("<input> one two <img> three", "<input> <img> THREE TWO ONE"),
        ("<i class=x></i> <img> a b.", "<i class=x></i> <img> B. A"),
        ("One two. <img> Three four <img>", "TWO. ONE <img> FOUR THREE <img>"),
        ("<b>one <img> two</b> three", "THREE <b><img> TWO ONE</b>"),
        ("<i translate=no></i> a b", "<i translate=no></i> B A"),
        ("go<script>if (a<b) {}</script>on", "GO<script>if (a<b) {}</script>ON"),
        ("run <Code>make it</CODE> now", "NOW <Code>make it</CODE> RUN"),
        ("run <code title='a > b'>make it</code> now", "NOW <code title='a > b'>make it</code> RUN"),
        ("<pre>let it be", "<pre>let it be"),
        ("<div>a b <pre>let it</div>c d", "<div>B A <pre>let it</div>D C"),
        ('call <span translate="no">Big Ben</span> now', 'NOW <span translate="no">Big Ben</span> CALL'),
        ('<p class="x notranslate">a <b>b</b></p>c d', '<p class="x notranslate">a <b>b</b></p>D C'),
        ("<b>a <i>b</b> c</i> d e", "<b>A <i>B</b> C</i> E D"),
        ("a <b>b c", "A <b>C B"),
        ("a</b> b c", "A</b> C B"),
        ("One. <b>Two. Three</b> four.", "ONE. <b>TWO. THREE</b> FOUR."),
        ("a <i>One. <b>Two. Three</b> four.</i> b", "A <i>ONE. <b>TWO. THREE</b> FOUR.</i> B"),
        ("Say: <i>one two. Three four.</i>", "SAY: <i>TWO. ONE FOUR. THREE</i>"),
        ("H<sub>2</sub>O is wet", "WET IS H<sub>2</sub>O"),
        ("a<sup>2</sup> <b>2</b>", "<b>2</b> A<sup>2</sup>"),
        ("<p>\n  Turn it\n  on.\n</p>", "<p>\n  ON. IT TURN\n</p>"),
        ("<precious>gem</precious> a", "A <precious>GEM</precious>"),
        ("a<b", "A&lt;B"),
        ("", ""),
    ],
)
def test_tags_follow_their_words(document, expected):
    assert translated(document, backwards) == expected


def test_the_stop_after_an_element_stays_outside_of_it():
    def german(text):
        return hypothesis(text, ["Schalte", "das", "Licht", "ein."], [0, 2, 3, 1])

    assert translated("Turn on <b>the light</b>.", german) == "Schalte <b>das Licht</b> ein."

    def at_the_end(text):
        return hypothesis(text, ["Ein", "ist", "das", "Licht."], [1, 0, 2, 3])

    assert translated("Turn on <b>the light</b>.", at_the_end) == "Ein ist <b>das Licht</b>."


@mark.parametrize("words", [["हिन्दी"], ["ภาษาที่"], ["C++"], ["10", "€"], ["10", "%"]])
def test_vowel_signs_and_symbols_at_the_end_of_an_element_stay_inside(words):
    def last(text):
        return hypothesis(text, ["x", *words], [0, *[1] * len(words)])

    assert translated("a <b>word</b>", last) == f"x <b>{' '.join(words)}</b>"


def test_many_copies_of_what_is_kept_take_no_time():
    def copied(text):
        words = text.split()
        return hypothesis(text, [*words[:-1], "b"], range(len(words)))

    started = time.monotonic()
    assert translated("<code>a</code> a a a a " * 500, copied).count("<code>a</code>") == 500
    assert time.monotonic() - started < 2


WORDS = st.sampled_from(["one", "two.", "Three", "a &amp; b", "&lt;", "x!", "Und. So", "日本。語", "é", "  ", "\n"])
OPENINGS = [
    "b",
    'a href="x>y"',
    "i class='&amp;'",
    "span",
    "P",
    "div",
    "code title='a b'",
    "b title='One. two > 3'",
    "em translate=no",
    "li",
    "sub",
]
MARKS = ["<br>", "<img alt='a &amp; b'>", "<!-- a > b -->", "<img src='>'>", "<wbr/>", "<hr />"]


def element(inside):
    return st.tuples(st.sampled_from(OPENINGS), inside).map(
        lambda pair: f"<{pair[0]}>{' '.join(pair[1])}</{pair[0].split()[0]}>"
    )


BALANCED = st.recursive(
    st.one_of(WORDS, st.sampled_from(MARKS)), lambda inner: element(st.lists(inner, max_size=4)), max_leaves=12
)
DOCUMENTS = st.lists(BALANCED, max_size=6).map(" ".join)
PIECES = [*MARKS, "<b>", "</b>", "<P x='>'>", "</p>", "<pre>", "</pre>", "<script>", "</script>", "<!--", "<![CDATA["]
PIECES += ["-->", "</>", "<", ">", "&", "&amp", "a b", " c. D ", "<?x?>", "<!doctype html>", "<i/>", "</", '<a "', "\n"]
ANY_DOCUMENT = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
TAG = re.compile(r"""<!--.*?-->|<(?:[^<>"']|"[^"]*"|'[^']*')*>""")


def tags(document):
    """Without what is translated in them."""
    return [re.sub(r"(title|alt)='[^']*'", r"\1", tag) for tag in TAG.findall(document)]


def is_balanced(document):
    stack = []
    for tag in tags(document):
        name = re.match(r"</?([a-z]*)", tag, re.IGNORECASE)[1].lower()
        if tag.startswith("</"):
            if not stack or stack.pop() != name:
                return False
        elif name and name not in ("br", "img", "wbr", "hr"):
            stack.append(name)
    return not stack


@given(DOCUMENTS)
def test_every_tag_comes_out_once_untouched_and_balanced(document):
    assert is_balanced(document)
    for translate in TRANSLATIONS:
        for language in ("de", "zh"):
            result = translated(document, translate, language)
            assert Counter(tags(result)) == Counter(tags(document))
            assert is_balanced(result)


def test_hundreds_of_tags_in_one_sentence_are_placed_in_proportion():
    document = "".join(f"<b>word{i % 10}</b> " for i in range(80)) + "<i>" * 20 + "end" + "</i>" * 20
    for translate in TRANSLATIONS:
        result = translated(document, translate)
        assert Counter(tags(result)) == Counter(tags(document))
        assert is_balanced(result)


@given(st.one_of(DOCUMENTS, ANY_DOCUMENT))
def test_what_is_translated_as_itself_stays_as_it_was(document):
    for language in ("de", "zh"):
        assert translated(document, same, language) == document


@given(ANY_DOCUMENT)
def test_invalid_html_loses_no_markup(document):
    """Whatever the parser takes for markup is in the answer, as it was."""
    assert "".join(token.raw for token in _Tokens(document).tokens) == document
    tokens, _ = without_labels([token for token in _Tokens(document).tokens if token.kind != "text"], lambda value: [])
    markup = re.sub("\x03\\d+\x03", "", "".join(token.raw for token in tokens))
    for translate in TRANSLATIONS:
        result = translated(document, translate)
        left = Counter(result)
        left.subtract(Counter(re.sub(r"[ \t\n\r\f]", "", markup)))
        assert min(left.values(), default=0) >= 0


@given(st.text(" ab.", max_size=20), st.lists(st.sampled_from(["a", "b", ".", "", "ab"]), max_size=6))
def test_word_spans_are_in_order_and_say_the_words(text, words):
    spans = word_spans(text, words)
    assert all(text[start:end] in (word, "") for (start, end), word in zip(spans, words, strict=True))
    assert [place for span in spans for place in span] == sorted(place for span in spans for place in span)


@mark.parametrize(
    ("tag", "expected"),
    [
        ('<html lang="en">', '<html lang="de">'),
        ("<HTML class=x lang=en-GB>", "<HTML class=x lang=de>"),
        ('<html xml:lang="en" lang="en">', '<html xml:lang="de" lang="de">'),
        ('<html lang="de-AT">', '<html lang="de-AT">'),
        (
            '<!--[if IE 8]><html lang="en"><![endif]--><html lang="en">',
            '<!--[if IE 8]><html lang="en"><![endif]--><html lang="de">',
        ),
        ("<html>", "<html>"),
    ],
)
def test_the_language_of_a_page_is_that_of_its_translation(tag, expected):
    page = f"<!doctype html>\n{tag}<meta charset='UTF-8'><body><p lang=en>Hello there</p></body></html>"
    result = written(read_page(page, "de"), backwards)
    assert result == page.replace(tag, expected).replace("Hello there", "THERE HELLO")


def test_a_page_in_another_encoding_is_refused():
    page = '<html>\n<meta http-equiv="Content-Type" content="text/html; charset=iso-8859-1">'
    with raises(InputError, match="line 2: the page is in iso-8859-1; convert it to UTF-8"):
        read_page(page, "de")
