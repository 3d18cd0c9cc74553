"""Running text: nothing lost, wrapped paragraphs joined and wrapped again, columns and bullets kept."""

import time

from hypothesis import given
from hypothesis import strategies as st
from pytest import mark
from translations import TRANSLATIONS, backwards, same, written

from deepnmt.decoding.documents.layout import balanced, width_of, wrapped
from deepnmt.decoding.documents.prose import read_text
from deepnmt.decoding.translator import Hypothesis

WORDS = [
    "one",
    "Two",
    "three.",
    "four,",
    "-v",
    "--long=X",
    "•",
    "a)",
    "1.",
    "日本語。",
    "é",
    "longer-word",
    "{name}",
    "<b>",
]
SPACES = [" ", " ", " ", " ", "  ", "\n", "\n", "\n\n", "\r\n", "\t", "\n    ", "\u2028", "\u00a0"]
RUNS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(SPACES)), max_size=60)
TEXTS = st.one_of(st.text(max_size=100), RUNS.map(lambda pairs: "".join(map("".join, pairs))))


@given(TEXTS)
def test_what_is_translated_as_itself_stays_as_it_was(text):
    for language in ("de", "ja"):
        assert written(read_text(text, language), same) == text


@given(TEXTS)
def test_every_translation_is_written(text):
    document = read_text(text, "de")
    result = written(document, backwards)
    wanted = [word for sentence, _ in document.sentences for word in sentence.upper().split()]
    left = result.upper().split()
    for word in wanted:
        left.remove(word)
    assert [written(document, translate) for translate in TRANSLATIONS]


def shouted(text):
    return written(read_text(text, "de"), lambda sentence: Hypothesis(sentence.upper(), 0, 0, []))


def test_wrapped_paragraphs_are_sentences_that_run_over_lines():
    text = (
        "It was a bright cold day in April, and the clocks were striking\n"
        "thirteen. Winston Smith, his chin nuzzled into his breast, slipped\n"
        "quickly through the doors.\n"
        "\n"
        "  - A bullet that goes on and on, so that a program must have\n"
        "    wrapped it.\n"
    )
    document = read_text(text, "de")
    assert [sentence for sentence, _ in document.sentences] == [
        "It was a bright cold day in April, and the clocks were striking thirteen.",
        "Winston Smith, his chin nuzzled into his breast, slipped quickly through the doors.",
        "A bullet that goes on and on, so that a program must have wrapped it.",
    ]
    assert shouted(text) == text.upper()
    longer = written(document, lambda sentence: Hypothesis(sentence.replace(" ", " very "), 0, 0, []))
    assert max(map(len, longer.splitlines())) <= max(map(len, text.splitlines()))
    assert "\n  - A very bullet" in longer
    assert all(line.startswith("    ") for line in longer.partition("  - ")[2].splitlines()[1:])


def test_lines_that_no_program_wrapped_stay_apart():
    text = "Roses are red,\nViolets are blue.\n\nUsage: program [OPTION]... [FILE]... and so on and so on\nPrint it\n"
    assert [sentence for sentence, _ in read_text(text, "de").sentences][-1] == "Print it"
    assert shouted(text) == text.upper()


def test_columns_and_options_stay():
    text = "  -v, --verbose    be verbose\n  --level=N\tset the level\nName    Value\nOne.  Two."
    sentences = [sentence for sentence, _ in read_text(text, "de").sentences]
    assert sentences == ["be verbose", "set the level", "Name", "Value", "One.", "Two."]
    expected = "  -v, --verbose    BE VERBOSE\n  --level=N\tSET THE LEVEL\nNAME    VALUE\nONE. TWO."
    assert shouted(text) == expected


@given(st.text("ab ,.日本。「」é", max_size=80), st.integers(1, 30))
def test_lines_are_as_wide_as_they_may_be_and_lose_nothing(text, width):
    for lines in (wrapped(text, width), balanced(text, width)):
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert all(width_of(line) <= width or " " not in line for line in lines)
    assert len(balanced(text, width)) == len(wrapped(text, width))


def test_balanced_lines_are_similar():
    assert balanced("one two three four five six seven", 30) == ["one two three four", "five six seven"]
    assert wrapped("今日はとても良い天気ですね。", 16) == ["今日はとても良い", "天気ですね。"]


@mark.parametrize(
    "text", ["a " * 50_000, "\n" * 50_000, " " * 100_000 + "x", "word\n" * 4_000, "-a " * 30_000, "日" * 30_000]
)
def test_strange_texts_take_no_time(text):
    started = time.monotonic()
    assert written(read_text(text, "de"), same) == text
    shouted(text)
    assert time.monotonic() - started < 5
