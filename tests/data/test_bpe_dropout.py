"""No skip is the usual encoding, a key decides everything, segmentations are as frequent as in the original tools."""

import io
import subprocess
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from grammar import count_words, english_german, write_pairs
from hypothesis import given
from hypothesis import strategies as st

import deepnmt
from deepnmt.data import bpe_dropout, learning
from deepnmt.data.bpe_dropout import BpeDropout, Merge, sentence_keys
from deepnmt.data.learning import cut, learn, piece_counts
from deepnmt.data.prepare_settings import SubwordSettings
from deepnmt.data.sentence_pieces import ListedPieces, SentencePieces
from deepnmt.data.subword_nmt import Codes, SubwordNmt, count_symbols, vocabulary
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.errors import InputError

SENTENCES = [line for pair in english_german(300) for line in pair]
WORDS = {**count_words(SENTENCES), "ħaha": 3, "qualmqualm": 9}
KEYS = sentence_keys(7, np.arange(len(SENTENCES)))


def train(**options: object) -> SentencePieces:
    model, options = io.BytesIO(), {"model_type": "bpe", **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, minloglevel=2, **options
    )
    return SentencePieces(model.getvalue())


def rare_pieces_cut(byte_fallback: bool) -> SentencePieces:
    settings = SubwordSettings(byte_fallback=byte_fallback, character_coverage=1.0)
    model = learning.train(WORDS, settings, vocab_size=700)
    return SentencePieces(cut(model, piece_counts(model, WORDS), 12))


MODELS = {
    "cut": rare_pieces_cut(byte_fallback=True),
    "cut, no bytes": rare_pieces_cut(byte_fallback=False),
    "theirs": train(vocab_size=300),
    "theirs, across spaces": train(vocab_size=300, split_by_whitespace=False),
    "theirs, with symbols": train(vocab_size=300, user_defined_symbols=["<sep>", "og"], byte_fallback=False),
}

words = st.lists(
    st.text(max_size=6)
    | st.sampled_from(["dog", "haus", "Katze", "Schlüssel", "<sep>", "og", "<0x41>", "ħ", "ħah", "qualm", "漢", "</s>"])
).map("".join)


@pytest.mark.parametrize("kind", MODELS)
@given(text=words)
def test_without_a_skip_it_is_the_encoding_of_sentencepiece(kind: str, text: str) -> None:
    model = MODELS[kind]
    line = " ".join(text.replace("▁", " ").split()).encode("utf-8", "replace").decode()
    written = sentencepiece.SentencePieceProcessor(model_proto=model.model).normalize(line)
    ids, merges = model._merges.segment(written, ())
    assert ids == array("I", SentencePieces(model.model).encode_lines([line])[0]).tolist()
    assert merges < max(1, len(written))


@pytest.mark.parametrize("kind", MODELS)
def test_a_sentence_that_drops_nothing_keeps_its_ids(kind: str) -> None:
    tokenizer = Tokenizer(MODELS[kind], Preprocessor("en"))
    usual = tokenizer.encode_batch(SENTENCES)
    assert tokenizer.with_dropout(1e-18)(usual, KEYS) == usual


def subword_nmt() -> Tokenizer:
    codes = Codes(["#version: 0.2", "t h", "th e</w>", "d o", "do g</w>", "o g</w>", "h e</w>", "s e", "se es</w>"])
    counts = count_symbols(codes, {**count_words(SENTENCES), **dict.fromkeys("thedogs", 9)})
    symbols = {*vocabulary(counts, 1), *(f"{letter}{end}" for letter in "".join(SENTENCES) for end in ("", "@@"))}
    return Tokenizer(SubwordNmt(codes, sorted({*symbols, "do@@", "th@@", "se@@", "og", "he"})), Preprocessor("en"))


def tokenizer_of(kind: str) -> Tokenizer:
    return subword_nmt() if kind == "subword-nmt" else Tokenizer(MODELS[kind], Preprocessor("en"), ["<bt>"])


