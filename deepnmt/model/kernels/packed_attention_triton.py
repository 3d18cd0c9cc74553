"""Fused attention within sentences that lie end to end: the work depends on their lengths, and nothing is padded.

After Dao (2023), FlashAttention-2, for short sequences: a tile of queries meets only the keys from the start of its
first sentence to the end of its last. The functions are torch operators, so they work in compiled code.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)
NOWHERE = tl.constexpr(2**30)
KEYS_APART = tl.constexpr(1024)  # random numbers of one query before those of the next


@triton.jit
def _load_tile(base, rows, stride, inside, dims, HEAD_DIM: tl.constexpr):
    mask = inside[:, None] & (dims < HEAD_DIM)[None, :]
    return tl.load(base + rows[:, None].to(tl.int64) * stride + dims[None, :], mask=mask, other=0.0)


@triton.jit
def _store_tile(base, rows, stride, inside, dims, tile, HEAD_DIM: tl.constexpr):
    mask = inside[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(base + rows[:, None].to(tl.int64) * stride + dims[None, :], tile.to(base.dtype.element_ty), mask=mask)


@triton.jit
def _kept(seed, head, dropout, m, n, start):
    """The dropout of the pair (query m, key n): a function of the pair, the same forward and backward."""
    of_query = (m * KEYS_APART - start).to(tl.uint32) + head.to(tl.uint32) * 0x7FEB352D
    of_query = of_query * 0x9E3779B1 + seed.to(tl.uint32)
    bits = of_query[:, None] + (n.to(tl.uint32) * 0x9E3779B1)[None, :]
    # MurmurHash3's finaliser, far cheaper than Philox; its last step only changes low bits, which do not matter here.
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B
    bits = (bits ^ (bits >> 13)) * 0xC2B2AE35
    return bits >= tl.cast(dropout * 4294967296.0, tl.uint32)


@triton.jit
def _query_tile(Start, End, num_queries, CAUSAL: tl.constexpr, BM: tl.constexpr):
    """The queries of this program, the keys that each sees, and the range of keys that any of them sees."""
    tile = tl.program_id(0)
    m = tile * BM + tl.arange(0, BM)
    inside = m < num_queries
    start = tl.load(Start + m, mask=inside, other=0)
    end = tl.load(End + m, mask=inside, other=0)
    low = tl.min(tl.where(end > start, start, NOWHERE))
    high = tl.max(end)
    if CAUSAL:
        high = tl.minimum(high, (tile + 1) * BM)
    return m, inside, start, end, low, high


@triton.jit
def _by_distance(head, m, n, HEADS: tl.constexpr, SPAN: tl.constexpr):
    """The index of a pair's entry in the table of queries by distance, (N, heads, 2 * SPAN + 1)."""
    row = tl.minimum(tl.maximum(n[None, :] - m[:, None], -SPAN), SPAN) + SPAN
    return (m[:, None].to(tl.int64) * HEADS + head) * (2 * SPAN + 1) + row


@triton.jit
def _store_by_distance(base, head, m, n, tile, visible, HEADS: tl.constexpr, SPAN: tl.constexpr):
    """Store the pairs that are alone at their distance; return the sums of the others, at the two ends."""
    distance = n[None, :] - m[:, None]
    alone = visible & (distance > -SPAN) & (distance < SPAN)
    tl.store(base + _by_distance(head, m, n, HEADS, SPAN), tile.to(base.dtype.element_ty), mask=alone)
    before = tl.sum(tl.where(visible & (distance <= -SPAN), tile, 0.0), 1)
    after = tl.sum(tl.where(visible & (distance >= SPAN), tile, 0.0), 1)
    return before, after


