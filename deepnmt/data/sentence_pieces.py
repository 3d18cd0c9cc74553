"""Subwords by SentencePiece: training from word counts, the vocabulary cut-off, ids in our order, encoding by words.

A model file of SentencePiece is a protobuf message; the few bytes of it that the cut-off changes are edited here,
so that the result is still a model that every SentencePiece reads.
"""

import base64
import io
import re
import struct
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from deepnmt.data.bpe_dropout import BpeDropout, Keys
from deepnmt.data.prepare_settings import SubwordSettings
from deepnmt.data.sentencepiece_bpe import NORMAL, UNUSED, PieceMerges
from deepnmt.data.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES, UNK
from deepnmt.errors import InputError, RunError

SPACE = "\u2581"
_MAX_CACHED_WORDS = 200_000
_COUNTED_AT_ONCE = 50_000
# Numbers of SentencePiece's message format (sentencepiece_model.proto).
_PIECES, _TRAINER = 1, 2
_TRAINER_INPUT, _TRAINER_MODEL_TYPE, _UNIGRAM, _BPE = 1, 3, 1, 2
_TRAINING_THREADS = 16  # fixed: the sums of a unigram model depend on it in the last digits
_WORD = re.compile(f"{SPACE}?[^{SPACE}]+|{SPACE}")


class SentencePieces:
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
        self.pieces = [*SPECIAL_PIECES, *(processor.id_to_piece(number) for number in self._theirs)]
        self._ours = [UNK] * processor.get_piece_size()
        for number, theirs in enumerate(self._theirs, start=len(SPECIAL_PIECES)):
            self._ours[theirs] = number
        self._by_word = self._words_are_independent()
        self._cache: dict[str, bytes] = {}
        self._dropout: BpeDropout | None = None

    def _words_are_independent(self) -> bool:
        """Whether words can be encoded one by one: then each is encoded once and cached, which is much faster."""
        if any(SPACE in piece[1:] for piece in self.pieces):
            return False
        first, second, both = self._processor.encode(["a", "b", "a b"], num_threads=1)
        return bool(first + second == both)

    def encode_lines(self, lines: Iterable[str]) -> list[bytes]:
        """The ids of each line (with single spaces) as bytes of native unsigned ints."""
        split = [line.split(" ") for line in lines] if self._by_word else [[line] for line in lines]
        if len(self._cache) > _MAX_CACHED_WORDS:
            self._cache = {}  # not cleared: other threads may be reading the old one
        cache = self._cache
        new = list({word for words in split for word in words if word not in cache})
        for word, ids in zip(new, self._processor.encode(new, num_threads=1), strict=True):
            cache[word] = array("I", [self._ours[number] for number in ids]).tobytes()
        return [b"".join(map(cache.__getitem__, words)) for words in split]

    def resample(self, sentences: Sequence[Sequence[int]], keys: Keys, dropout: float) -> list[list[int]]:
        """The sentences segmented again by BPE-dropout, each decided by its key. None may have an unknown symbol."""
        if self._dropout is None or self._dropout.p != dropout:
            self._dropout = BpeDropout(self._merges.segment, dropout)
        texts = [b"".join(map(self._spelling.__getitem__, ids)).decode("utf-8") for ids in sentences]
        return self._dropout.segment([_WORD.findall(text) if self._by_word else [text] for text in texts], keys)

    @cached_property
    def _merges(self) -> PieceMerges:
        if _model_type(self.model) != _BPE:
            raise InputError(
                "BPE-dropout needs a BPE tokeniser; this one is a unigram model (prepare with --subwords bpe)"
            )
        pieces = (_read_piece(content) for field, _, content in _fields(self.model) if field == _PIECES)
        return PieceMerges(pieces, {piece: number for number, piece in enumerate(self.pieces)})

    @cached_property
    def _spelling(self) -> list[bytes]:
        special = len(SPECIAL_PIECES)
        is_byte = [False] * special + [self._processor.is_byte(theirs) for theirs in self._theirs]
        return [
            bytes([int(piece[3:5], 16)]) if byte else piece.encode("utf-8")
            for piece, byte in zip(self.pieces, is_byte, strict=True)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        theirs = self._theirs
        special = len(SPECIAL_PIECES)
        unknown = self._processor.unk_id()
        return str(self._processor.decode([theirs[i - special] if i >= special else unknown for i in ids]))

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


def train(words: Mapping[str, int], settings: SubwordSettings, vocab_size: int) -> bytes:
    """A model of the text with these word counts: the same as from its lines, since pieces never cross a space."""
    model = io.BytesIO()
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
                bos_id=BOS,
                pad_id=PAD,
                eos_id=EOS,
                unk_id=UNK,
                bos_piece=SPECIAL_PIECES[BOS],
                pad_piece=SPECIAL_PIECES[PAD],
                eos_piece=SPECIAL_PIECES[EOS],
                unk_piece=SPECIAL_PIECES[UNK],
                minloglevel=2,
            )
        except (RuntimeError, OSError) as error:
            raise _refusal(str(error), vocab_size) from error
    return _without_environment(model.getvalue())


