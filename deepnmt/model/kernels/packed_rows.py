"""Attention among sentences that are laid end to end, on a CPU: several sentences share a row, rows attend together.

Everything else in a layer works on the tokens as they lie. `attend_packed` is the plain twin.
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

from deepnmt.model.kernels.attention_products import Shares, attend, attend_backward, hiding
from deepnmt.model.positions import RelativePositions

SHORTEST_ROW = 64  # shorter ones see fewer pairs in vain, and take as long: the products get too small

Integers = NDArray[np.int64]


class Block(NamedTuple):
    """Rows of one width, which attend in one call; `slots` are theirs among the slots of all rows."""

    rows: int
    width: int
    slots: slice


class Seats(NamedTuple):
    """Where the tokens of a text are: place[i] is the slot of token i, token[j] the token of slot j; -1 if none."""

    place: Integers
    token: Integers
    sentence: Integers  # of each slot; -1 if none


class Rows:
    """The sentences of two texts in common rows; sentence i of the queries sees sentence i of the keys, and no other.

    A sentence has the same first slot among the queries as among the keys, and room for the longer of the two.
    """

    def __init__(self, queries: Tensor, keys: Tensor, num_queries: int, num_keys: int, causal: bool) -> None:
        """queries, keys: the offsets of the sentences; what is empty in either text is left out"""
        self.causal = causal
        query_offsets, key_offsets = queries.numpy().astype(np.int64), keys.numpy().astype(np.int64)
        query_lengths, key_lengths = np.diff(query_offsets), np.diff(key_offsets)
        there = (query_lengths > 0) & (key_lengths > 0)
        first, widths = _assign((np.maximum(query_lengths, key_lengths) * there).tolist())
        self.blocks = _blocks(widths)
        self.keys = self.queries = _seat(key_offsets, key_lengths * there, first, sum(widths), num_keys)
        if queries is not keys:
            self.queries = _seat(query_offsets, query_lengths * there, first, sum(widths), num_queries)
        self._plans: dict[tuple[int, int, torch.dtype], Plan] = {}

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, dropout: float) -> Tensor:
        """query (N, heads, head_dim), keys, values (M, heads, head_dim) -> like query; who sees nothing gets zero"""
        attended: Tensor = _Attend.apply(query, keys, values, self._plan(1, query), dropout)
        return attended

    def attend_itself(self, projected: Tensor, dropout: float) -> Tensor:
        """projected: queries, keys and values (N, 3, heads, head_dim), which are moved at once"""
        attended: Tensor = _AttendItself.apply(projected, self._plan(3, projected), dropout)
        return attended

    def attend_relatively(self, projected: Tensor, relative: RelativePositions, dropout: float) -> Tensor:
        """The same where distances count, which in a row are those of the sentence. By torch's own gradients."""
        plan = self._plan(3, projected)
        parts = plan.queries.spread(projected).unflatten(0, (3, plan.size)).unbind()
        slots = [projected.new_zeros(0, projected.shape[-1])]
        for query, keys, values, mask in zip(*map(plan.views, parts), plan.masks, strict=True):
            rows = relative.rows_between(query.shape[1], keys.shape[1], query.device)
            slots.append(relative.attend(query, keys, values, rows, mask, dropout).flatten(0, 1))
        attended = torch.cat([*slots, slots[0].new_zeros(1, projected.shape[-1])])
        return attended.index_select(0, plan.attended.place).view(projected[:, 0].shape)

    def _plan(self, parts: int, x: Tensor) -> "Plan":
        """Made at the first layer, and the same for the next ones."""
        key = parts, x.shape[-2], x.dtype
        if key not in self._plans:
            self._plans[key] = Plan(self, *key)
        return self._plans[key]


