"""Ids of many sentences in one tensor, and who sees whom among them."""

from typing import Protocol

import torch
from torch import Tensor

from deepnmt.model.attention import KeysValues, Visibility, attend_padded


class Sequences(Protocol):
    """Sentences laid out in some way: padded to one length, or end to end."""

    ids: Tensor
    max_length: int  # no sentence is longer

    def positions(self) -> Tensor:
        """The place of each id in its sentence, from zero; broadcastable to ids."""
        ...

    def whole(self) -> Visibility:
        """Every position sees its whole sentence."""
        ...

    def past(self) -> Visibility:
        """Every position sees itself and what came before it in its sentence."""
        ...

    def translated(self, source: "Sequences") -> Visibility:
        """Every position sees the whole sentence of `source` that it translates."""
        ...


class PaddedSequences:
    """ids: (B, S), sentences padded at their ends."""

    def __init__(self, ids: Tensor, pad_id: int) -> None:
        self.ids = ids
        self.max_length = ids.shape[1]
        self.padding = ids == pad_id  # True where there is nothing

    def positions(self) -> Tensor:
        return torch.arange(self.ids.shape[1], device=self.ids.device)

    def whole(self) -> Visibility:
        return PaddedVisibility(self.padding)

    def past(self) -> Visibility:
        return CausalVisibility()

    def translated(self, source: Sequences) -> Visibility:
        return source.whole()


class PaddedVisibility:
    """Every query of a sentence sees all keys of that sentence but the padding."""

    def __init__(self, padding: Tensor) -> None:
        self.visible = ~padding[:, None, None, :]

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        return attend_padded(query, seen, dropout, visible=self.visible)


class CausalVisibility:
    """Padding is at the end of a sentence, so no real position sees it."""

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        return attend_padded(query, seen, dropout, causal=True)
