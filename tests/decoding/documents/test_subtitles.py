"""Subtitles: numbers, times and tags stay, sentences are translated whole, and lines stay short."""

import re
import time

from hypothesis import given
from hypothesis import strategies as st
from pytest import mark, raises
from translations import TRANSLATIONS, hypothesis, same, written

from deepnmt.decoding.documents.subtitles import WIDTH, divided, read_srt, read_vtt
from deepnmt.errors import InputError

SRT = """1
00:00:01,000 --> 00:00:03,000
I think that we should go
to the old house

2
00:00:03,500 --> 00:00:05,000
before it gets dark,
and take the dog.

3
00:00:06,000 --> 00:00:08,000
- Are you sure?
- Yes, I am.

4
00:00:09,000 --> 00:00:11,000
<i>♪ La la la ♪</i>

5
00:00:12,000 --> 00:00:14,000
{\\an8}This is <b>very</b> important
for us.
"""


def shout(sentence):
    return hypothesis(sentence, sentence.upper().split(), range(len(sentence.split())))


def test_sentences_run_over_lines_and_cues():
    document = read_srt(SRT, "de")
    assert document.sentences == [
        ("I think that we should go to the old house before it gets dark, and take the dog.", False),
        ("Are you sure?", False),
        ("Yes, I am.", False),
        ("La la la", False),
        ("This is very important for us.", True),
    ]
    expected = """1
00:00:01,000 --> 00:00:03,000
I THINK THAT WE SHOULD GO TO THE OLD HOUSE

2
00:00:03,500 --> 00:00:05,000
BEFORE IT GETS DARK, AND TAKE THE DOG.

3
00:00:06,000 --> 00:00:08,000
- ARE YOU SURE?
- YES, I AM.

4
00:00:09,000 --> 00:00:11,000
<i>♪ LA LA LA ♪</i>

5
00:00:12,000 --> 00:00:14,000
{\\an8}THIS IS <b>VERY</b> IMPORTANT FOR US.
"""
    assert written(document, shout) == expected
    assert written(read_srt(SRT.replace("\n", "\r\n"), "de"), shout) == expected.replace("\n", "\r\n")


def test_a_long_translation_is_laid_out_in_balanced_lines():
    text = "1\n00:00:01,000 --> 00:00:02,000\nThat is short.\n"

    def long(sentence):
        return hypothesis(sentence, ["Donaudampfschifffahrt"] + ["und", "mehr"] * 4, [0] * 9)

    lines = written(read_srt(text, "de"), long).splitlines()[2:]
    assert lines == ["Donaudampfschifffahrt und mehr", "und mehr und mehr und mehr"]
    assert max(map(len, lines)) <= WIDTH


VTT = """WEBVTT - a title

STYLE
::cue { color: red }

NOTE This is --> a comment.

intro
00:01.000 --> 00:03.000 align:start position:10%
<v Mary Ann>Fish &amp; chips, <c.loud>please</c>

00:04.000 --> 00:05.000
One <00:04.500>two
"""


def test_webvtt_keeps_styles_notes_settings_and_escapes():
    document = read_vtt(VTT, "de")
    assert [sentence for sentence, _ in document.sentences] == ["Fish & chips, please", "One two"]
    expected = VTT.replace("Fish &amp; chips,", "FISH &amp; CHIPS,").replace("please", "PLEASE").replace("One", "ONE")
    assert written(document, shout) == expected.replace("two", "TWO")


def test_nothing_else_is_joined():
    cue = "{}\n00:00:0{},000 --> 00:00:0{},500\n{}\n\n"
    texts = ["One,", "Two", "- three", "four.", "five", "<i>six</i> seven", "eight"]
    text = "".join(cue.format(i, i, i, each) for i, each in enumerate(texts))
    assert [sentence for sentence, _ in read_srt(text, "de").sentences] == [
        "One,", "Two", "three four.", "five", "six seven", "eight",
    ]  # fmt: skip


WORDS = [
    "one",
    "Two",
    "three.",
    "four,",
    "<i>",
    "</i>",
    "{\\an8}",
    "♪",
    "- ",
    "-",
    "日本。",
    "&",
    "&amp;",
    "<v A>",
    "\n",
    "\n-",
    "<b>",
    "</b>",
    "…",
]
SPOKEN = st.lists(st.sampled_from(WORDS), max_size=10).map(" ".join).map(lambda text: re.sub(r"\n\s*\n", "\n", text))
TIMES = st.sampled_from(
    ["00:00:01,000 --> 00:00:02,000", "0:00:01.5 --> 0:00:02.5  X1:2", "00:01.000 --> 00:02.000 line:0"]
)
CUES = st.tuples(st.integers(0, 20), TIMES, SPOKEN, st.sampled_from(["\n\n", "\n\n\n", "\n \n", "\n"]))
FILES = st.lists(CUES, max_size=6).map(
    lambda cues: "".join(f"{i}\n{times}\n{text.strip() or 'x'}{end}" for i, times, text, end in cues if end != "\n")
)


@given(FILES, st.booleans())
def test_what_is_translated_as_itself_stays_as_it_was(text, is_vtt):
    text = f"WEBVTT\n\n{text}" if is_vtt else text
    assert written((read_vtt if is_vtt else read_srt)(text, "de"), same) == text


@given(FILES)
def test_times_numbers_and_tags_stay_whatever_the_translation(text):
    for translate in TRANSLATIONS:
        for language in ("de", "zh"):
            result = written(read_srt(text, language), translate)
            assert re.findall(r"^.*-->.*$", result, re.MULTILINE) == re.findall(r"^.*-->.*$", text, re.MULTILINE)
            for tag in ("<i>", "</i>", "<b>", "</b>", "{\\an8}"):
                assert result.count(tag) == text.count(tag)


@given(st.text("ab ,.日", max_size=60), st.lists(st.integers(0, 50), min_size=1, max_size=4))
def test_a_text_is_divided_without_loss(text, sizes):
    parts = divided(text, sizes)
    assert len(parts) == len(sizes)
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")


@mark.parametrize(
    ("read", "text", "message"),
    [
        (read_srt, "hello\n", "line 1: expected the number and the times of a subtitle, not 'hello'"),
        (read_srt, "1\n00:00:01 -> 00:00:02\nx\n", "line 2: expected times such as"),
        (read_srt, "1\n00:00:01,000 --> 00:00:02,000\nx\n\n2\n00:00:01,000 --> soon\nx\n", "line 6: expected times"),
        (
            read_srt,
            "1\n00:00:01,000 --> 00:00:02,000\nx\n2\n00:00:03,000 --> 00:00:04,000\ny\n",
            "line 5: expected a blank line before",
        ),
        (read_vtt, "1\n00:00:01,000 --> 00:00:02,000\nx\n", "line 1: the file does not begin with WEBVTT"),
    ],
)
def test_refusals_say_the_line(read, text, message):
    with raises(InputError, match=message):
        read(text, "de")


@mark.parametrize("text", ["a " * 30_000, "<i>" * 20_000, "- a\n" * 10_000, "♪" * 30_000, "x" * 30_000, "日x" * 10_000])
def test_strange_cues_take_no_time(text):
    started = time.monotonic()
    document = read_srt(f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n", "de")
    written(document, shout)
    assert time.monotonic() - started < 10
