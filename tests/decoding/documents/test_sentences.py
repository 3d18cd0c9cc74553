"""Texts as sentences and gaps: nothing lost, nothing long, no time wasted on strange lines."""

from hypothesis import given
from hypothesis import strategies as st
from pytest import mark

from deepnmt.decoding.documents.sentences import MAX_SENTENCE, Sentence, split_sentences

TEXTS = st.one_of(
    st.text(max_size=200),
    st.text(alphabet=" \n\r\t.!?…。\"')aAbB1„“\u2028\u200b\x00\x85", max_size=200),
    st.lists(st.sampled_from(["Yes. ", "No!", "\n\n", " ", "Mr. X", "3. Mai", "文。", "a" * 700, "\r\n"])).map("".join),
)


@given(TEXTS)
def test_end_to_end_the_sentences_are_the_text(text):
    found = split_sentences(text)
    assert "".join(sentence.text + sentence.gap for sentence in found) == text
    assert all(len(sentence.text) <= MAX_SENTENCE for sentence in found)
    assert all(sentence.text == sentence.text.strip() for sentence in found)
    assert all(sentence.text for sentence in found[1:])
    assert not any(sentence.gap.strip() for sentence in found)


@mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("He said “Stop!” She did.", ["He said “Stop!”", "She did."]),
        ("Dr. Mabuse met J. Smith at 5 p.m. on Monday.", ["Dr. Mabuse met J. Smith at 5 p.m. on Monday."]),
        ("Am 3. Mai kommt z. B. Herr Nr. 5. Er bleibt.", ["Am 3. Mai kommt z. B. Herr Nr. 5. Er bleibt."]),
        ("He said no. She loves art. See fig. 3.", ["He said no.", "She loves art.", "See fig. 3."]),
        ("The U.S. Army saw Mt. Everest. Vgl. Art. 5.", ["The U.S. Army saw Mt. Everest.", "Vgl. Art. 5."]),
        ("It was 1990. He left.", ["It was 1990.", "He left."]),
        ("Wait... what? Yes.", ["Wait... what?", "Yes."]),
        ("version 2.5 of a.b.c", ["version 2.5 of a.b.c"]),
        ("你好。再见！", ["你好。", "再见！"]),
        ("यह है। वह है।", ["यह है।", "वह है।"]),
        ("a line\nanother line", ["a line", "another line"]),
        ("", []),
    ],
)
def test_where_sentences_end(text, expected):
    assert [sentence.text for sentence in split_sentences(text)] == expected


def test_spaces_before_the_text_are_the_gap_of_an_empty_first_sentence():
    assert split_sentences("\n  Hello \n") == [Sentence("", "\n  "), Sentence("Hello", " \n")]
    assert split_sentences(" \n ") == [Sentence("", " \n ")]


def test_a_long_sentence_is_cut_at_spaces():
    text = "word " * 400
    assert all(set(sentence.text.split()) == {"word"} for sentence in split_sentences(text))


@mark.parametrize(
    "line", ["." * 100_000, "a." * 50_000, ' "' * 50_000, " " * 100_000 + "x", "。" * 100_000, "?! " * 33_000]
)
def test_strange_lines_of_100k_characters_take_no_time(line):
    """Quadratic patterns would take minutes, which the time limit of the tests notices."""
    assert "".join(sentence.text + sentence.gap for sentence in split_sentences(line)) == line
