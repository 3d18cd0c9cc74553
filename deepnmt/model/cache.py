"""The cache of incremental decoding: a value passed into each step and returned by it.

The keys and values of all hypotheses of a sentence share one row of slots, a slot for each hypothesis at each position.
When a search reorders its hypotheses, no keys or values are copied; only the table of ancestors changes. Each
hypothesis attends to the slots of its own ancestors. Hypotheses of a beam share most ancestors, so slots without
descendants are dropped from time to time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepnmt.model.attention import KeysValues, Visibility
from deepnmt.model.positions import RelativePositions

COMPACT_EVERY = 16  # positions
WORTH_KEEPING = 0.7  # share of used slots above which dropping the others is not worth it


@dataclass(frozen=True)
class Cache:
    """The slots of B sentences of K hypotheses each, and the keys and values of their sources.

    Keys and values are (B, heads, slots, head_dim), as a step reads them. Masks are 0 where a hypothesis may attend and
    -inf elsewhere. Slots are written in place if there is room, so a cache must not be used again after a step.
    """

    past: list[KeysValues]  # for each decoder layer
    lineage: Tensor  # (B, K, slots): 0 where the slot belongs to an ancestor of the hypothesis
    memory: list[KeysValues]  # for each decoder layer, a slot for each source position
    source_mask: Tensor  # (B, 1, 1, source length): -inf at padding
    filled: int = 0  # slots in use
    length: int = 0  # positions decoded
    places: Tensor | None = None  # (B, 1, slots): the position of each slot, where relative positions ask for it
    need_attention: bool = False
    attention: Tensor | None = None  # (B * K, source length): attention of the last step, if requested

    @property
    def beam(self) -> int:
        return self.lineage.shape[1]

    def reorder(self, rows: Tensor) -> "Cache":
        """The cache in which row i continues row rows[i]. Row = sentence * K + k; rows stay in their sentence."""
        if self.beam == 1:
            return self
        return replace(self, lineage=self.lineage.flatten(0, 1).index_select(0, rows).view_as(self.lineage))

    def select(self, sentences: Tensor) -> "Cache":
        """The cache of these sentences only."""

        def choose(part: Tensor) -> Tensor:
            chosen = part.new_empty(len(sentences), *part.shape[1:])
            chosen[:, :, : self.filled] = part[:, :, : self.filled][sentences]
            return chosen

        memory = [KeysValues(*(part[sentences] for part in layer)) for layer in self.memory]
        return replace(self._changed(choose), memory=memory, source_mask=self.source_mask[sentences])

    def narrowed(self) -> "Cache":
        """With one hypothesis of each sentence, before the first step: there all hypotheses are still the same."""
        return replace(self, lineage=self.lineage[:, :1])

    def widened(self, beam: int) -> "Cache":
        """With `beam` hypotheses that have the one of each sentence as their ancestor."""
        return replace(self, lineage=self.lineage.expand(-1, beam, -1).contiguous())

    def compact(self) -> "Cache":
        """Drop unused slots if there are many. This makes the host wait for the device."""
        if self.beam == 1 or self.length == 0 or self.length % COMPACT_EVERY:
            return self
        used = (self.lineage[:, :, : self.filled] == 0).any(1)
        most = int(used.sum(1).max())
        if most >= WORTH_KEEPING * self.filled:
            return self
        # Sentences that use fewer slots than the one that uses most keep some unused ones.
        kept = used.byte().argsort(dim=1, descending=True, stable=True)[:, :most]

        def move(part: Tensor) -> Tensor:
            index = kept.view(len(kept), 1, most, *[1] * (part.ndim - 3)).expand(-1, part.shape[1], -1, *part.shape[3:])
            part[:, :, :most] = part.gather(2, index)
            return part

        return replace(self._changed(move), filled=most)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> "Cache":
        """With every part that has slots, as its third axis, changed by this function."""
        past = [KeysValues(*map(change, layer)) for layer in self.past]
        places = None if self.places is None else change(self.places)
        return replace(self, past=past, lineage=change(self.lineage), places=places)


class PastVisibility(Visibility):
    """New positions, one of each hypothesis, see their ancestors and themselves; `past` is what the next step sees."""

    def __init__(self, past: KeysValues, filled: int, lineage: Tensor, places: Tensor | None = None) -> None:
        """lineage: (B, K, slots) and places: (B, 1, slots), the new ones included"""
        self.past, self.filled, self.beam = past, filled, lineage.shape[1]
        self.mask = lineage[:, None] if self.beam > 1 else None
        self.places = places

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        """query and seen: (B * K, heads, head_dim)"""
        attended, _ = attend_slots(fold(query, self.beam), self._grown(seen), self.mask)
        return attended.reshape(query.shape).to(query.dtype)

    def attend_relatively(self, projected: Tensor, relative: RelativePositions, dropout: float) -> Tensor:
        """projected: (B * K, 3, heads, head_dim)"""
        assert self.places is not None
        query, *seen = projected.unbind(1)
        rows = relative.rows(self.places - self.places[:, :, -1:]).unsqueeze(1)
        attended = relative.attend(fold(query, self.beam), *self._grown(KeysValues(*seen)), rows, self.mask, 0.0)
        return attended.transpose(1, 2).reshape(query.shape).to(query.dtype)

    def _grown(self, new: KeysValues) -> KeysValues:
        """The slots in use, after the new ones have joined `past`."""
        keys, values = (fold(part, self.beam) for part in new)
        self.past = KeysValues(put(self.past.keys, keys, self.filled), put(self.past.values, values, self.filled))
        return KeysValues(*(part[:, :, : self.filled + self.beam] for part in self.past))


class MemoryVisibility(Visibility):
    """The hypotheses of a sentence see its source."""

    def __init__(self, source_mask: Tensor, beam: int, need_weights: bool = False) -> None:
        self.mask, self.beam, self.need_weights = source_mask, beam, need_weights
        self.weights: Tensor | None = None

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        """query: (B * K, heads, head_dim)"""
        attended, weights = attend_slots(fold(query, self.beam), seen, self.mask)
        if self.need_weights:
            self.weights = weights.float().mean(1).flatten(0, 1)
        return attended.reshape(query.shape).to(query.dtype)


def attend_slots(query: Tensor, slots: KeysValues, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """query: (B, heads, K, head_dim) -> (B, K, heads, head_dim) and the weights (B, heads, K, slots).

    As `attend_padded`, for few queries, and with the weights at hand.
    """
    dtype, scale = slots.keys.dtype, query.shape[-1] ** -0.5
    # With the many slots as rows, a CPU's product is up to a third faster than with the few queries.
    products = (slots.keys @ query.to(dtype).contiguous().transpose(2, 3)).transpose(2, 3)
    scores = products * scale if mask is None else torch.add(mask, products, alpha=scale)
    weights = scores.softmax(-1, dtype=torch.promote_types(dtype, torch.float32)).to(dtype)
    return (weights @ slots.values).transpose(1, 2), weights


def fold(rows: Tensor, beam: int) -> Tensor:
    """(B * K, heads, head_dim) -> (B, heads, K, head_dim)"""
    return rows.unflatten(0, (-1, beam)).transpose(1, 2)


def put(slots: Tensor, new: Tensor, filled: int) -> Tensor:
    """The slots (third axis) with new ones behind the first `filled`: in place if there is room, else in a copy."""
    end = filled + new.shape[2]
    if end > slots.shape[2]:
        return torch.cat([slots[:, :, :filled], new.to(slots.dtype)], dim=2)
    slots[:, :, filled:end] = new
    return slots
