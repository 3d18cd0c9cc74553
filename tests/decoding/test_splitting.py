"""Cutting long lines: nothing lost, nothing too long, cut where it reads best."""

from hypothesis import given
from hypothesis import strategies as st

from deepnmt.decoding.splitting import join_translations, split_long


def words(text: str) -> int:
    return len(text.split())


@given(st.text(alphabet="ab .,;!?。，\n", max_size=200), st.integers(1, 20))
def test_nothing_is_lost_and_nothing_is_too_long(text, limit):
    pieces = split_long(text, limit, len)
    assert "".join(pieces) == text
    assert all(len(piece) <= limit for piece in pieces)


def test_sentences_first_then_clauses_then_words():
    text = "One two three. Four five, six seven; eight nine ten. Eleven."
    assert split_long(text, 100, words) == [text]
    assert split_long(text, 7, words) == ["One two three. ", "Four five, six seven; eight nine ten. ", "Eleven."]
    assert split_long(text, 4, words) == ["One two three. ", "Four five, six seven; ", "eight nine ten. Eleven."]
    assert split_long("a b c d e", 2, words) == ["a b ", "c d ", "e"]


def test_chinese_is_cut_at_its_own_marks():
    assert split_long("你好世界。今天天气很好，我们去玩。", 8, len) == ["你好世界。", "今天天气很好，", "我们去玩。"]


def test_pieces_are_joined_as_the_language_is_written():
    assert join_translations(["a.", "", "b."], "de") == "a. b."
    assert join_translations(["甲。", "乙。"], "zh-CN") == "甲。乙。"


def test_a_line_of_dots_takes_no_time():
    """With a pattern that is quadratic, minutes: the time limit of the tests notices."""
    assert "".join(split_long("." * 100_000, 256, len)) == "." * 100_000
