import io
from array import array
from itertools import pairwise
from pathlib import Path

import pytest
from grammar import count_words, english_german
from hypothesis import given
from hypothesis import strategies as st

from deepnmt.data.subword_nmt import Codes, SubwordNmt, count_symbols, vocabulary
from deepnmt.data.tokenizer import Preprocessor, Tokenizer
from deepnmt.errors import InputError

MERGES = ["l o", "lo w</w>", "n e", "ne w", "new e", "s t</w>"]
SENTENCES = [line for pair in english_german(100) for line in pair]


def test_merges_apply_in_their_order() -> None:
    codes = Codes(["#version: 0.2", *MERGES])
    assert codes.segment("low")[0] == ["low"]
    assert codes.segment("newest")[0] == ["newe@@", "st"]
    assert codes.segment("lowest")[0] == ["lo@@", "w@@", "e@@", "st"]
    assert codes.segment("l")[0] == ["l"]


def test_old_codes_have_the_end_of_the_word_as_a_symbol() -> None:
    codes = Codes(["s t", "st </w>", "e st</w>"])
    assert codes.segment("west")[0] == ["w@@", "est"]
    assert codes.segment("stew")[0] == ["st@@", "e@@", "w"]


@pytest.mark.parametrize("header", [True, False], ids=["version 0.2", "version 0.1"])
def test_segments_are_those_of_subword_nmt(header: bool) -> None:
    pytest.importorskip("subword_nmt")
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    learnt = io.StringIO()
    learn_bpe(io.StringIO("\n".join(SENTENCES)), learnt, 120)
    text = learnt.getvalue() if header else learnt.getvalue().partition("\n")[2]
    theirs, ours = BPE(io.StringIO(text)), Codes(text.splitlines())

    @given(
        st.text(st.sampled_from("thedogunKatz,.-0123é"), min_size=1) | st.sampled_from(sorted(count_words(SENTENCES)))
    )
    def agree(word: str) -> None:
        assert ours.segment(word)[0] == theirs.segment_tokens([word])

    agree()


def plain_segments(merges: list[str], word: str, skips: list[int]) -> tuple[list[str], int]:
    """Rounds over the whole word: every occurrence of the best pair merges, unless it is skipped in this round."""
    ranks = {tuple(merge.split()): rank for rank, merge in reversed(list(enumerate(merges)))}
    symbols, count = [*word[:-1], f"{word[-1]}</w>"], 0
    while True:
        kept: set[int] = set()
        best = -1
        for rank, i in sorted((ranks[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in ranks):
            if kept and rank != best:
                break
            if count not in skips:
                kept, best = kept | {i}, rank
            count += 1
        if not kept:
            return [f"{symbol}@@" for symbol in symbols[:-1]] + [symbols[-1].removesuffix("</w>")], count
        merged, i = [], 0
        while i < len(symbols):
            merged.append("".join(symbols[i : i + 1 + (i in kept)]))
            i += 1 + (i in kept)
        symbols = merged


SYMBOL = st.text(st.sampled_from("ab"), min_size=1, max_size=4)


@given(
    st.lists(st.tuples(SYMBOL, SYMBOL, st.sampled_from(["", "</w>"])), min_size=1, max_size=12),
    st.text(st.sampled_from("ab"), min_size=1, max_size=24),
    st.sets(st.integers(0, 20)).map(sorted),
)
def test_the_queue_of_merges_segments_as_rounds_over_the_word_do(
    merges: list[tuple[str, str, str]], word: str, skips: list[int]
) -> None:
    lines = [f"{left} {right}{end}" for left, right, end in merges]
    assert Codes(["#version: 0.2", *lines]).segment(word, skips) == plain_segments(lines, word, skips)


def test_a_long_word_with_many_merges_is_segmented_in_reasonable_time() -> None:
    letters = [chr(0x20000 + i) for i in range(40_000)]  # 20,000 rounds over 40,000 symbols would take minutes
    codes = Codes(
        ["#version: 0.2", *(f"{left} {right}" for left, right in zip(letters[::2], letters[1::2], strict=True))]
    )
    segmented, merges = codes.segment(f"{''.join(letters)}.")
    assert segmented[:2] == [f"{letters[0]}{letters[1]}@@", f"{letters[2]}{letters[3]}@@"]
    assert (len(segmented), merges) == (20_001, 20_000)


def tokenizer(min_frequency: int = 1) -> Tokenizer:
    codes = Codes(["#version: 0.2", "t h", "th e</w>", "d o", "do g</w>"])
    counts = count_symbols(codes, count_words(SENTENCES))
    return Tokenizer(SubwordNmt(codes, vocabulary(counts, min_frequency)), Preprocessor("en"))


def test_known_text_comes_back() -> None:
    made = tokenizer()
    for line in SENTENCES:
        assert made.decode(made.encode(line)) == line
    assert "the" in made.pieces
    assert "d@@" in made.pieces


def test_the_vocabulary_is_sorted_by_frequency_and_cut() -> None:
    counts = {"b": 5, "a": 5, "c": 9, "rare": 4, "<unk>": 100}
    assert vocabulary(counts, 5) == ["c", "a", "b"]


def test_a_symbol_outside_the_vocabulary_is_unknown() -> None:
    made = tokenizer()
    assert made.encode("漢") == [made.unk_id]
    assert made.decode(made.encode("漢")) == "<unk>"


def test_the_file_is_self_contained(tmp_path: Path) -> None:
    made = tokenizer()
    made.save(tmp_path / "t.json")
    loaded = Tokenizer.load(tmp_path / "t.json")
    assert loaded.pieces == made.pieces
    assert loaded.encode_batch(SENTENCES) == made.encode_batch(SENTENCES)
    assert loaded.subwords.encode_lines(["the dog"]) == [array("I", made.encode("the dog")).tobytes()]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("#version: 9.9\na b\n", "version '9.9'"),
        ("#version: 0.2\na b\nabc\n", "line 3: 'abc' is not a merge"),
        ("a b c\n", "line 1"),
        ("", "is empty"),
        ("#version: 0.2\n", "no merge operations"),
    ],
)
def test_what_are_not_codes_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "codes"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as refusal:
        Codes.read(path)
    assert str(path) in str(refusal.value)


def test_missing_and_binary_codes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        Codes.read(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="binary is UTF-16"):
        Codes.read(tmp_path / "binary")