def _assign(lengths: Sequence[int]) -> tuple[Integers, list[int]]:
    """-> the first slot of each sentence, and the width of each row.

    The longest goes first, each to the row where it leaves the least room.
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
    """Of the row for a sentence: from a few widths, as rows of one width cost their own calls.

    All of them fill registers.
    """
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


def _seat(offsets: Integers, lengths: Integers, first: Integers, num_slots: int, num_tokens: int) -> Seats:
    sentences = np.repeat(np.arange(len(lengths)), lengths)
    inside = np.arange(len(sentences)) - (lengths.cumsum() - lengths)[sentences]
    tokens, slots = offsets[sentences] + inside, first[sentences] + inside
    seats = Seats(np.full(num_tokens, -1), np.full(num_slots, -1), np.full(num_slots, -1))
    seats.place[tokens], seats.token[slots], seats.sentence[slots] = slots, tokens, sentences
    return seats


class Move:
    """Takes (tokens * parts * heads, head_dim) to (parts * slots * heads, head_dim), and gradients back.

    A head of a token has one slot at most: nothing is added up, either way.
    """

    def __init__(self, seats: Seats, parts: int, slots: Integers) -> None:
        """slots: (slots, heads), where each head of a slot goes, so that a row of a head is in one piece"""
        heads = slots.shape[1]
        part = np.arange(parts)[:, None]
        source = np.empty(slots.size, dtype=np.int64)
        source[slots] = np.maximum(seats.token, 0)[:, None] * parts * heads + np.arange(heads)
        self.source = torch.from_numpy((source + part * heads).ravel())
        seated = seats.place >= 0
        place = np.full((len(seated), parts, heads), parts * slots.size)
        place[seated] = slots[seats.place[seated], None] + part * slots.size
        self.place = torch.from_numpy(place.ravel())
        self.vacant = torch.from_numpy(slots[seats.token < 0].ravel())

    def spread(self, x: Tensor) -> Tensor:
        """x: (tokens, ..., head_dim). What is in slots without a token must not matter."""
        return x.reshape(-1, x.shape[-1]).index_select(0, self.source)

    def gather(self, slots: Tensor) -> Tensor:
        """slots: as `room` gives them -> (tokens * parts * heads, head_dim), zero for tokens without a slot"""
        slots[-1] = 0
        return slots.index_select(0, self.place)

    def room(self, like: Tensor) -> Tensor:
        """For the heads of all slots, and for those that have none: (parts * slots * heads + 1, head_dim)"""
        return like.new_empty(len(self.source) + 1, like.shape[-1])


class Plan:
    """What every layer needs to know for its heads."""

    def __init__(self, rows: Rows, parts: int, heads: int, dtype: torch.dtype) -> None:
        self.blocks = [
            Block(block.rows * heads, block.width, slice(block.slots.start * heads, block.slots.stop * heads))
            for block in rows.blocks
        ]
        self.masks = [_mask(rows, block, heads, dtype) for block in rows.blocks]
        slots = _by_head(rows.blocks, heads)
        self.size = slots.size
        self.attended = Move(rows.queries, 1, slots)
        self.queries = self.attended if parts == 1 else Move(rows.queries, parts, slots)
        self.keys = self.queries if parts > 1 else Move(rows.keys, parts, slots)

    def views(self, slots: Tensor) -> list[Tensor]:
        """(slots * heads, head_dim) -> (rows * heads, width, head_dim) for each block"""
        return [slots[block.slots].view(block.rows, block.width, -1) for block in self.blocks]

    def attend(self, inputs: Sequence[Tensor], dropout: float) -> tuple[Tensor, list[Shares]]:
        """inputs: query, keys, values, each (slots * heads, head_dim) -> (tokens * heads, head_dim)"""
        slots = self.attended.room(inputs[0])
        parts = zip(*map(self.views, (*inputs, slots)), self.masks, strict=True)
        with torch.autocast("cpu", enabled=False):
            shares = [attend(q, k, v, mask, dropout, out) for q, k, v, out, mask in parts]
        return self.attended.gather(slots), shares

    def backward(self, gradient: Tensor, inputs: Sequence[Tensor], shares: list[Shares], out: Sequence[Tensor]) -> None:
        """The gradients of the inputs go into `out`."""
        slots = self.attended.spread(gradient)
        slots.index_fill_(0, self.attended.vacant, 0)
        parts = zip(*map(self.views, (slots, *inputs, *out)), shares, strict=True)
        for of_attended, q, k, v, of_q, of_k, of_v, share in parts:
            attend_backward(of_attended, (q, k, v), share, (of_q, of_k, of_v))


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
        torch.from_numpy(seats.sentence[block.slots].reshape(block.rows, block.width))
        for seats in (rows.queries, rows.keys)
    )
    seen = query[:, :, None] == key[:, None, :]
    hidden = ~(seen.tril() if rows.causal else seen)
    return hiding(hidden, dtype).repeat_interleave(heads, 0)


class _AttendItself(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, projected: Tensor, plan: Plan, dropout: float) -> Tensor:
        moved = plan.queries.spread(projected)
        attended, shares = plan.attend(moved.unflatten(0, (3, plan.size)).unbind(), dropout)
        ctx.save_for_backward(moved, *_flat(shares))
        ctx.plan = plan
        return attended.view(projected[:, 0].shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        moved, *shares = ctx.saved_tensors
        found = plan.queries.room(moved)
        inputs, out = (x[: 3 * plan.size].unflatten(0, (3, plan.size)).unbind() for x in (moved, found))
        plan.backward(gradients[0], inputs, _shares(shares), out)
        of_projected = plan.queries.gather(found)
        tokens, *heads = gradients[0].shape
        return of_projected.view(tokens, 3, *heads), None, None


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, values: Tensor, plan: Plan, dropout: float) -> Tensor:
        inputs = plan.queries.spread(query), plan.keys.spread(keys), plan.keys.spread(values)
        attended, shares = plan.attend(inputs, dropout)
        ctx.save_for_backward(*inputs, *_flat(shares))
        ctx.plan, ctx.key_shape = plan, keys.shape
        return attended.view(query.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        query, keys, values, *shares = ctx.saved_tensors
        found = plan.queries.room(query), plan.keys.room(keys), plan.keys.room(values)
        plan.backward(gradients[0], (query, keys, values), _shares(shares), [x[:-1] for x in found])
        of_query = plan.queries.gather(found[0]).view(gradients[0].shape)
        of_keys, of_values = (plan.keys.gather(x).view(ctx.key_shape) for x in found[1:])
        return of_query, of_keys, of_values, None, None


def _flat(shares: list[Shares]) -> list[Tensor | None]:
    return [tensor for pair in shares for tensor in pair]


def _shares(flat: list[Any]) -> list[Shares]:
    return [Shares(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
