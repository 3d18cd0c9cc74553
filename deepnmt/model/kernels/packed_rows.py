"""Attention among sentences that are packed end to end, on a CPU: for the attention alone, several sentences share a
row of slots, and all rows of one width attend together. `attend_padded` is the plain twin.

The rows are those of T5's packing (Raffel et al., 2020, https://arxiv.org/abs/1910.10683).
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepnmt.model.attention import KeysValues, Visibility
from deepnmt.model.kernels.attention_products import additive_mask, attend_blocks
from deepnmt.model.positions import RelativePositions

SHORTEST_ROW = 64  # shorter rows compute fewer masked pairs, but are no faster: the products get too small

Integers = NDArray[np.int64]


class Block(NamedTuple):
    """Rows of one width, which attend in one call, and their part of all slots."""

    rows: int
    width: int
    slots: slice


class Slots(NamedTuple):
    """The token in each slot and the sentence it belongs to; -1 where a slot is empty."""

    token: Integers
    sentence: Integers
    num_tokens: int  # of the text; some may have no slot


class Rows(Visibility):
    """The sentences of two texts in common rows; sentence i of the queries sees sentence i of the keys, and no other.

    A sentence has the same first slot among the queries as among the keys, and room for the longer of the two.
    """

    def __init__(self, queries: Tensor, keys: Tensor, num_queries: int, num_keys: int, causal: bool) -> None:
        """queries, keys: the offsets of the sentences; a sentence that is empty in either text is left out"""
        self.causal = causal
        query_offsets, key_offsets = queries.numpy().astype(np.int64), keys.numpy().astype(np.int64)
        query_lengths, key_lengths = np.diff(query_offsets), np.diff(key_offsets)
        there = (query_lengths > 0) & (key_lengths > 0)
        first, widths = _assign((np.maximum(query_lengths, key_lengths) * there).tolist())
        self.blocks = _blocks(widths)
        self.keys = self.queries = _slots(key_offsets, key_lengths * there, first, sum(widths), num_keys)
        if queries is not keys:
            self.queries = _slots(query_offsets, query_lengths * there, first, sum(widths), num_queries)
        self._plans: dict[tuple[int, int, torch.dtype], Plan] = {}

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        """query (N, heads, head_dim), keys, values (M, heads, head_dim) -> like query; zero where nothing is visible"""
        plan = self._plan(1, query)
        slots = plan.queries.move(query), plan.keys.move(seen.keys), plan.keys.move(seen.values)
        return plan.attended.move(attend_blocks(plan.views, plan.masks, dropout, *slots)).view(query.shape)

    def attend_itself(self, projected: Tensor, dropout: float) -> Tensor:
        """projected: queries, keys and values (N, 3, heads, head_dim), which are moved at once"""
        plan = self._plan(3, projected)
        attended = attend_blocks(plan.views, plan.masks, dropout, plan.queries.move(projected))
        return plan.attended.move(attended).view(projected[:, 0].shape)

    def attend_relatively(self, projected: Tensor, relative: RelativePositions, dropout: float) -> Tensor:
        """The same with relative positions: distances in a row are those in the sentence. Uses autograd."""
        plan = self._plan(3, projected)
        parts = plan.queries.move(projected).chunk(3)
        slots = [projected.new_zeros(0, projected.shape[-1])]
        for query, keys, values, mask in zip(*map(plan.views, parts), plan.masks, strict=True):
            rows = relative.rows_between(query.shape[1], keys.shape[1], query.device)
            slots.append(relative.attend(query, keys, values, rows, mask, dropout).flatten(0, 1))
        return plan.attended.move(torch.cat(slots)).view(projected[:, 0].shape)

    def _plan(self, parts: int, x: Tensor) -> "Plan":
        """Built by the first layer and reused by the others."""
        key = parts, x.shape[-2], x.dtype
        if key not in self._plans:
            self._plans[key] = Plan(self, *key)
        return self._plans[key]


def _assign(lengths: Sequence[int]) -> tuple[Integers, list[int]]:
    """-> the first slot of each sentence, and the width of each row.

    The longest sentence is placed first, each in the row where it leaves the least room.
    """
    first = np.zeros(len(lengths), dtype=np.int64)
    widths: list[int] = []
    rooms: list[tuple[int, int]] = []  # what is free in a row, and the slot at which the row ends
    for sentence in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[sentence]
        if length == 0:
            break
        tightest = bisect_left(rooms, (length, 0))
        if tightest == len(rooms):
            widths.append(_width(length))
            rooms.append((widths[-1], sum(widths)))
        room, end = rooms.pop(tightest)
        first[sentence] = end - room
        insort(rooms, (room - length, end))
    return first, widths


def _width(length: int) -> int:
    """The width of a row for a sentence: one of a few, since each width costs calls of its own; all fill registers."""
    width = SHORTEST_ROW
    while width < length:
        width *= 2
    return max(SHORTEST_ROW, width * 3 // 4) if length <= width * 3 // 4 else width


def _blocks(widths: list[int]) -> list[Block]:
    blocks, start = [], 0
    for width, members in groupby(widths):
        rows = len(list(members))
        blocks.append(Block(rows, width, slice(start, start + rows * width)))
        start += rows * width
    return blocks


def _slots(offsets: Integers, lengths: Integers, first: Integers, num_slots: int, num_tokens: int) -> Slots:
    sentences = np.repeat(np.arange(len(lengths)), lengths)
    inside = np.arange(len(sentences)) - (lengths.cumsum() - lengths)[sentences]
    slots = Slots(np.full(num_slots, -1), np.full(num_slots, -1), num_tokens)
    taken = first[sentences] + inside
    slots.token[taken], slots.sentence[taken] = offsets[sentences] + inside, sentences
    return slots


class Rearrangement(NamedTuple):
    """A change of the order of rows. Each row goes to one place at most, so gradients are moved, not added up."""

    there: "RowIndex"
    back: "RowIndex"  # for gradients

    def move(self, x: Tensor) -> Tensor:
        """x: (..., head_dim) -> (rows, head_dim)"""
        moved: Tensor = _Move.apply(x.reshape(-1, x.shape[-1]), self)
        return moved


class RowIndex:
    """Selects rows by number; -1 stands for a row of zeros."""

    def __init__(self, numbers: Integers) -> None:
        self.rows = torch.from_numpy(np.maximum(numbers, 0))
        self.zeros = torch.from_numpy(np.flatnonzero(numbers < 0))

    def select(self, x: Tensor) -> Tensor:
        if not len(x):
            return x.new_zeros(len(self.rows), x.shape[1])
        return x.index_select(0, self.rows).index_fill_(0, self.zeros, 0)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rearrangement: Rearrangement) -> Tensor:
        ctx.back = rearrangement.back
        return rearrangement.there.select(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.back.select(gradients[0]), None


def _row_numbers(text: Slots, parts: int, by_head: Integers) -> tuple[Integers, Integers]:
    """The rows of (tokens * parts * heads) in the order of (parts * slots * heads), and the other way round.

    by_head: (slots, heads), where each head of a slot goes, so that a row of a head is contiguous
    """
    heads, taken = by_head.shape[1], text.token >= 0
    there = np.full((parts, by_head.size), -1)
    first = text.token[taken, None] * parts * heads + np.arange(heads)
    there[:, by_head[taken]] = first + np.arange(parts)[:, None, None] * heads
    back = np.full(text.num_tokens * parts * heads, -1)
    back[there[there >= 0]] = np.flatnonzero(there >= 0)
    return there.ravel(), back


def _to_slots(there: Integers, back: Integers) -> Rearrangement:
    """Empty slots may hold anything: they are masked."""
    return Rearrangement(RowIndex(np.maximum(there, 0)), RowIndex(back))


class Plan:
    """The slots and masks for this number of heads: computed once, used by every layer."""

    def __init__(self, rows: Rows, parts: int, heads: int, dtype: torch.dtype) -> None:
        self.blocks = [
            Block(block.rows * heads, block.width, slice(block.slots.start * heads, block.slots.stop * heads))
            for block in rows.blocks
        ]
        self.masks = [_mask(rows, block, heads, dtype) for block in rows.blocks]
        slots = _by_head(rows.blocks, heads)
        there, back = _row_numbers(rows.queries, 1, slots)
        self.attended = Rearrangement(RowIndex(back), RowIndex(there))
        self.queries = _to_slots(*_row_numbers(rows.queries, parts, slots))
        self.keys = self.queries if parts > 1 else _to_slots(*_row_numbers(rows.keys, parts, slots))

    def views(self, slots: Tensor) -> list[Tensor]:
        """(slots * heads, head_dim) -> (rows * heads, width, head_dim) for each block"""
        return [slots[block.slots].view(block.rows, block.width, -1) for block in self.blocks]


def _by_head(blocks: list[Block], heads: int) -> Integers:
    """(slots, heads): where each head of a slot goes, as a block is (rows, heads, width)"""
    moved = [np.empty((0, heads), dtype=np.int64)]
    for block in blocks:
        numbers = np.arange(block.slots.start * heads, block.slots.stop * heads)
        moved.append(numbers.reshape(block.rows, heads, block.width).swapaxes(1, 2).reshape(-1, heads))
    return np.concatenate(moved)


def _mask(rows: Rows, block: Block, heads: int, dtype: torch.dtype) -> Tensor:
    """(rows * heads, width, width), to be added to the scores"""
    query, key = (
        torch.from_numpy(text.sentence[block.slots].reshape(block.rows, block.width))
        for text in (rows.queries, rows.keys)
    )
    seen = query[:, :, None] == key[:, None, :]
    hidden = ~(seen.tril() if rows.causal else seen)
    return additive_mask(hidden, dtype).repeat_interleave(heads, 0)