@pytest.mark.parametrize("kind", ["cut", "theirs", "theirs, across spaces", "theirs, with symbols", "subword-nmt"])
def test_the_text_stays_and_the_key_alone_decides(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = tokenizer_of(kind).encode_batch(SENTENCES)
    sampled = tokenizer_of(kind).with_dropout(0.3)(usual, KEYS)
    tokenizer = tokenizer_of(kind)
    assert list(map(tokenizer.decode, sampled)) == list(map(tokenizer.decode, usual))
    assert sum(map(len, sampled)) > sum(map(len, usual))
    order = np.random.default_rng(0).permutation(len(usual))
    again = tokenizer_of(kind).with_dropout(0.3)([usual[i] for i in order], KEYS[order])
    assert again == [sampled[i] for i in order]
    other = tokenizer_of(kind).with_dropout(0.3)(usual, sentence_keys(8, np.arange(len(usual))))
    assert sum(one != two for one, two in zip(sampled, other, strict=True)) > 150
    monkeypatch.setattr(bpe_dropout, "_MAX_CACHED_CHARACTERS", 0)  # the plain way: every word merged anew
    assert tokenizer_of(kind).with_dropout(0.3)(usual, KEYS) == sampled


def test_no_symbol_becomes_unknown() -> None:
    tokenizer = tokenizer_of("cut, no bytes")
    lines = tokenizer.encode_batch(line.partition(",")[0] for line in SENTENCES)
    usual = [ids for ids in lines if tokenizer.unk_id not in ids]
    sampled = tokenizer.with_dropout(0.5)(usual, KEYS[: len(usual)])
    assert len(usual) > 100
    assert not any(tokenizer.unk_id in ids for ids in sampled)


def test_tags_stay_and_sentences_with_unknown_symbols_are_left_alone(tokenizers: TokenizerPair) -> None:
    tokenizer = tokenizers.source
    texts = ["<bt> the dog sees it", "Der Hund, ħ 漢 <0x41>", "", "<bt>"]
    ids = tokenizer.encode_batch(texts)
    resampled = tokenizer.with_dropout(0.6)([*ids, [5, 3, 6]], KEYS[:5])
    assert [tokenizer.decode(sentence) for sentence in resampled[:4]] == texts
    assert resampled[0][0] == tokenizer.opening("<bt>")[0]
    assert resampled[0] != ids[0]
    assert resampled[4] == [5, 3, 6]


def test_other_models_are_refused_by_name() -> None:
    theirs = MODELS["theirs"]
    for subwords, message in (
        (learn((WORDS, {}), SubwordSettings(subwords="unigram", vocab_size=(420,)))[0], "this one is a unigram model"),
        (train(vocab_size=60, model_type="char"), "this one is a char model"),
        (ListedPieces(theirs.model, theirs.pieces[4:]), "needs subwords learned by deepnmt prepare"),
    ):
        with pytest.raises(InputError, match=message):
            Tokenizer(subwords, Preprocessor("en")).with_dropout(0.1)([[5]], KEYS[:1])


def distribution(merge: Merge, word: str, p: float) -> dict[tuple[int, ...], float]:
    """Every segmentation of a word and its probability, by trying all sequences of skips."""
    found: Counter[tuple[int, ...]] = Counter()
    pending: list[tuple[int, ...]] = [()]
    while pending:
        skipped = pending.pop()
        ids, merges = merge(word, skipped)
        found[tuple(ids)] += p ** len(skipped) * (1 - p) ** (merges - len(skipped))  # type: ignore[assignment]
        pending += [(*skipped, next_one) for next_one in range((skipped or (-1,))[-1] + 1, merges)]
    assert sum(found.values()) == pytest.approx(1)
    return dict(found)


def assert_drawn_from(expected: dict[tuple[int, ...], float], draws: list[tuple[int, ...]]) -> None:
    counts = Counter(draws)
    assert set(counts) <= set(expected)
    chi_squared = sum((counts[k] - len(draws) * p) ** 2 / (len(draws) * p) for k, p in expected.items())
    freedom = len(expected) - 1
    assert chi_squared < freedom + 5 * (2 * freedom) ** 0.5 + 10


def sample(merge: Merge, word: str, p: float, count: int) -> list[tuple[int, ...]]:
    drawn = BpeDropout(merge, p).segment([[word]] * count, sentence_keys(3, np.arange(count)))
    return list(map(tuple, drawn))


@pytest.mark.parametrize("word", ["▁Montag", "▁neighbour,"])
@pytest.mark.parametrize("p", [0.1, 0.4])
def test_segmentations_come_as_often_as_they_should_and_as_those_of_sentencepiece(word: str, p: float) -> None:
    model = MODELS["theirs"]
    expected = distribution(model._merges.segment, word, p)
    assert_drawn_from(expected, sample(model._merges.segment, word, p, 4000))
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.model)
    drawn = processor.encode([word[1:]] * 4000, enable_sampling=True, alpha=p, nbest_size=-1, num_threads=1)
    assert_drawn_from(expected, [tuple(model._ours[number] for number in ids) for ids in drawn])