def _refusal(message: str, vocab_size: int) -> Exception:
    if "smaller than required_chars" in message or "required_chars" in message:
        return InputError(
            f"a vocabulary of {vocab_size:,} is too small for the different characters of this text; "
            "use a larger --vocab-size or a smaller --character-coverage"
        )
    return RunError(f"SentencePiece could not learn subwords: {message}")


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
    edited = io.BytesIO()
    for field, wire, content in _fields(model):
        if field == _PIECES:
            piece, score, kind = _read_piece(content)
            if kind == NORMAL and piece != SPACE and counts.get(piece, 0) < min_frequency:
                if len(piece) == 1:
                    continue
                content = _write_piece(piece, score, UNUSED)
        edited.write(_field(field, wire, content))
    return edited.getvalue()


def _without_environment(model: bytes) -> bytes:
    """The model without the name of the temporary file it was learnt from."""
    edited = io.BytesIO()
    for field, wire, content in _fields(model):
        if field == _TRAINER:
            content = b"".join(_field(*inner) for inner in _fields(content) if inner[0] != _TRAINER_INPUT)
        edited.write(_field(field, wire, content))
    return edited.getvalue()


def _model_type(model: bytes) -> int:
    for field, _, content in _fields(model):
        if field == _TRAINER:
            for inner, wire, value in _fields(content):
                if inner == _TRAINER_MODEL_TYPE and wire == 0:
                    return _read_varint(value, 0)[0]
    return _UNIGRAM


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(field number, wire type, raw content) of each field of a protobuf message."""
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        wire = tag & 7
        if wire == 2:
            size, position = _read_varint(message, position)
            end = position + size
        elif wire == 0:
            end = _read_varint(message, position)[1]
        else:
            end = position + {5: 4, 1: 8}[wire]
        yield tag >> 3, wire, message[position:end]
        position = end


def _read_piece(content: bytes) -> tuple[str, float, int]:
    piece, score, kind = "", 0.0, NORMAL
    for field, _, value in _fields(content):
        if field == 1:
            piece = value.decode("utf-8")
        elif field == 2:
            score = struct.unpack("<f", value)[0]
        elif field == 3:
            kind = _read_varint(value, 0)[0]
    return piece, score, kind


def _write_piece(piece: str, score: float, kind: int) -> bytes:
    text = piece.encode("utf-8")
    return _tag(1, 2) + _varint(len(text)) + text + _tag(2, 5) + struct.pack("<f", score) + _tag(3, 0) + _varint(kind)


def _field(field: int, wire: int, content: bytes) -> bytes:
    return _tag(field, wire) + (_varint(len(content)) if wire == 2 else b"") + content


def _tag(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[position]
        position += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, position
