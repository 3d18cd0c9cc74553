"""Subwords of a SentencePiece model, under ids of our own."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import sentencepiece

from deepnmt.data.piece_merges import PieceMerges
from deepnmt.data.subwords import Subwords
from deepnmt.data.vocabulary import SPECIAL_PIECES, UNK
from deepnmt.errors import InputError

SPACE = "\u2581"
_WORD = re.compile(f"{SPACE}?[^{SPACE}]+|{SPACE}")


class _SentencePieceModel(Subwords):
    """A model file, and how it is stored."""

    def __init__(self, model: bytes) -> None:
        super().__init__()
        self.model = model
        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise InputError("not a SentencePiece model") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return self.from_state, (self.state(),)

    def state(self) -> dict[str, Any]:
        return {"model": base64.b64encode(self.model).decode("ascii")}

    @classmethod
    def read(cls, path: Path, *listed: list[str]) -> Self:
        try:
            return cls(path.read_bytes(), *listed)
        except FileNotFoundError as error:
            raise InputError(f"{path} does not exist") from error
        except IsADirectoryError as error:
            raise InputError(f"{path} is a folder; name the .model file in it") from error
        except InputError as error:
            raise InputError(f"{path} is {error}") from error


class SentencePieces(_SentencePieceModel):
    """Ids are the special ones, then every usable piece in the model's order."""

    kind = "sentencepiece"

    def __init__(self, model: bytes) -> None:
        super().__init__(model)
        processor = self._processor
        self._theirs = [
            number
            for number in range(processor.get_piece_size())
            if not (processor.is_control(number) or processor.is_unknown(number) or processor.is_unused(number))
        ]
        self.pieces = [*SPECIAL_PIECES, *map(processor.id_to_piece, self._theirs)]
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

    def words(self, ids: Sequence[int]) -> list[str]:
        text = b"".join(map(self._spelling.__getitem__, ids)).decode("utf-8")
        return _WORD.findall(text) if self._by_word else [text]

    @cached_property
    def _merges(self) -> PieceMerges:
        message = message_of(self.model)
        kind = message.trainer_spec.ModelType.Name(message.trainer_spec.model_type).lower()
        if kind != "bpe":
            raise InputError(
                f"BPE-dropout needs a BPE tokeniser; this one is a {kind} model (prepare with --subwords bpe)"
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

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "SentencePieces":
        return cls(base64.b64decode(state["model"]))


class ListedPieces(_SentencePieceModel):
    """SentencePiece segments and a list numbers the pieces, as in fairseq, Marian and M2M100; others are unknown."""

    kind = "sentencepiece-list"

    def __init__(self, model: bytes, listed: list[str]) -> None:
        super().__init__(model)
        self.listed, self.pieces = listed, [*SPECIAL_PIECES, *listed]
        self._ids = {piece: number for number, piece in enumerate(listed, start=len(SPECIAL_PIECES))}

    def has_piece(self, symbol: str) -> bool:
        """True for a piece of the model; a list may have more symbols."""
        return bool(self._processor.piece_to_id(symbol) != self._processor.unk_id())

    def _units(self, line: str) -> list[str]:
        return [line]

    def _encode(self, words: list[str]) -> Iterable[Iterable[int]]:
        segmented = self._processor.encode(words, out_type=str, num_threads=1)
        return ([self._ids.get(piece, UNK) for piece in pieces] for pieces in segmented)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._processor.decode_pieces([self.pieces[number] for number in ids]))

    def state(self) -> dict[str, Any]:
        return {**super().state(), "vocabulary": self.listed}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "ListedPieces":
        return cls(base64.b64decode(state["model"]), state["vocabulary"])


def message_of(model: bytes) -> Any:
    """The parsed content of a model file, needed to learn subwords, for BPE-dropout and for exports."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

    return ModelProto.FromString(model)
