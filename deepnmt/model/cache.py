"""What decoding step by step carries from one position to the next: a value passed into a step and out of it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepnmt.model.attention import KeysValues, Visibility, attend_padded


@dataclass(frozen=True)
class Cache:
    """The keys and values of the positions decoded so far, and those of the source.

    Rows are hypotheses, `beam` of them for each sentence: row = sentence * beam + k. What belongs to the source is kept
    once for each sentence, however wide the beam.
    """

    past: list[KeysValues]  # for each decoder layer (rows, length, heads, head_dim)
    memory: list[KeysValues]  # for each decoder layer (sentences, source length, heads, head_dim)
    padding: Tensor  # (sentences, source length), True where there is nothing
    beam: int
    length: int
    need_attention: bool
    attention: Tensor | None = None  # (rows, source length): where the last step looked, if it was asked for

    def reorder(self, rows: Tensor) -> "Cache":
        """The cache in which row i continues what row rows[i] had; rows[i] belongs to the same sentence as i."""
        return replace(self, past=[KeysValues(*(part.index_select(0, rows) for part in layer)) for layer in self.past])

    def select(self, sentences: Tensor) -> "Cache":
        """The cache of these sentences only."""
        beams = torch.arange(self.beam, device=sentences.device)
        rows = (sentences[:, None] * self.beam + beams).flatten()
        return replace(
            self.reorder(rows),
            memory=[KeysValues(*(part.index_select(0, sentences) for part in layer)) for layer in self.memory],
            padding=self.padding.index_select(0, sentences),
            attention=None if self.attention is None else self.attention.index_select(0, rows),
        )


class GrowingVisibility(Visibility):
    """A new position sees all positions before it and itself; `seen` are theirs afterwards."""

    def __init__(self, past: KeysValues) -> None:
        self.seen = past

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        self.seen = KeysValues(*(torch.cat([old, new], dim=1) for old, new in zip(self.seen, seen, strict=True)))
        return attend_padded(query, self.seen, dropout)


class BeamVisibility(Visibility):
    """The hypotheses of a sentence see that sentence's source: they are the positions of one query."""

    def __init__(self, padding: Tensor, beam: int, need_weights: bool = False) -> None:
        self.visible = ~padding[:, None, None, :]
        self.beam = beam
        self.need_weights = need_weights
        self.weights: Tensor | None = None

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        """query: (sentences * beam, 1, heads, head_dim)"""
        folded = query.reshape(-1, self.beam, *query.shape[2:])
        if self.need_weights:
            self.weights = self._weights(folded, seen.keys)
        return attend_padded(folded, seen, dropout, visible=self.visible).reshape_as(query)

    def _weights(self, query: Tensor, keys: Tensor) -> Tensor:
        """The mean over the heads of the attention weights. (sentences * beam, source length)"""
        products = torch.einsum("bthd,bshd->bhts", query.float(), keys.float()) * query.shape[-1] ** -0.5
        return products.masked_fill(~self.visible, -torch.inf).softmax(-1).mean(1).flatten(0, 1)
