"""Pieces of a SentencePiece model under numbers of their own, as Marian, M2M100 and NLLB have them."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sentencepiece

from deepnmt.data.subwords import Subwords
from deepnmt.data.vocabulary import SPECIAL_PIECES, UNK
from deepnmt.errors import InputError


class ListedPieces(Subwords):
    """SentencePiece segments, a list numbers; a piece that is not listed is unknown. Lines are taken as they are."""

    kind = "sentencepiece-list"

    def __init__(self, model: bytes, listed: Sequence[str]) -> None:
        super().__init__([*SPECIAL_PIECES, *listed])
        self.model = model
        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise InputError(f"not a SentencePiece model: {error}") from error
        self._ids = {piece: number for number, piece in enumerate(self.pieces) if number >= len(SPECIAL_PIECES)}

    def _units(self, line: str) -> list[str]:
        return [line]

    def _encode(self, words: list[str]) -> Iterable[Iterable[int]]:
        ids = self._ids
        segmented = self._processor.encode(words, out_type=str, num_threads=1)
        return ([ids.get(piece, UNK) for piece in pieces] for pieces in segmented)

    def merge(self, word: str, skips: Iterable[int]) -> tuple[list[int], int]:
        raise InputError("BPE-dropout needs a tokeniser that deepnmt has learnt; set batching.bpe_dropout = 0")

    def _words(self, ids: Sequence[int]) -> list[str]:
        return [self.decode(ids)]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._processor.decode_pieces([self.pieces[number] for number in ids]))

    def __reduce__(self) -> tuple[type["ListedPieces"], tuple[bytes, list[str]]]:
        return ListedPieces, (self.model, self.pieces[len(SPECIAL_PIECES) :])

    def state(self) -> dict[str, Any]:
        model = base64.b64encode(self.model).decode("ascii")
        return {"model": model, "vocabulary": self.pieces[len(SPECIAL_PIECES) :]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "ListedPieces":
        return cls(base64.b64decode(state["model"]), state["vocabulary"])
