"""The cache of incremental decoding: a value passed into each step and returned by it.

The keys and values of all hypotheses of a sentence share one row of slots, a slot for each hypothesis at each position.
When a search reorders its hypotheses, no keys or values are copied; only the table of ancestors changes. Each
hypothesis attends to the slots of its own ancestors. Hypotheses of a beam share most ancestors, so slots without
descendants are dropped from time to time. Samples, which are never reordered, are families of one: each has its own row
of slots, and they share only the source.

Slots come in blocks without gaps between sentences: a CPU reads them twice as fast as slots with room for more. Only
the last block grows, in a copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepnmt.model.attention import KeysValues, Visibility
from deepnmt.model.positions import RelativePositions

BLOCK_SLOTS = {"cpu": 32, "cuda": 256}  # on a GPU reading is fast and a block's kernels take time to start
COMPACT_EVERY = 16  # positions
WORTH_KEEPING = 0.7  # share of used slots above which dropping the others is not worth it

Blocks = Sequence[KeysValues]  # keys and values of each are (B, heads, slots, head_dim), as a step reads them


@dataclass(frozen=True)
class Cache:
    """The slots of F families of K hypotheses each, and the keys and values of their sources.

    The families of a sentence follow each other: a beam is one family, each sample is one. Masks are 0 where a
    hypothesis may attend and -inf elsewhere.
    """

    past: Sequence[Blocks]  # for each decoder layer
    lineage: Tensor  # (F, K, slots): 0 where the slot belongs to an ancestor of the hypothesis
    memory: list[KeysValues]  # for each decoder layer, a slot for each source position
    source_mask: Tensor  # (B, 1, 1, source length): -inf at padding
    families: int = 1  # of each sentence
    length: int = 0  # positions decoded
    places: Tensor | None = None  # (F, 1, slots): the position of each slot, for relative positions
    block_slots: int = 0  # how many a block may hold; 0: every position begins a new one

    @classmethod
    def empty(
        cls, memory: Sequence[KeysValues], padding: Tensor, beam: int, families: int, *, has_places: bool
    ) -> "Cache":
        """Nothing decoded yet. memory: (B, S, heads, head_dim) for each decoder layer; padding: (B, S)"""
        slots = [KeysValues(*(cached(part.transpose(1, 2)) for part in layer)) for layer in memory]
        # Numbers of rows come from `shape`: `len` would fix them in an ONNX graph.
        rows, mask = padding.shape[0] * families, slots[0].keys.new_zeros(padding.shape)
        return cls(
            past=[[] for _ in memory],
            lineage=mask.new_empty(rows, beam, 0),
            memory=slots,
            source_mask=mask.masked_fill(padding, -torch.inf)[:, None, None, :],
            families=families,
            places=mask.new_empty(rows, 1, 0, dtype=torch.long) if has_places else None,
            block_slots=BLOCK_SLOTS.get(padding.device.type, BLOCK_SLOTS["cpu"]),
        )

    @property
    def beam(self) -> int:
        return self.lineage.shape[1]

    def reorder(self, rows: Tensor) -> "Cache":
        """The cache in which row i continues row rows[i]. Row = family * K + k; rows stay in their family."""
        if self.beam == 1:
            return self
        return replace(self, lineage=self.lineage.flatten(0, 1).index_select(0, rows).view_as(self.lineage))

    def select(self, sentences: Tensor) -> "Cache":
        """The cache of these sentences only."""
        families = torch.arange(self.families, device=sentences.device)
        families = (sentences[:, None] * self.families + families).flatten()
        memory = [KeysValues(*(part[sentences] for part in layer)) for layer in self.memory]
        past = [[KeysValues(*(part[families] for part in block)) for block in blocks] for blocks in self.past]
        places = None if self.places is None else self.places[families]
        lineage, source_mask = self.lineage[families], self.source_mask[sentences]
        return replace(self, past=past, lineage=lineage, memory=memory, source_mask=source_mask, places=places)

    def narrowed(self) -> "Cache":
        """With one hypothesis of each sentence, before the first step: there all hypotheses are still the same."""
        return replace(self, lineage=self.lineage[:, :1])

    def widened(self, beam: int) -> "Cache":
        """With `beam` hypotheses that have the one of each sentence as their ancestor."""
        return replace(self, lineage=self.lineage.expand(-1, beam, -1).contiguous())

    def with_next_slots(self) -> "Cache":
        """With a slot for each hypothesis at the next position, which no other hypothesis sees."""
        lineage, places = self.lineage, self.places
        itself = torch.eye(self.beam, dtype=lineage.dtype, device=lineage.device).log()  # 0, elsewhere -inf
        itself = itself.expand(lineage.shape[0], -1, -1)
        if places is not None:
            places = torch.cat([places, places.new_full((places.shape[0], 1, self.beam), self.length)], dim=2)
        return replace(self, lineage=torch.cat([lineage, itself], dim=2), places=places, length=self.length + 1)

    def compact(self) -> "Cache":
        """Drop unused slots if there are many. This makes the host wait for the device."""
        if self.beam == 1 or self.length == 0 or self.length % COMPACT_EVERY:
            return self
        used = (self.lineage == 0).any(1)
        most = int(used.sum(1).max())
        if most >= WORTH_KEEPING * used.shape[1]:
            return self
        # Sentences that use fewer slots than the one that uses most keep some unused ones.
        kept = used.byte().argsort(dim=1, descending=True, stable=True)[:, :most]

        def chosen(part: Tensor) -> Tensor:
            index = kept.view(len(kept), 1, most, *[1] * (part.ndim - 3)).expand(-1, part.shape[1], -1, *part.shape[3:])
            return part.gather(2, index)

        past = [[KeysValues(*map(chosen, joined(blocks)))] for blocks in self.past]
        places = None if self.places is None else chosen(self.places)
        return replace(self, past=past, lineage=chosen(self.lineage), places=places)


class PastVisibility(Visibility):
    """New positions, one of each hypothesis, see their ancestors and themselves; `past` is what the next step sees."""

    def __init__(self, past: Blocks, cache: Cache) -> None:
        """past: of one layer; cache: with the new slots"""
        self.past, self.block_slots, self.beam = past, cache.block_slots, cache.beam
        self.mask = cache.lineage[:, None] if self.beam > 1 else None
        self.places = cache.places

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        """query and seen: (B * K, heads, head_dim)"""
        self._grow(seen)
        attended, _ = attend_slots(fold(query, self.beam), self.past, self.mask)
        return attended.reshape(query.shape).to(query.dtype)

    def attend_relatively(self, projected: Tensor, relative: RelativePositions, dropout: float) -> Tensor:
        """projected: (B * K, 3, heads, head_dim)"""
        assert self.places is not None
        query, *seen = projected.unbind(1)
        self._grow(KeysValues(*seen))
        rows = relative.rows(self.places - self.places[:, :, -1:]).unsqueeze(1)
        folded = fold(query, self.beam).to(self.past[0].keys.dtype)
        scores = relative.scores(folded, rows) * folded.shape[-1] ** -0.5
        attended, weights = attend_slots(folded, self.past, scores if self.mask is None else scores + self.mask)
        attended = relative.add_values(attended.transpose(1, 2), weights, rows).transpose(1, 2)
        return attended.reshape(query.shape).to(query.dtype)

    def _grow(self, new: KeysValues) -> None:
        """The new slots join the last block, or begin one if that is full."""
        block = KeysValues(*(cached(fold(part, self.beam)) for part in new))
        if self.past and self.block_slots and self.past[-1].keys.shape[2] + self.beam <= self.block_slots:
            self.past = [*self.past[:-1], joined([self.past[-1], block])]
        else:
            self.past = [*self.past, block]


class MemoryVisibility(Visibility):
    """The hypotheses of a sentence see its source."""

    def __init__(self, cache: Cache) -> None:
        self.mask, self.beam = cache.source_mask, cache.beam * cache.families

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        """query: (B * K, heads, head_dim)"""
        attended, _ = attend_slots(fold(query, self.beam), [seen], self.mask)
        return attended.reshape(query.shape).to(query.dtype)


def attend_slots(query: Tensor, blocks: Blocks, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """query: (B, heads, K, head_dim) -> (B, K, heads, head_dim) and the weights (B, heads, K, slots).

    As `attend_padded`, for few queries, and with the weights at hand. The mask is added to the scores.
    """
    dtype, scale = blocks[0].keys.dtype, query.shape[-1] ** -0.5
    columns = query.to(dtype).contiguous().transpose(2, 3)
    # With the many slots as rows, a CPU's product is up to a third faster than with the few queries.
    products = _concatenated([block.keys @ columns for block in blocks]).transpose(2, 3)
    scores = products * scale if mask is None else torch.add(mask, products, alpha=scale)
    weights = scores.softmax(-1, dtype=torch.promote_types(dtype, torch.float32)).to(dtype)
    parts = weights.split([block.keys.shape[2] for block in blocks], -1)
    attended = parts[0] @ blocks[0].values
    for part, block in zip(parts[1:], blocks[1:], strict=True):
        attended += part @ block.values
    return attended.transpose(1, 2), weights


def joined(blocks: Blocks) -> KeysValues:
    """The blocks as one."""
    return KeysValues(*map(_concatenated, zip(*blocks, strict=True)))


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    """Along the slots."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), dim=2)


def cached(part: Tensor) -> Tensor:
    """(B, heads, slots, head_dim) in the type in which a step attends fastest: on a CPU not in half precision."""
    dtype = part.dtype if part.is_cuda else torch.promote_types(part.dtype, torch.float32)
    return part.to(dtype).contiguous()


def fold(rows: Tensor, beam: int) -> Tensor:
    """(B * K, heads, head_dim) -> (B, heads, K, head_dim)"""
    return rows.view(-1, beam, *rows.shape[1:]).transpose(1, 2)
