"""TMX and XLIFF: their pairs, and what they may not do."""

import gzip

from pytest import mark, raises

import deepnmt
from deepnmt.data.memories import iterate_memory
from deepnmt.errors import InputError

TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu><prop type="x">note</prop><tuv xml:lang="en-US"><seg>Press <bpt i="1">&lt;b&gt;</bpt>OK<ept i="1">&lt;/b&gt;</ept>
 &amp; go</seg></tuv><tuv xml:lang="de"><seg>Drück <hi>OK</hi> &#228;h</seg></tuv>
<tuv xml:lang="fr"><seg>OK</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>Seul</seg></tuv><tuv xml:lang="de"><seg>Allein</seg></tuv></tu>
<tu><tuv lang="DE-at"><seg>Jänner</seg></tuv><tuv lang="EN"><seg>January<ph>{1}<sub>no</sub></ph></seg></tuv></tu>
</body></tmx>"""
XLIFF_1 = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en"
 target-language="de-DE"><body><group><trans-unit id="1"><source>One <g id="1">two</g><x id="2"/></source>
<target>Eins <mrk mtype="seg">zwei</mrk></target><alt-trans><source>bad</source><target>schlecht</target></alt-trans>
</trans-unit></group><trans-unit id="2"><source>Three</source></trans-unit>
<trans-unit id="3"><source>Four</source><target state="needs-translation">Four</target></trans-unit></body></file>
</xliff>"""
XLIFF_2 = """<x:xliff xmlns:x="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de">
<x:file id="f">
<x:unit id="1"><x:segment><x:source>One <x:pc id="1">two</x:pc></x:source><x:target>Eins <x:ph id="2"/>zwei</x:target>
</x:segment><x:segment state="initial"><x:source>No</x:source><x:target>No</x:target></x:segment></x:unit>
</x:file></x:xliff>"""


def pairs(tmp_path, text, source="en", target="de", encoding="utf-8"):
    path = tmp_path / "file.xml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return [tuple(line.decode().split("\t")) for line in iterate_memory(path, source, target)]


def test_tmx(tmp_path):
    assert pairs(tmp_path, TMX) == [("Press OK & go", "Drück OK äh"), ("January", "Jänner")]
    assert pairs(tmp_path, TMX, "fr", "de-DE") == [("OK", "Drück OK äh"), ("Seul", "Allein")]


@mark.parametrize("text", [XLIFF_1, XLIFF_2], ids=["1.2", "2.0"])
def test_xliff_in_either_direction(tmp_path, text):
    assert pairs(tmp_path, text) == [("One two", "Eins zwei")]
    assert pairs(tmp_path, text, "de", "en") == [("Eins zwei", "One two")]


def test_xliff_that_names_a_language_at_the_text_only(tmp_path):
    text = XLIFF_1.replace('\n target-language="de-DE"', "")
    with raises(InputError, match="no pairs in en and de; its languages are en, unknown"):
        pairs(tmp_path, text)
    assert pairs(tmp_path, text.replace("<target>", '<target xml:lang="de">')) == [("One two", "Eins zwei")]


def test_other_encodings_and_compression(tmp_path):
    expected = pairs(tmp_path, TMX)
    assert pairs(tmp_path, TMX.replace("UTF-8", "UTF-16"), encoding="utf-16") == expected
    assert pairs(tmp_path, TMX.replace("UTF-8", "ISO-8859-1"), encoding="latin-1") == expected
    assert pairs(tmp_path, gzip.compress(TMX.encode())) == expected


BOMB = "".join(f'<!ENTITY l{i + 1} "{f"&l{i};" * 10}">' for i in range(9))
HOSTILE = {
    "billion laughs": f'<!DOCTYPE tmx [<!ENTITY l0 "lol">{BOMB}]><tmx><body>&l9;</body></tmx>',
    "a file": '<!DOCTYPE tmx [<!ENTITY e SYSTEM "file:///etc/passwd">]><tmx><body>&e;</body></tmx>',
    "a parameter entity": '<!DOCTYPE tmx [<!ENTITY % p SYSTEM "http://127.0.0.1:1/x"> %p;]><tmx/>',
    "an entity of a distant DTD": '<!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx><body>&nbsp;</body></tmx>',
}


@mark.parametrize("case", HOSTILE)
def test_entities_are_refused(tmp_path, case):
    with raises(InputError, match=r"line 1: the entity '\w+' is not supported; replace it by its text"):
        pairs(tmp_path, HOSTILE[case])


@mark.parametrize(
    ("text", "message"),
    [
        ("<html><body/></html>", "is neither TMX nor XLIFF: its first element is <html>"),
        ("<tmx><body>", "line 1: not well-formed XML"),
        ("<tmx>\n<body></tmx>", "line 2: not well-formed XML"),
        ("plain text", "line 1: not well-formed XML"),
        ("<?xml version='1.0' encoding='klingon'?><tmx/>", "not well-formed XML|encoding"),
        (f"<tmx><tu><tuv xml:lang='en'><seg>{'x' * (2 << 20)}</seg></tuv></tu></tmx>", "a text is longer than"),
        (
            TMX.replace('"de"', '"da"').replace("DE-at", "da"),
            "no pairs in en and de; its languages are EN, da, en-US",
        ),
    ],
)
def test_refusals(tmp_path, text, message):
    with raises(InputError, match=message):
        pairs(tmp_path, text)


def test_prepare_reads_them(tmp_path):
    (tmp_path / "a.tmx").write_text(TMX, encoding="utf-8")
    (tmp_path / "b.xlf").write_text(XLIFF_1, encoding="utf-8")
    dataset = deepnmt.prepare(
        memory=[tmp_path / "a.tmx", tmp_path / "b.xlf"],
        valid_memory=tmp_path / "b.xlf",
        source_lang="en",
        target_lang="de",
        out=tmp_path / "DATASET",
        vocab_size=300,
        min_frequency=1,
        keep=["overlap"],
        workers=1,
    )
    assert dataset.meta["train"][0]["pairs"] == 3
    assert dataset.meta["valid"]["pairs"] == 1
