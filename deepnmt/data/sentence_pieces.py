"""Subwords by SentencePiece: training from word counts, the vocabulary cut-off, ids in our order, encoding by words."""

import base64
import io
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from deepnmt.data.piece_merges import NORMAL, UNUSED, PieceMerges
from deepnmt.data.prepare_settings import SubwordSettings
from deepnmt.data.subwords import Subwords
from deepnmt.data.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES, UNK
from deepnmt.errors import InputError, RunError

SPACE = "\u2581"
_COUNTED_AT_ONCE = 50_000
_BPE = 2  # the type of a model in SentencePiece's message format
_TRAINING_THREADS = 16  # fixed: the sums of a unigram model depend on it in the last digits
_WORD = re.compile(f"{SPACE}?[^{SPACE}]+|{SPACE}")


class SentencePieces(Subwords):
    """A SentencePiece model whose ids are ours: the special ones, then every usable piece in the model's order."""

    kind = "sentencepiece"

    def __init__(self, model: bytes) -> None:
        self.model = model
        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise InputError(f"not a SentencePiece model: {error}") from error
        processor = self._processor
        self._theirs = [
            number
            for number in range(processor.get_piece_size())
            if not (processor.is_control(number) or processor.is_unknown(number) or processor.is_unused(number))
        ]
        super().__init__([*SPECIAL_PIECES, *map(processor.id_to_piece, self._theirs)])
        self._ours = [UNK] * processor.get_piece_size()
        for number, theirs in enumerate(self._theirs, start=len(SPECIAL_PIECES)):
            self._ours[theirs] = number
        # Words that can be encoded one by one are encoded once and cached, which is much faster.
        first, second, both = processor.encode(["a", "b", "a b"], num_threads=1)
        self._by_word = first + second == both and not any(SPACE in piece[1:] for piece in self.pieces)

    def _units(self, line: str) -> list[str]:
        return line.split() if self._by_word else [line]

    def _encode(self, words: list[str]) -> Iterable[Iterable[int]]:
        encoded = self._processor.encode(words, num_threads=1)
        return (map(self._ours.__getitem__, ids) for ids in encoded)

    def merge(self, word: str, skips: Iterable[int]) -> tuple[list[int], int]:
        return self._merges.segment(word, skips)

    def _words(self, ids: Sequence[int]) -> list[str]:
        text = b"".join(map(self._spelling.__getitem__, ids)).decode("utf-8")
        return _WORD.findall(text) if self._by_word else [text]

    @cached_property
    def _merges(self) -> PieceMerges:
        message = message_of(self.model)
        if message.trainer_spec.model_type != _BPE:
            raise InputError(
                "BPE-dropout needs a BPE tokeniser; this one is a unigram model (prepare with --subwords bpe)"
            )
        pieces = [(piece.piece, piece.score, piece.type) for piece in message.pieces]
        return PieceMerges(pieces, {piece: number for number, piece in enumerate(self.pieces)})

    @cached_property
    def _spelling(self) -> list[bytes]:
        pieces = zip(self.pieces[len(SPECIAL_PIECES) :], self._theirs, strict=True)
        return [piece.encode("utf-8") for piece in SPECIAL_PIECES] + [
            bytes([int(piece[3:5], 16)]) if self._processor.is_byte(theirs) else piece.encode("utf-8")
            for piece, theirs in pieces
        ]

    def decode(self, ids: Sequence[int]) -> str:
        special, unknown = len(SPECIAL_PIECES), self._processor.unk_id()
        return str(self._processor.decode([self._theirs[i - special] if i >= special else unknown for i in ids]))

    def __reduce__(self) -> tuple[type["SentencePieces"], tuple[bytes]]:
        return SentencePieces, (self.model,)

    def state(self) -> dict[str, Any]:
        return {"model": base64.b64encode(self.model).decode("ascii")}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "SentencePieces":
        return cls(base64.b64decode(state["model"]))

    @classmethod
    def read(cls, path: Path) -> "SentencePieces":
        try:
            return cls(path.read_bytes())
        except InputError as error:
            raise InputError(f"{path} is {error}") from error


def message_of(model: bytes) -> Any:
    """The content of a model file. Imported late: only learning subwords, BPE-dropout and export look into it."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

    return ModelProto.FromString(model)


def train(words: Mapping[str, int], settings: SubwordSettings, vocab_size: int) -> bytes:
    """A model of the text with these word counts: the same as from its lines, since pieces never cross a space."""
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
                f"a vocabulary of {vocab_size:,} is too small for the different characters of this text; "
                "use a larger --vocab-size or a smaller --character-coverage"
            ) from error
    message = message_of(model.getvalue())
    del message.trainer_spec.input[:]  # the name of the temporary file
    return bytes(message.SerializeToString())


def piece_counts(model: bytes, words: Mapping[str, int]) -> dict[str, int]:
    """How often each piece is used to write a text with these words."""
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


def cut(model: bytes, counts: Mapping[str, int], min_frequency: int) -> bytes:
    """The model without normal pieces that occur fewer than `min_frequency` times.

    A longer piece is marked unused, which makes SentencePiece split it further; a single character is taken out, so
    that it falls back to bytes or, in a model without bytes, becomes unknown. The sign for a space always stays.
    """
    message = message_of(model)
    for number, piece in reversed(list(enumerate(message.pieces))):
        if piece.type == NORMAL and piece.piece != SPACE and counts.get(piece.piece, 0) < min_frequency:
            if len(piece.piece) == 1:
                del message.pieces[number]
            else:
                piece.type = UNUSED
    return bytes(message.SerializeToString())
