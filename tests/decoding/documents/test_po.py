"""gettext catalogues: only empty translations change, and gettext's own tools accept the result."""

import re
import shutil
import subprocess
from gettext import c2py

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pytest import mark, raises
from translations import TRANSLATIONS, hypothesis, same, written

from deepnmt.decoding.alignment import Alignment
from deepnmt.decoding.documents.accelerators import with_accelerator, without_accelerator
from deepnmt.decoding.documents.plurals import _RULES, plural_rule
from deepnmt.decoding.documents.po import _entries, read_po
from deepnmt.decoding.translator import Hypothesis
from deepnmt.errors import InputError
from deepnmt.languages import NAMES

HEADER = (
    'msgid ""\nmsgstr ""\n"Language: de\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
    '"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n\n'
)
msgfmt = mark.skipif(shutil.which("msgfmt") is None, reason="needs gettext")


def shout(sentence):
    return hypothesis(sentence, sentence.upper().split(), range(len(sentence.split())))


def filled(text, translate=shout, language="de"):
    return written(read_po(text, language), translate)


def fields(text):
    """The strings of every message, and whether it is fuzzy."""
    lines = text.splitlines(keepends=True)
    return [
        (
            {name: own.text for name, own in entry.fields.items()},
            entry.flags is not None and "fuzzy" in lines[entry.flags],
        )
        for entry in _entries(lines)
    ]


def test_what_a_user_expects():
    text = (
        HEADER + '# A comment.\n#: src/a.c:12\n#, c-format\nmsgid "Open %s"\nmsgstr ""\n\n'
        '#: src/b.c\nmsgctxt "menu"\nmsgid "_Open…"\nmsgstr ""\n\n'
        'msgid "Done"\nmsgstr "Fertig"\n\n#, fuzzy\nmsgid "Old"\nmsgstr "Alt"\n\n'
        '#| msgid "One"\nmsgid "One file"\nmsgid_plural "{n} files"\nmsgstr[0] ""\nmsgstr[1] ""\n\n'
        '#, fuzzy\n#~ msgid "gone"\n#~ msgstr "weg"\n\nmsgid "Line\\n"\n"\\tand \\"line\\"\\n"\nmsgstr ""\n'
    )
    expected = (
        HEADER + '# A comment.\n#: src/a.c:12\n#, fuzzy, c-format\nmsgid "Open %s"\nmsgstr "OPEN %s"\n\n'
        '#: src/b.c\n#, fuzzy\nmsgctxt "menu"\nmsgid "_Open…"\nmsgstr "_OPEN…"\n\n'
        'msgid "Done"\nmsgstr "Fertig"\n\n#, fuzzy\nmsgid "Old"\nmsgstr "Alt"\n\n'
        '#, fuzzy\n#| msgid "One"\nmsgid "One file"\nmsgid_plural "{n} files"\n'
        'msgstr[0] "ONE FILE"\nmsgstr[1] "{N} FILES"\n\n'
        '#, fuzzy\n#~ msgid "gone"\n#~ msgstr "weg"\n\n#, fuzzy\nmsgid "Line\\n"\n"\\tand \\"line\\"\\n"\n'
        'msgstr ""\n"LINE\\n"\n"\\tAND \\"LINE\\"\\n"\n'
    )
    assert filled(text) == expected
    assert filled(text.replace("\n", "\r\n")) == expected.replace("\n", "\r\n")
    assert filled(expected) == expected


def test_only_the_header_is_a_header():
    odd = 'msgid ""\nmsgid_plural ""\nmsgstr[0] ""\n\nmsgctxt "x"\nmsgid ""\nmsgstr "Language: fr\\n"\n'
    assert filled(HEADER + odd) == HEADER + odd
    assert filled(odd) == odd


def test_an_empty_translation_is_not_written():
    text = f'{HEADER}msgid "Open"\nmsgstr ""\n'
    assert filled(text, lambda sentence: Hypothesis("", 0, 0, [])) == text