@triton.jit
def _store_ends(base, head, m, before, after, inside, HEADS: tl.constexpr, SPAN: tl.constexpr):
    first = base + (m.to(tl.int64) * HEADS + head) * (2 * SPAN + 1)
    tl.store(first, before.to(base.dtype.element_ty), mask=inside)
    tl.store(first + 2 * SPAN, after.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _scores(
    q, k, m, n, start, end, head, Bias, scale,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, HEADS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Scores as exponents of two; -inf where query m does not see key n."""
    if CAUSAL:
        end = tl.minimum(end, m + 1)
    visible = (n[None, :] >= start[:, None]) & (n[None, :] < end[:, None])
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if SPAN:
        s += tl.load(Bias + _by_distance(head, m, n, HEADS, SPAN), mask=visible, other=0.0).to(tl.float32)
    return tl.where(visible, s * (scale * LOG2_E), float("-inf"))


@triton.jit
def _forward(
    Q, K, V, Bias, Start, End, Out, Lse, Shares, Seed,
    q_stride, k_stride, v_stride, num_queries, scale, dropout,
    SPAN: tl.constexpr, SHARES: tl.constexpr,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head, dims, seed = tl.program_id(1), tl.arange(0, D), tl.load(Seed)
    m, inside, start, end, low, high = _query_tile(Start, End, num_queries, CAUSAL, BM)
    q = _load_tile(Q + head * HEAD_DIM, m, q_stride, inside, dims, HEAD_DIM)

    best = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    mixed = tl.zeros((BM, D), tl.float32)
    for first in range(low, high, BN):
        n = first + tl.arange(0, BN)
        k = _load_tile(K + head * HEAD_DIM, n, k_stride, n < high, dims, HEAD_DIM)
        v = _load_tile(V + head * HEAD_DIM, n, v_stride, n < high, dims, HEAD_DIM)
        s = _scores(q, k, m, n, start, end, head, Bias, scale, CAUSAL, PRECISION, HEADS, SPAN)
        new_best = tl.maximum(best, tl.max(s, 1))
        anchor = tl.where(new_best == float("-inf"), 0.0, new_best)
        p = tl.exp2(s - anchor[:, None])
        decay = tl.exp2(best - anchor)
        total = total * decay + tl.sum(p, 1)
        if DROPOUT:
            p = tl.where(_kept(seed, head, dropout, m, n, start), p, 0.0)
        mixed = mixed * decay[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        best = new_best
    seen = total > 0
    lift = 1 / (1 - dropout)
    mixed = mixed * (lift / tl.where(seen, total, 1.0))[:, None]
    lse = tl.where(seen, best + tl.log2(tl.where(seen, total, 1.0)), 0.0)
    _store_tile(Out + head * HEAD_DIM, m, HEADS * HEAD_DIM, inside, dims, mixed, HEAD_DIM)
    tl.store(Lse + m * HEADS + head, lse, mask=inside)
    if SHARES:
        before, after = tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32)
        for first in range(low, high, BN):
            n = first + tl.arange(0, BN)
            k = _load_tile(K + head * HEAD_DIM, n, k_stride, n < high, dims, HEAD_DIM)
            s = _scores(q, k, m, n, start, end, head, Bias, scale, CAUSAL, PRECISION, HEADS, SPAN)
            p = tl.exp2(s - lse[:, None])
            if DROPOUT:
                p = tl.where(_kept(seed, head, dropout, m, n, start), p * lift, 0.0)
            more_before, more_after = _store_by_distance(Shares, head, m, n, p, s > float("-inf"), HEADS, SPAN)
            before, after = before + more_before, after + more_after
        _store_ends(Shares, head, m, before, after, inside, HEADS, SPAN)


@triton.jit
def _backward_queries(
    Q, K, V, Bias, Out, Shares, dOut, dShares, Start, End, Lse, Delta, dQ, dBias, Seed,
    q_stride, k_stride, v_stride, dq_stride, num_queries, scale, dropout,
    SPAN: tl.constexpr, SHARES: tl.constexpr, ROWS: tl.constexpr,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head, dims, seed = tl.program_id(1), tl.arange(0, D), tl.load(Seed)
    m, inside, start, end, low, high = _query_tile(Start, End, num_queries, CAUSAL, BM)
    q = _load_tile(Q + head * HEAD_DIM, m, q_stride, inside, dims, HEAD_DIM)
    out = _load_tile(Out + head * HEAD_DIM, m, HEADS * HEAD_DIM, inside, dims, HEAD_DIM)
    d_out = _load_tile(dOut + head * HEAD_DIM, m, HEADS * HEAD_DIM, inside, dims, HEAD_DIM)
    lse = tl.load(Lse + m * HEADS + head, mask=inside, other=0.0)
    delta = tl.sum(out.to(tl.float32) * d_out.to(tl.float32), 1)
    if SHARES:
        rows = tl.arange(0, ROWS)
        place = (m[:, None].to(tl.int64) * HEADS + head) * (2 * SPAN + 1) + rows[None, :]
        known = inside[:, None] & (rows < 2 * SPAN + 1)[None, :]
        shares = tl.load(Shares + place, mask=known, other=0.0).to(tl.float32)
        delta += tl.sum(shares * tl.load(dShares + place, mask=known, other=0.0).to(tl.float32), 1)
    tl.store(Delta + m * HEADS + head, delta, mask=inside)

    lift = 1 / (1 - dropout)
    d_q = tl.zeros((BM, D), tl.float32)
    before, after = tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32)
    for first in range(low, high, BN):
        n = first + tl.arange(0, BN)
        k = _load_tile(K + head * HEAD_DIM, n, k_stride, n < high, dims, HEAD_DIM)
        v = _load_tile(V + head * HEAD_DIM, n, v_stride, n < high, dims, HEAD_DIM)
        s = _scores(q, k, m, n, start, end, head, Bias, scale, CAUSAL, PRECISION, HEADS, SPAN)
        p = tl.exp2(s - lse[:, None])
        d_p = tl.dot(d_out, tl.trans(v), input_precision=PRECISION)
        if SHARES:
            d_share = tl.load(dShares + _by_distance(head, m, n, HEADS, SPAN), mask=s > float("-inf"), other=0.0)
            d_p += d_share.to(tl.float32)
        if DROPOUT:
            d_p = tl.where(_kept(seed, head, dropout, m, n, start), d_p * lift, 0.0)
        d_s = p * (d_p - delta[:, None])
        d_q += tl.dot(d_s.to(k.dtype), k, input_precision=PRECISION)
        if SPAN:
            visible = s > float("-inf")
            more_before, more_after = _store_by_distance(dBias, head, m, n, d_s * scale, visible, HEADS, SPAN)
            before, after = before + more_before, after + more_after
    if SPAN:
        _store_ends(dBias, head, m, before, after, inside, HEADS, SPAN)
    _store_tile(dQ + head * HEAD_DIM, m, dq_stride, inside, dims, d_q * scale, HEAD_DIM)


@triton.jit
def _backward_keys(
    Q, K, V, Bias, dOut, dShares, Start, End, BackStart, BackEnd, Lse, Delta, dK, dV, Seed,
    q_stride, k_stride, v_stride, dk_stride, dv_stride, num_queries, num_keys, scale, dropout,
    SPAN: tl.constexpr, SHARES: tl.constexpr,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    dims = tl.arange(0, D)
    n = tile * BN + tl.arange(0, BN)
    inside = n < num_keys
    back_start = tl.load(BackStart + n, mask=inside, other=0)
    back_end = tl.load(BackEnd + n, mask=inside, other=0)
    low = tl.min(tl.where(back_end > back_start, back_start, NOWHERE))
    high = tl.max(back_end)
    if CAUSAL:
        low = tl.maximum(low, tile * BN)
    seed = tl.load(Seed)
    k = _load_tile(K + head * HEAD_DIM, n, k_stride, inside, dims, HEAD_DIM)
    v = _load_tile(V + head * HEAD_DIM, n, v_stride, inside, dims, HEAD_DIM)

    lift = 1 / (1 - dropout)
    d_k = tl.zeros((BN, D), tl.float32)
    d_v = tl.zeros((BN, D), tl.float32)
    for first in range(low, high, BM):
        m = first + tl.arange(0, BM)
        real = m < high
        q = _load_tile(Q + head * HEAD_DIM, m, q_stride, real, dims, HEAD_DIM)
        d_out = _load_tile(dOut + head * HEAD_DIM, m, HEADS * HEAD_DIM, real, dims, HEAD_DIM)
        start = tl.load(Start + m, mask=real, other=0)
        end = tl.load(End + m, mask=real, other=0)
        lse = tl.load(Lse + m * HEADS + head, mask=real, other=0.0)
        delta = tl.load(Delta + m * HEADS + head, mask=real, other=0.0)
        s = _scores(q, k, m, n, start, end, head, Bias, scale, CAUSAL, PRECISION, HEADS, SPAN)
        p = tl.exp2(s - lse[:, None])
        d_p = tl.dot(d_out, tl.trans(v), input_precision=PRECISION)
        if SHARES:
            d_share = tl.load(dShares + _by_distance(head, m, n, HEADS, SPAN), mask=s > float("-inf"), other=0.0)
            d_p += d_share.to(tl.float32)
        dropped = p
        if DROPOUT:
            kept = _kept(seed, head, dropout, m, n, start)
            dropped = tl.where(kept, p, 0.0)
            d_p = tl.where(kept, d_p * lift, 0.0)
        d_s = p * (d_p - delta[:, None])
        d_v += tl.dot(tl.trans(dropped.to(d_out.dtype)), d_out, input_precision=PRECISION)
        d_k += tl.dot(tl.trans(d_s.to(q.dtype)), q, input_precision=PRECISION)
    _store_tile(dK + head * HEAD_DIM, n, dk_stride, inside, dims, d_k * scale, HEAD_DIM)
    _store_tile(dV + head * HEAD_DIM, n, dv_stride, inside, dims, d_v * lift, HEAD_DIM)


def _constants(query: Tensor, causal: bool, dropout: float, tile: int) -> dict[str, object]:
    """tile: of queries; tried on an H200 with sentences of about thirty positions and heads of 64 dimensions."""
    heads, head_dim = query.shape[1:]
    width = max(16, triton.next_power_of_2(head_dim))
    return {
        "CAUSAL": causal,
        "DROPOUT": dropout > 0,
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "D": width,
        "BM": tile if width <= 64 else 32,
        "BN": 32,
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
        "num_warps": tile // 16,
    }


def _split(parts: list[Tensor]) -> tuple[Tensor, ...]:
    """Queries, keys and values: slices of one packed projection, or each for itself. Positions are `stride(0)` apart,
    heads and dimensions contiguous."""
    return parts[0].unbind(1) if len(parts) == 1 else tuple(parts)


def _span(bias: Tensor | None) -> int:
    """The largest distance for which there is a bias of its own."""
    return 0 if bias is None else bias.shape[2] // 2


@torch.library.custom_op("deepnmt::packed_attention", mutates_args=())
def packed_attention(
    parts: list[Tensor], bias: Tensor | None, ranges: list[Tensor], seed: Tensor,
    causal: bool, dropout: float, sharing: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The attention (N, heads, head_dim) of a text to itself or to another, and what the backward pass needs.

    parts: [queries, keys and values as (N, 3, heads, head_dim)], which takes no copies; or [(N, heads, head_dim),
    (M, heads, head_dim) twice]. ranges: those of `PackedVisibility`.
    bias: (N, heads, 2 * span + 1), added to the products of each query, by distance. The last result, if `sharing`, has
    the same shape: the share of its attention that a query gives to each distance.
    """
    q, k, v = _split(parts)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    shares = torch.zeros(bias.shape if bias is not None and sharing else (0,), dtype=q.dtype, device=q.device)
    constants = _constants(q, causal, dropout, tile=64)
    _forward[(triton.cdiv(len(q), constants["BM"]), q.shape[1])](
        q, k, v, out if bias is None else bias, ranges[0], ranges[1], out, lse, shares if sharing else out, seed,
        q.stride(0), k.stride(0), v.stride(0), len(q), q.shape[2] ** -0.5, dropout,
        SPAN=_span(bias), SHARES=sharing, **constants,
    )  # fmt: skip
    return out, lse, shares


@packed_attention.register_fake
def _(parts, bias, ranges, seed, causal, dropout, sharing):
    q = _split(parts)[0]
    shares = q.new_empty(bias.shape if bias is not None and sharing else (0,))
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float32), shares


@torch.library.custom_op("deepnmt::packed_attention_backward", mutates_args=())
def packed_attention_backward(
    d_out: Tensor, d_shares: Tensor, parts: list[Tensor], bias: Tensor | None, out: Tensor, lse: Tensor, shares: Tensor,
    ranges: list[Tensor], seed: Tensor, causal: bool, dropout: float, sharing: bool,
) -> list[Tensor]:  # fmt: skip
    """The gradients of the parts, and then that of the bias, if there is one."""
    gradients = [torch.empty(part.shape, dtype=part.dtype, device=part.device) for part in parts]
    (q, k, v), (d_q, d_k, d_v) = _split(parts), _split(gradients)
    d_out, d_shares = d_out.contiguous(), d_shares.contiguous()
    d_bias = out if bias is None else torch.zeros_like(bias)
    delta = torch.empty_like(lse)
    constants = _constants(q, causal, dropout, tile=32)
    scale, span = q.shape[2] ** -0.5, _span(bias)
    biases = out if bias is None else bias
    if not sharing:  # the kernels need an address even for what they do not use
        shares = d_shares = out
    _backward_queries[(triton.cdiv(len(q), constants["BM"]), q.shape[1])](
        q, k, v, biases, out, shares, d_out, d_shares, ranges[0], ranges[1], lse, delta, d_q, d_bias, seed,
        q.stride(0), k.stride(0), v.stride(0), d_q.stride(0), len(q), scale, dropout,
        SPAN=span, SHARES=sharing, ROWS=triton.next_power_of_2(2 * span + 1), **constants,
    )  # fmt: skip
    _backward_keys[(triton.cdiv(len(k), constants["BN"]), q.shape[1])](
        q, k, v, biases, d_out, d_shares, *ranges, lse, delta, d_k, d_v, seed,
        q.stride(0), k.stride(0), v.stride(0), d_k.stride(0), d_v.stride(0), len(q), len(k), scale, dropout,
        SPAN=span, SHARES=sharing, **constants,
    )  # fmt: skip
    return gradients if bias is None else [*gradients, d_bias]


@packed_attention_backward.register_fake
def _(d_out, d_shares, parts, bias, out, lse, shares, ranges, seed, causal, dropout, sharing):
    return [part.new_empty(part.shape) for part in (*parts, *([] if bias is None else [bias]))]


def _save(ctx, inputs, output):
    parts, bias, ranges, seed, *ctx.options = inputs
    ctx.num_parts = len(parts)
    ctx.save_for_backward(*parts, bias, *output, *ranges, seed)


def _gradient(ctx, d_out, _, d_shares):
    count = ctx.num_parts
    saved = ctx.saved_tensors  # read once: recomputed activations are handed out once
    parts, (bias, out, lse, shares, *ranges, seed) = saved[:count], saved[count:]
    saved = list(parts), bias, out, lse, shares, ranges, seed
    gradients = packed_attention_backward(d_out, d_shares, *saved, *ctx.options)
    d_bias = None if bias is None else gradients[count]
    return gradients[:count], d_bias, [None] * len(ranges), None, None, None, None


packed_attention.register_autograd(_gradient, setup_context=_save)
