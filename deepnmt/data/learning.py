"""The tokenisers of a dataset: learned from word counts, or given by the user."""

import io
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from deepnmt.data.piece_merges import NORMAL, UNUSED
from deepnmt.data.prepare_settings import SubwordSettings
from deepnmt.data.sentence_pieces import SPACE, SentencePieces, message_of
from deepnmt.data.subword_nmt import Codes, SubwordNmt, count_symbols, vocabulary
from deepnmt.data.subwords import Subwords
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES, UNK
from deepnmt.errors import InputError, RunError

Words = Mapping[str, int]  # a word and its count
_COUNTED_AT_ONCE = 50_000
_TRAINING_THREADS = 16  # fixed: the sums of a unigram model depend on it in the last digits


def learn(words: Sequence[Words], settings: SubwordSettings) -> Sequence[Subwords]:
    """Learn the SentencePiece models of both sides, or one for both if joint."""
    if settings.joint:
        return 2 * [_learn_one(Counter(words[0]) + Counter(words[1]), settings, settings.vocab_size[0])]
    return [_learn_one(words[i], settings, settings.vocab_size[i]) for i in (0, -1)]


def _learn_one(words: Words, settings: SubwordSettings, vocab_size: int) -> Subwords:
    model = train(words, settings, vocab_size)
    if settings.min_frequency > 1:
        model = cut(model, piece_counts(model, words), settings.min_frequency)
    return SentencePieces(model)


def train(words: Words, settings: SubwordSettings, vocab_size: int) -> bytes:
    """Learn a model from word counts, the same as from the lines themselves because pieces never cross a space."""
    model = io.BytesIO()
    special: dict[str, Any] = {"bos_id": BOS, "pad_id": PAD, "eos_id": EOS, "unk_id": UNK}
    special |= {f"{name[:3]}_piece": SPECIAL_PIECES[number] for name, number in special.items()}
    with tempfile.TemporaryDirectory() as folder:
        counted = Path(folder) / "words.tsv"
        with counted.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{word}\t{words[word]}\n" for word in sorted(words))
        try:
            sentencepiece.SentencePieceTrainer.train(
                input=str(counted),
                input_format="tsv",
                model_writer=model,
                model_type=settings.subwords,
                vocab_size=vocab_size,
                hard_vocab_limit=False,
                byte_fallback=settings.byte_fallback,
                character_coverage=settings.character_coverage,
                normalization_rule_name="identity",
                max_sentence_length=1 << 24,
                num_threads=_TRAINING_THREADS,
                **special,
                minloglevel=2,
            )
        except (RuntimeError, OSError) as error:
            if "required_chars" not in str(error):
                raise RunError(f"SentencePiece could not learn subwords: {error}") from error
            raise InputError(
                f"a vocabulary of {vocab_size:,} is too small for the number of distinct characters in this text; "
                "use a larger --vocab-size or a smaller --character-coverage"
            ) from error
    message = message_of(model.getvalue())
    del message.trainer_spec.input[:]  # the name of the temporary file
    return bytes(message.SerializeToString())


def piece_counts(model: bytes, words: Words) -> dict[str, int]:
    """The count of each piece in a text with these words."""
    pieces = SentencePieces(model)
    totals = np.zeros(len(pieces.pieces), np.int64)
    listed = list(words)
    for start in range(0, len(listed), _COUNTED_AT_ONCE):
        batch = listed[start : start + _COUNTED_AT_ONCE]
        encoded = pieces.encode_lines(batch)
        ids = np.frombuffer(b"".join(encoded), np.uint32)
        times = np.repeat([words[word] for word in batch], [len(one) // 4 for one in encoded])
        np.add.at(totals, ids, times)
    return dict(zip(pieces.pieces, totals.tolist(), strict=True))


def cut(model: bytes, counts: Words, min_frequency: int) -> bytes:
    """The model without normal pieces that occur fewer than `min_frequency` times.

    A longer piece is marked unused, so that SentencePiece splits it further; a single character is removed, so that it
    falls back to bytes or, in a model without bytes, becomes unknown. The space symbol always stays.
    """
    message = message_of(model)
    for number, piece in reversed(list(enumerate(message.pieces))):
        if piece.type == NORMAL and piece.piece != SPACE and counts.get(piece.piece, 0) < min_frequency:
            if len(piece.piece) == 1:
                del message.pieces[number]
            else:
                piece.type = UNUSED
    return bytes(message.SerializeToString())


def from_codes(codes: Sequence[Codes], words: Sequence[Words], settings: SubwordSettings) -> Sequence[Subwords]:
    """The subwords of subword-nmt codes with the vocabulary of this text, shared by both sides if joint."""
    counts = [count_symbols(one, side) for one, side in zip(codes, words, strict=True)]
    if settings.joint:
        if codes[0].lines != codes[1].lines:
            raise InputError("a joint vocabulary needs the same codes on both sides; use joint = false (--separate)")
        return 2 * [SubwordNmt(codes[0], vocabulary(counts[0] + counts[1], settings.min_frequency))]
    return [
        SubwordNmt(one, vocabulary(counted, settings.min_frequency)) for one, counted in zip(codes, counts, strict=True)
    ]


def given(paths: Sequence[Path], preprocessors: Sequence[Preprocessor], tags: tuple[str, ...]) -> TokenizerPair:
    """Load the tokenisers of a DATASET or MODEL folder (of either direction), or of one or two files."""
    if len(paths) == 1 and paths[0].is_dir():
        return _of_folder(paths[0], (preprocessors[0].language, preprocessors[1].language), tags)
    return TokenizerPair(*(_of_file(paths[i], preprocessors[i], tags) for i in (0, -1)))


def _of_folder(folder: Path, wanted: tuple[str, str], tags: tuple[str, ...]) -> TokenizerPair:
    pair = TokenizerPair.load(folder)
    if pair.is_multilingual:
        pair = pair.for_languages(*wanted)
    found = (pair.source.language, pair.target.language)
    if found == (wanted[1], wanted[0]) != wanted:
        pair, found = TokenizerPair(pair.target, pair.source), wanted
    if found != wanted:
        raise InputError(f"the tokenisers of {folder} are for {' to '.join(found)}, not {' to '.join(wanted)}")
    return TokenizerPair(*(_with_tags(tokenizer, tags) for tokenizer in pair.sides.values()))


def _of_file(path: Path, preprocessor: Preprocessor, tags: tuple[str, ...]) -> Tokenizer:
    if path.is_dir():
        raise InputError(f"{path} is a folder; give one folder with both tokenisers, or two files")
    if path.suffix == ".json":
        return _with_tags(Tokenizer.load(path), tags)
    return Tokenizer(SentencePieces.read(path), preprocessor, tags)


def _with_tags(tokenizer: Tokenizer, tags: tuple[str, ...]) -> Tokenizer:
    """Append new tags to the vocabulary, so that existing ids keep their meaning."""
    new = [tag for tag in tags if tag not in tokenizer.tags]
    return replace(tokenizer, tags=[*tokenizer.tags, *new], ends=True)  # as datasets are written