def test_a_template_becomes_a_catalogue():
    template = (
        '# SOME TITLE\n#, fuzzy\nmsgid ""\nmsgstr ""\n"Project-Id-Version: x\\n"\n"Language: \\n"\n'
        '"Content-Type: text/plain; charset=CHARSET\\n"\n"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"\n\n'
        'msgid "a cat"\nmsgid_plural "%d cats"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    )
    polish = filled(template, language="pl")
    assert "fuzzy" not in polish.partition("\nmsgid")[0]
    assert '"Language: pl\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: nplurals=3;' in polish
    assert re.findall(r'msgstr\[\d\] "(.*)"', polish) == ["A CAT", "%D CATS", "%D CATS"]
    assert re.findall(r'msgstr\[\d\] "(.*)"', filled(template, language="ja")) == ["%D CATS"]
    arabic = re.findall(r'msgstr\[\d\] "(.*)"', filled(template, language="ar"))
    assert arabic == ["%D CATS", "A CAT", *["%D CATS"] * 4]


def test_long_strings_are_wrapped_as_gettext_does_unless_the_source_is_not():
    words = "word " * 30 + "end"
    wrapped = "".join(f'"{"word " * 15}"\n' for _ in range(2)) + '"end"\n'
    result = filled(f'{HEADER}msgid ""\n{wrapped}msgstr ""\n')
    assert f'msgstr ""\n{wrapped.upper()}' in result
    assert f'msgstr "{words.upper()}"' in filled(f'{HEADER}msgid "{words}"\nmsgstr ""\n')


def test_arguments_in_another_order_are_numbered():
    def swapped(sentence):
        return hypothesis(sentence, ["%d", "Dateien", "von", "%s"], [2, 3, 1, 0])

    text = f'{HEADER}#, c-format\nmsgid "%s has %d files"\nmsgstr ""\n'
    assert 'msgstr "%2$d Dateien von %1$s"' in filled(text, swapped)
    assert 'msgstr "%d Dateien von %s"' in filled(text.replace("c-format", "python-format"), swapped)


def test_options_of_commands_are_kept():
    text = f'{HEADER}msgid "use --from=F or -v, not e-mail"\nmsgstr ""\n'
    assert 'msgstr "USE --from=F OR -v, NOT E-MAIL"' in filled(text)


def test_directives_are_kept_and_other_percent_signs_escaped():
    def careless(sentence):
        words = ["100%", "von", "%", "sind", "%d!"]
        return hypothesis(sentence, words, [min(i, len(sentence.split()) - 1) for i in range(5)])

    text = f'{HEADER}#, c-format\nmsgid "100%% of \\"%s\\" are %<PRIu64>, %5.1f%%"\nmsgstr ""\n'
    (translation,) = re.findall(r'msgstr "(.+)"', filled(text, careless).partition("c-format")[2])
    found = re.findall(r"%(?:\d\$)?(?:s|<PRIu64>|5\.1f|%)", translation)
    assert translation.count("%") == sum(each.count("%") for each in found)
    assert sorted(re.sub(r"\d\$", "", each) for each in found if each != "%%") == ["%5.1f", "%<PRIu64>", "%s"]


@mark.parametrize(
    ("label", "translation", "language", "expected"),
    [
        ("E&xit", "Beenden", "de", "&Beenden"),
        ("E&xit", "Explorer", "de", "E&xplorer"),
        ("&File", "Die Datei", "de", "&Die Datei"),
        ("Save _As…", "Alles sichern als…", "de", "_Alles sichern als…"),
        ("Cu_t", "Ausschneiden", "de", "_Ausschneiden"),
        ("~Edit", "Bearbeiten", "de", "B~earbeiten"),
        ("&File...", "文件...", "zh", "文件(&F)..."),
        ("&Open", "", "de", ""),
        ("_Show %s", "%s zeigen", "de", "%s _zeigen"),
        *(
            (label, label, "de", label)
            for label in ("AT&T", "Q&A", "a & b", "file_name", "&amp;", "_a _b", "R&D", "__init__")
        ),
    ],
)
def test_accelerators_stay_in_a_label(label, translation, language, expected):
    plain, accelerator = without_accelerator(label)
    assert with_accelerator(translation, accelerator, language) == expected
    assert bool(accelerator) == (label != translation)
    assert not accelerator or plain == label.replace(accelerator[0], "")


@mark.parametrize(
    ("text", "message"),
    [
        ('msgid "a"\nmsgstr "b\n', "line 2: expected a comment, or a keyword such as msgid and a string in double"),
        ("nonsense\n", "line 1: expected a comment, or a keyword"),
        ('"a"\n', "line 1: expected a comment, or a keyword"),
        ('msgid "a"\n\nmsgid_plural "b"\nmsgstr "c"\n', r"line 1: the message has no msgstr\[0\]"),
        ('msgid "a"\n', "line 1: the message has no msgstr"),
        ('\n# c\nmsgstr "a"\n', "line 3: the message has no msgid"),
        ('msgid "a"\nmsgstr "b"\nmsgstr "c"\n', "line 3: the message has a second msgstr"),
        ('msgid ""\nmsgstr "Language: fr\\n"\n', "line 1: the catalogue is in the language fr, but the model"),
        ('msgid ""\nmsgstr "Content-Type: text/plain; charset=ISO-8859-1\\n"\n', "line 1: .* `msgconv -t UTF-8` first"),
        (f'{HEADER.replace("(n != 1)", "n +")}msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n', "are not valid"),
    ],
)
def test_refusals_say_the_line(text, message):
    with raises(InputError, match=message):
        read_po(text, "de")


def test_a_plural_in_a_language_without_known_rules_is_refused():
    text = 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n'
    with raises(InputError, match="line 1: the message has a plural, but the header has no Plural-Forms"):
        read_po(text, "xx")
    assert filled(HEADER.replace("de", "xx") + text, language="xx").endswith('msgstr[0] "A"\nmsgstr[1] "B"\n')


def test_plural_rules_are_valid_and_there_for_every_named_language():
    assert {*NAMES} <= {*_RULES}
    for language in NAMES:
        count, rule = re.fullmatch(r"nplurals=(\d); plural=(.*);", plural_rule(language)).groups()
        assert {c2py(rule)(number) for number in range(250)} <= set(range(int(count)))
    assert "n > 1" in plural_rule("pt_BR")


PIECES = [
    "one",
    "Two.",
    "%s",
    "{n}",
    "&file",
    "_x",
    "\\",
    '"',
    "\n",
    "\t",
    "<b>",
    "</b>",
    "<file>",
    "<br/>",
    "&lt;",
    "é",
]
STRINGS = st.lists(st.sampled_from([*PIECES, " ", "-v"]), min_size=1, max_size=12).map(" ".join)
QUOTED = STRINGS.map(
    lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'
)
COMMENTS = st.sampled_from(
    ["", "# hello\n", "#: a.c:1 b.c:2\n", "#, c-format\n", "#, fuzzy\n", '#| msgid "x"\n', "\n", '#~ msgid "x"\n']
)
TARGETS = st.one_of(st.just('""'), QUOTED)
MESSAGES = st.one_of(
    st.tuples(st.lists(COMMENTS, max_size=3).map("".join), QUOTED, TARGETS).map(
        lambda parts: f"{parts[0]}msgid {parts[1]}\nmsgstr {parts[2]}\n\n"
    ),
    st.tuples(QUOTED, QUOTED, TARGETS).map(
        lambda parts: (
            f'msgctxt "x"\nmsgid {parts[0]}\nmsgid_plural\t{parts[1]}\nmsgstr[0] {parts[2]}\nmsgstr[1] {parts[2]}\n'
        )
    ),
)
CATALOGUES = st.lists(MESSAGES, max_size=6).map(lambda messages: HEADER + "".join(messages))


@given(CATALOGUES)
def test_only_empty_translations_change(text):
    before = fields(text)
    for translate in TRANSLATIONS:
        result = filled(text, translate)
        after = fields(result)
        for (old, was_fuzzy), (new, is_fuzzy) in zip(before, after, strict=True):
            if old["msgid"] == "" or any(value for name, value in old.items() if name.startswith("msgstr")):
                assert (new, is_fuzzy) == (old, was_fuzzy)
            elif any(value for name, value in new.items() if name.startswith("msgstr")):
                assert is_fuzzy
                assert new["msgid"] == old["msgid"]
        assert filled(result, translate) == result or translate is not same
        kept = [line for line in text.splitlines() if not re.match(r'msgstr.*""|#,', line)]
        remaining = iter(result.splitlines())
        assert all(any(line == other for other in remaining) for line in kept), "lines are kept, in order"


@given(CATALOGUES)
def test_translated_as_itself_a_message_is_its_own_translation(text):
    for (old, _), (new, _) in zip(fields(text), fields(filled(text, same)), strict=True):
        if old["msgid"] and not any(value for name, value in old.items() if name.startswith("msgstr")):
            assert new.get("msgstr", new.get("msgstr[0]")) == old["msgid"]
            assert new.get("msgstr[1]") == old.get("msgid_plural")


@msgfmt
def test_gettext_accepts_the_result(tmp_path):
    """msgfmt checks line breaks at both ends, arguments and the header."""

    def renamed(sentence):
        words = sentence.split()
        weights = np.eye(len(words))[::-1]
        return Hypothesis(" ".join(words[::-1]), 0, 0, [], Alignment(words, words[::-1], weights))

    text = HEADER + (
        '#, c-format\nmsgid "%s: cannot open %d files\\n"\nmsgstr ""\n\n'
        '#, c-format\nmsgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n\n'
        'msgid "\\nUsage: <b>program</b> &amp; more\\n\\n  -v  be verbose\\n"\nmsgstr ""\n'
    )
    path = tmp_path / "de.po"
    for translate in (same, renamed):
        path.write_text(re.sub(r"#, fuzzy(, )?", "#, ", filled(text, translate)), encoding="utf-8")
        done = subprocess.run(
            ["msgfmt", "--check-format", "-o", "/dev/null", path], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