@pytest.mark.parametrize("p", [0.1, 0.4])
def test_segmentations_come_as_often_as_those_of_subword_nmt(p: float) -> None:
    merges = ["l o", "lo w</w>", "n e", "ne w", "new e", "s t</w>", "e w", "w e", "a a", "aa a"]
    codes = Codes(["#version: 0.2", *merges])
    numbers: dict[str, int] = {}

    def merge(word: str, skips: Iterable[int]) -> tuple[list[int], int]:
        symbols, count = codes.segment(word, skips)
        return [numbers.setdefault(symbol, 10 + len(numbers)) for symbol in symbols], count

    expected = {word: distribution(merge, word, p) for word in ("newest", "lowlow", "aaaaa")}
    for word, probabilities in expected.items():
        assert_drawn_from(probabilities, sample(merge, word, p, 4000))
    pytest.importorskip("subword_nmt")
    from subword_nmt.apply_bpe import BPE

    theirs = BPE(io.StringIO("\n".join(["#version: 0.2", *merges])))
    for word, probabilities in expected.items():
        drawn = [tuple(numbers[s] for s in theirs.segment_tokens([word], dropout=p)) for _ in range(4000)]
        assert_drawn_from(probabilities, drawn)


EPOCH = """
import hashlib
from pathlib import Path
from deepnmt.data.batching import BatchingConfig, BatchStream
from deepnmt.data.dataset import Dataset

def epoch(folder, rank, world_size, position=0):
    config = BatchingConfig(tokens_per_batch=256, bpe_dropout=0.2, layout="packed")
    ranks = {"rank": rank, "world_size": world_size}
    stream = BatchStream.of(Dataset.open(Path(folder)), config, seed=5, tokens_per_update=512, **ranks)
    digest, lines = hashlib.sha256(), []
    for index in range(position, stream.updates_per_epoch(1)):
        update = stream.update(1, index)
        lines.append(f"{index} {update.num_target_tokens} {update.num_source_tokens}")
        for batch in update.batches:
            digest.update(batch.source.numpy().tobytes() + batch.target_output.numpy().tobytes())
    return [*lines, digest.hexdigest()]
"""


def test_every_process_rank_and_resumed_run_sees_the_same(tmp_path: Path) -> None:
    source, target = write_pairs(tmp_path, "train", english_german(300))
    deepnmt.prepare(
        source=source,
        target=target,
        out=tmp_path / "data",
        source_lang="en",
        target_lang="de",
        vocab_size=400,
        workers=1,
    )
    names: dict[str, Callable[..., list[str]]] = {}
    exec(EPOCH, names)
    whole = names["epoch"](tmp_path / "data", 0, 1)
    assert len(whole) > 10
    assert names["epoch"](tmp_path / "data", 0, 1, 5)[:-1] == whole[5:-1]
    first, second = (names["epoch"](tmp_path / "data", rank, 2) for rank in (0, 1))
    assert first[:-1] == second[:-1] == whole[:-1]
    script = f"{EPOCH}\nprint(*epoch({str(tmp_path / 'data')!r}, 1, 2), sep='\\n')"
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:-1] == second
