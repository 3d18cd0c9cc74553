"""Attention among sentences that are laid end to end, on a CPU: sentences of like length are padded and go together.

Everything else in a layer works on the tokens as they lie. `attend_packed` is the plain twin.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

GROUPS = 3  # more of them waste less padding, and cost more calls


class Slots(NamedTuple):
    """Where tokens go when their sentences are padded: place[i] is the slot of token i, token[j] the token of slot j.

    A slot without a token has any token's number, and a token without a slot any slot's.
    """

    place: Tensor
    token: Tensor
    homeless: Tensor | None  # tokens without a slot
    vacant: Tensor  # slots without a token


class Group(NamedTuple):
    """Sentences that are padded together: their slots among the queries and the keys, and which keys are real."""

    rows: int
    queries: slice
    keys: slice
    visible: Tensor | None  # (rows, 1, 1, length), or None if all are


class Groups:
    """The sentences of two texts in groups of like length; sentence i of the queries sees sentence i of the keys."""

    def __init__(self, queries: Tensor, keys: Tensor, num_queries: int, num_keys: int) -> None:
        """queries, keys: the offsets of the sentences; what is empty in either text is left out"""
        query_lengths, key_lengths = queries.diff().long(), keys.diff().long()
        (there,) = ((query_lengths > 0) & (key_lengths > 0)).nonzero(as_tuple=True)
        longest = torch.maximum(query_lengths, key_lengths)[there]
        order = there[longest.argsort(stable=True)]
        tokens = torch.maximum(query_lengths, key_lengths)[order].cumsum(0)
        shares = torch.arange(1, GROUPS) * (int(tokens[-1]) if len(tokens) else 0) // GROUPS
        bounds = sorted({0, *torch.searchsorted(tokens, shares).tolist(), len(order)})
        members = [order[first:last] for first, last in pairwise(bounds)]
        self.keys, key_slices, masks = _lay_out(keys.long(), key_lengths, members, num_keys)
        self.queries, query_slices = self.keys, key_slices
        if queries is not keys:
            self.queries, query_slices, _ = _lay_out(queries.long(), query_lengths, members, num_queries)
        parts = zip(members, query_slices, key_slices, masks, strict=True)
        self.groups = [Group(len(rows), queried, seen, visible) for rows, queried, seen, visible in parts]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, attend: "Attend") -> Tensor:
        """query (N, heads, head_dim), keys, values (M, heads, head_dim) -> like query; who sees nothing gets zero"""
        q, k, v = spread(query, self.queries), spread(keys, self.keys), spread(values, self.keys)
        found = [
            attend(_padded(q, group.rows, group.queries), _padded(k, group.rows, group.keys),
                   _padded(v, group.rows, group.keys), group.visible).flatten(0, 1)
            for group in self.groups
        ]  # fmt: skip
        return gather(torch.cat(found), self.queries) if found else 0 * query

    def attend_itself(self, projected: Tensor, attend: "Attend") -> Tensor:
        """projected: queries, keys and values (N, 3, heads, head_dim), which are moved at once"""
        slots = spread(projected, self.queries)
        found = []
        for group in self.groups:
            query, keys, values = _padded(slots, group.rows, group.queries).unbind(2)
            found.append(attend(query, keys, values, group.visible).flatten(0, 1))
        return gather(torch.cat(found), self.queries) if found else 0 * projected[:, 0]


# Queries, keys and values, each (B, length, heads, head_dim), and which keys are real -> like the queries.
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def _lay_out(
    offsets: Tensor, lengths: Tensor, groups: list[Tensor], num_tokens: int
) -> tuple[Slots, list[slice], list[Tensor | None]]:
    tokens, slices, masks = [], [], []
    first = 0
    for members in groups:
        place = torch.arange(int(lengths[members].max()))
        real = place < lengths[members, None]
        tokens.append((offsets[members, None] + place).masked_fill_(~real, -1).flatten())
        slices.append(slice(first, first + real.numel()))
        masks.append(None if bool(real.all()) else real[:, None, None, :])
        first += real.numel()
    token = torch.cat([torch.empty(0, dtype=torch.long), *tokens])
    vacant = token < 0
    place = torch.full((num_tokens,), -1)
    place[token[~vacant]] = torch.arange(first)[~vacant]
    homeless = place < 0
    slots = Slots(place.clamp(min=0), token.clamp(min=0), homeless if bool(homeless.any()) else None, vacant)
    return slots, slices, masks


def _padded(slots: Tensor, rows: int, part: slice) -> Tensor:
    return slots[part].unflatten(0, (rows, -1))


def spread(x: Tensor, slots: Slots) -> Tensor:
    """(tokens, ...) -> (slots, ...); what is in slots without a token must not matter"""
    moved: Tensor = _Spread.apply(x, slots)
    return moved


def gather(x: Tensor, slots: Slots) -> Tensor:
    """(slots, ...) -> (tokens, ...), zero for tokens without a slot"""
    moved: Tensor = _Gather.apply(x, slots)
    return moved


def _take(x: Tensor, slots: Slots) -> Tensor:
    taken = x.index_select(0, slots.place)
    return taken if slots.homeless is None else _cleared(taken, slots.homeless)


def _cleared(x: Tensor, rows: Tensor) -> Tensor:
    return x.masked_fill_(rows.view(-1, *[1] * (x.dim() - 1)), 0)


class _Spread(torch.autograd.Function):
    """A token has one slot at most: its gradient is that slot's, and nothing is added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Slots) -> Tensor:
        ctx.slots = slots
        return x.index_select(0, slots.token)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _take(gradients[0], ctx.slots), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Slots) -> Tensor:
        ctx.slots = slots
        return _take(x, slots)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _cleared(gradients[0].index_select(0, ctx.slots.token), ctx.slots.vacant), None
