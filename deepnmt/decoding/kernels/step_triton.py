"""The decoder's step between its matrix products: embedding, residual sums with norms and mixtures, and attention.

Rows are hypotheses, sentence * K + k. Every sentence has its own position, kept on the device.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from deepnmt.model.attention import KeysValues
from deepnmt.model.positions import RelativePositions

PAST_BLOCK = 32
MEMORY_BLOCK = 32
LEAST_QUERIES = 16  # of a matrix product


@triton.jit
def _embed(Ids, Position, Table, Positions, Out, dim, scale, K: tl.constexpr, D: tl.constexpr):
    """Out = scale * Table[id] + Positions[position]"""
    row = tl.program_id(0)
    columns = tl.arange(0, D)
    inside = columns < dim
    symbol = tl.load(Ids + row).to(tl.int64)
    position = tl.load(Position + row // K)
    token = tl.load(Table + symbol * dim + columns, mask=inside, other=0.0).to(tl.float32) * scale
    token = token.to(Table.dtype.element_ty).to(tl.float32)
    place = tl.load(Positions + position * dim + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(Out + row * dim + columns, (token + place).to(Out.dtype.element_ty), mask=inside)


@triton.jit
def _norm(x, Gain, Bias, columns, inside, dim, eps):
    mean = tl.sum(x, 0) / dim
    centred = tl.where(inside, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 0) / dim + eps)
    gain = tl.load(Gain + columns, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(Bias + columns, mask=inside, other=0.0).to(tl.float32)
    return centred * rstd * gain + bias


@triton.jit(do_not_specialize=["depth"])
def _join(
    X, Y, History, W, Gain, Bias, NextGain, NextBias, Stream, Normed,
    count, dim, depth, num_columns, eps, next_eps,
    ADD: tl.constexpr, NORM: tl.constexpr, MIX: tl.constexpr, NEXT: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Stream = X + Y, or the row of the mixture whose last entry is the norm of X + Y; Normed = LayerNorm(Stream)"""
    row = tl.program_id(0)
    columns = tl.arange(0, D)
    inside = columns < dim
    place = row * dim + columns
    kind = Stream.dtype.element_ty
    x = tl.load(X + place, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x = (x + tl.load(Y + place, mask=inside, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
    if NORM:
        x = _norm(x, Gain, Bias, columns, inside, dim, eps).to(kind).to(tl.float32)
    if MIX:
        tl.store(History + depth * count * dim + place, x.to(kind), mask=inside)
        x = x * tl.load(W + depth * num_columns + depth)
        for k in range(depth):
            output = tl.load(History + k * count * dim + place, mask=inside, other=0.0).to(tl.float32)
            x += tl.load(W + depth * num_columns + k) * output
        x = x.to(kind).to(tl.float32)
    tl.store(Stream + place, x.to(kind), mask=inside)
    if NEXT:
        tl.store(Normed + place, _norm(x, NextGain, NextBias, columns, inside, dim, next_eps).to(kind), mask=inside)


@triton.jit
def _attend_past(
    Projected, Keys, Values, Lineage, Position, Done, RelativeKeys, RelativeValues, Out, capacity, scale,
    WIDTH: tl.constexpr, K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    SPAN: tl.constexpr, SPAN_OF_VALUES: tl.constexpr,
):  # fmt: skip
    """Write this position's keys and values to their slots, and attend to the ancestors and to itself.

    SPAN: the largest distance of relative positions; 0: there are none
    """
    row, head = tl.program_id(0), tl.program_id(1)
    sentence = row // K
    position = tl.load(Position + sentence)
    # Finished sentences are computed too, but not used.
    end = tl.where(tl.load(Done + sentence) == 0, position, 0)
    dims = head * D + tl.arange(0, D)
    query = tl.load(Projected + row * 3 * WIDTH + dims).to(tl.float32) * scale
    key = tl.load(Projected + row * 3 * WIDTH + WIDTH + dims)
    value = tl.load(Projected + row * 3 * WIDTH + 2 * WIDTH + dims)
    first = sentence.to(tl.int64) * capacity
    slot = ((first + position) * K + row % K) * WIDTH + dims
    tl.store(Keys + slot, key)
    tl.store(Values + slot, value)
    seen_key, mixed = key.to(tl.float32), value.to(tl.float32)
    if SPAN:
        seen_key += tl.load(RelativeKeys + SPAN * D + tl.arange(0, D)).to(tl.float32)
    if SPAN_OF_VALUES:
        mixed += tl.load(RelativeValues + SPAN * D + tl.arange(0, D)).to(tl.float32)
    highest = tl.sum(query * seen_key, 0)
    total = tl.exp(highest - highest)
    for start in range(0, end, BLOCK):
        times = start + tl.arange(0, BLOCK)
        seen = times < end
        who = tl.load(Lineage + row * capacity + times, mask=seen, other=0)
        slots = ((first + times) * K + who)[:, None] * WIDTH + dims[None, :]
        keys = tl.load(Keys + slots, mask=seen[:, None], other=0.0).to(tl.float32)
        distance = tl.maximum(times - position, -SPAN) + SPAN
        relative = distance[:, None] * D + tl.arange(0, D)[None, :]
        if SPAN:
            keys += tl.load(RelativeKeys + relative, mask=seen[:, None], other=0.0).to(tl.float32)
        products = tl.where(seen, tl.sum(keys * query[None, :], 1), float("-inf"))
        higher = tl.maximum(highest, tl.max(products, 0))
        shares = tl.exp(products - higher)
        values = tl.load(Values + slots, mask=seen[:, None], other=0.0).to(tl.float32)
        if SPAN_OF_VALUES:
            values += tl.load(RelativeValues + relative, mask=seen[:, None], other=0.0).to(tl.float32)
        kept = tl.exp(highest - higher)
        mixed = mixed * kept + tl.sum(shares[:, None] * values, 0)
        total = total * kept + tl.sum(shares, 0)
        highest = higher
    tl.store(Out + row * WIDTH + dims, (mixed / total).to(Out.dtype.element_ty))


@triton.jit
def _attend_memory(
    Query, Keys, Values, Lengths, Out, capacity, scale,
    WIDTH: tl.constexpr, K: tl.constexpr, QUERIES: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The K hypotheses of a sentence attend to its source."""
    sentence, head = tl.program_id(0), tl.program_id(1)
    hypotheses = tl.arange(0, QUERIES)
    live = (hypotheses < K)[:, None]
    dims = head * D + tl.arange(0, D)
    place = (sentence * K + hypotheses)[:, None] * WIDTH + dims[None, :]
    query = tl.load(Query + place, mask=live, other=0.0)
    length = tl.load(Lengths + sentence)
    first = sentence.to(tl.int64) * capacity
    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    mixed = tl.zeros((QUERIES, D), tl.float32)
    for start in range(0, length, BLOCK):
        times = start + tl.arange(0, BLOCK)
        seen = times < length
        keys = tl.load(Keys + (first + times)[None, :] * WIDTH + dims[:, None], mask=seen[None, :], other=0.0)
        products = tl.dot(query, keys, input_precision="ieee") * scale
        products = tl.where(seen[None, :], products, float("-inf"))
        higher = tl.maximum(highest, tl.max(products, 1))
        shares = tl.exp(products - higher[:, None])
        kept = tl.exp(highest - higher)
        values = tl.load(Values + (first + times)[:, None] * WIDTH + dims[None, :], mask=seen[:, None], other=0.0)
        mixed = mixed * kept[:, None] + tl.dot(shares.to(values.dtype), values, input_precision="ieee")
        total = total * kept + tl.sum(shares, 1)
        highest = higher
    tl.store(Out + place, (mixed / total[:, None]).to(Out.dtype.element_ty), mask=live)


def embed(ids: Tensor, position: Tensor, table: Tensor, positions: Tensor, scale: float, beam: int) -> Tensor:
    """ids: (rows,), position: (sentences,), positions: the vectors of all positions -> (rows, dim)"""
    rows, dim = ids.numel(), table.shape[1]
    out = torch.empty(rows, dim, dtype=table.dtype, device=table.device)
    _embed[(rows,)](ids, position, table, positions, out, dim, scale, K=beam, D=triton.next_power_of_2(dim))
    return out


def join(
    x: Tensor,
    y: Tensor | None = None,
    *,
    norm: nn.Module | None = None,
    mixture: tuple[Tensor, Tensor, int] | None = None,
    next_norm: nn.Module | None = None,
) -> tuple[Tensor, Tensor]:
    """x + y, normed if `norm` is a LayerNorm, mixed if there is a mixture; returns the sum and its `next_norm`.

    mixture: outputs so far (depth + 1, rows, dim), which this one joins, the matrix W and the depth.
    """
    rows, dim = x.shape
    norm, next_norm = (n if isinstance(n, nn.LayerNorm) else None for n in (norm, next_norm))
    history, matrix, depth = mixture or (x, x, 0)
    stream = torch.empty_like(x)
    normed = stream if next_norm is None else torch.empty_like(x)
    gains = [(x, x, 0.0) if n is None else (n.weight, n.bias, n.eps) for n in (norm, next_norm)]
    (gain, bias, eps), (next_gain, next_bias, next_eps) = gains
    _join[(rows,)](
        x, x if y is None else y, history, matrix, gain, bias, next_gain, next_bias, stream, normed,
        rows, dim, depth, matrix.shape[-1], eps, next_eps,
        ADD=y is not None, NORM=norm is not None, MIX=mixture is not None, NEXT=next_norm is not None,
        D=triton.next_power_of_2(dim),
    )  # fmt: skip
    return stream, normed


def attend_past(
    projected: Tensor,
    slots: KeysValues,
    lineage: Tensor,
    position: Tensor,
    done: Tensor,
    relative: RelativePositions | None = None,
) -> Tensor:
    """projected: queries, keys, values (rows, 3 * width); slots: (sentences, capacity, K, heads, head_dim) each;
    lineage: (sentences, K, capacity), which hypothesis of an earlier position is the ancestor -> (rows, width)"""
    _, capacity, beam, heads, head_dim = slots.keys.shape
    width = heads * head_dim
    out = torch.empty(len(projected), width, dtype=projected.dtype, device=projected.device)
    keys = None if relative is None else relative.keys
    values = None if relative is None else relative.values
    span = 0 if relative is None else relative.max_distance
    _attend_past[(len(projected), heads)](
        projected, slots.keys, slots.values, lineage, position, done,
        out if keys is None else keys, out if values is None else values, out, capacity, head_dim**-0.5,
        WIDTH=width, K=beam, D=head_dim, BLOCK=PAST_BLOCK,
        SPAN=span, SPAN_OF_VALUES=0 if values is None else span, num_warps=2,
    )  # fmt: skip
    return out


def attend_memory(query: Tensor, memory: KeysValues, lengths: Tensor, beam: int) -> Tensor:
    """query: (rows, width); memory: (sentences, capacity, heads, head_dim) each; lengths: (sentences,)"""
    sentences, capacity, heads, head_dim = memory.keys.shape
    out = torch.empty_like(query)
    _attend_memory[(sentences, heads)](
        query, memory.keys, memory.values, lengths, out, capacity, head_dim**-0.5,
        WIDTH=heads * head_dim, K=beam, QUERIES=max(LEAST_QUERIES, triton.next_power_of_2(beam)), D=head_dim,
        BLOCK=MEMORY_BLOCK, num_warps=2,
    )  # fmt: skip
    return out
