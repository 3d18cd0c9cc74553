"""The kernels of `mixture_triton`: a row of the mixture, the rows ahead of it, and the same for the gradients.

In the products a weight is the sum of two numbers in half precision, so that its rounding does not matter.

Counts, rows and depths are not specialised: 1 and the multiples of 16 would each be compiled apart, and gain nothing.
"""

import triton
import triton.language as tl


@triton.jit
def _normalise(y, inside, dim, eps):
    """(y - mean) / deviation over the last axis, which is y * scale + shift; and scale and shift."""
    mean = tl.sum(y, 2, keep_dims=True) / dim
    centred = tl.where(inside, y - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 2, keep_dims=True) / dim + eps)
    return centred * scale, scale, -mean * scale


@triton.jit(do_not_specialize=["count", "first", "row", "slot"])
def mix_row(
    Y, Gains, Constants, Columns, Addresses, Stats, Partial, Out,
    count, dim, first, row, num_rows, stride, slot, eps,
    NORM: tl.constexpr, NORMS: tl.constexpr, PARTIAL: tl.constexpr, A: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr, U: tl.constexpr,
):  # fmt: skip
    """Out = sum_{first <= k <= row} W[row, k] * norm_k(y_k). Y is the newest y; Columns is W transposed.

    The same sums for the next A - 1 rows go to Partial, from slot + 1 on. With PARTIAL, what the slots hold is added
    first. Tiles are (rows, tokens, columns).
    """
    program = tl.num_programs(0) - 1 - tl.program_id(0)  # the last tokens were just written: they may be in the cache
    tokens = program * R + tl.arange(0, R)[None, :, None]
    columns = tl.arange(0, D)[None, None, :]
    is_token = tokens < count
    inside = is_token & (columns < dim)
    if EVEN:
        is_token, inside = tl.full((1, R, 1), True, tl.int1), tl.full((1, R, D), True, tl.int1)
    place = tokens.to(tl.int64) * dim + columns
    spread = columns + 0 * tokens  # so that gains are laid out as outputs are
    stats = Stats + tokens
    y = tl.load(Y + place, mask=inside, other=0.0).to(tl.float32)
    if NORMS:
        scale, shift = tl.full((1, R, 1), 1.0, tl.float32), tl.zeros((1, R, 1), tl.float32)
        if NORM:
            y, scale, shift = _normalise(y, inside, dim, eps)
            y = y * tl.load(Gains + row * dim + spread, mask=inside, other=0.0)
        tl.store(stats + tl.cast(2 * row, tl.int64) * count, scale, mask=is_token)
        tl.store(stats + tl.cast(2 * row + 1, tl.int64) * count, shift, mask=is_token)
    if program == 0:
        tl.store(Addresses + row, Y.to(tl.int64))

    ahead = tl.arange(0, A)[:, None, None]
    is_row = row + ahead < num_rows
    weights = Columns + row + ahead
    partial = Partial + (slot + ahead) * (count.to(tl.int64) * dim) + place
    mixed = tl.load(weights + row * stride) * y
    if PARTIAL:
        mixed += tl.load(partial, mask=inside & is_row, other=0.0).to(tl.float32)
    for k in tl.range(first, row, loop_unroll_factor=U):
        before = tl.load(Addresses + k).to(tl.pointer_type(Y.dtype.element_ty))
        before = tl.multiple_of(before, 16) + place
        # Past the first-level cache, which keeps the gains.
        y = tl.load(before, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
        if NORMS:
            scale = tl.load(stats + tl.cast(2 * k, tl.int64) * count, mask=is_token, other=0.0)
            shift = tl.load(stats + tl.cast(2 * k + 1, tl.int64) * count, mask=is_token, other=0.0)
            y = (y * scale + shift) * tl.load(Gains + k * dim + spread, mask=inside, other=0.0)
        mixed += tl.load(weights + k * stride) * y
    if NORMS:
        constant = tl.load(Constants + row * dim + spread, mask=inside, other=0.0)
        mixed += tl.where(ahead == 0, constant, 0.0)
    mixed = mixed.to(Out.dtype.element_ty)
    tl.store(Out + place + 0 * ahead, mixed, mask=inside & (ahead == 0))
    if A > 1:
        tl.store(partial, mixed, mask=inside & is_row & (ahead > 0))


@triton.jit(do_not_specialize=["count", "row"])
def mix_ahead(
    Addresses, Columns, Stats, Gains, Partial,
    count, dim, row, num_rows, stride,
    NORMS: tl.constexpr, SPLIT: tl.constexpr, A: tl.constexpr, T: tl.constexpr, E: tl.constexpr, EVEN: tl.constexpr,
    S: tl.constexpr,
):  # fmt: skip
    """Partial[a] = sum_{k < row} W[row + a, k] * norm_k(y_k): a matrix product, A outputs at a time, of which `row` is
    a multiple. Columns is W transposed. Tiles are (outputs, tokens, columns)."""
    kind = Partial.dtype.element_ty
    program, tiles = tl.program_id(0), tl.cdiv(dim, E)
    columns, tokens = program % tiles * E + tl.arange(0, E), program // tiles * T + tl.arange(0, T)
    is_token, is_column = tokens < count, columns < dim
    if EVEN:
        is_token, is_column = tl.full((T,), True, tl.int1), tl.full((E,), True, tl.int1)
    inside = (is_token[:, None] & is_column[None, :])[None, :, :]
    place = (tokens[:, None].to(tl.int64) * dim + columns[None, :])[None, :, :]
    ahead = tl.arange(0, A)
    sums = tl.zeros((A, T * E), tl.float32)
    for first in tl.range(0, row, A, num_stages=S):
        outputs = first + tl.arange(0, A)
        at = tl.multiple_of(tl.load(Addresses + outputs).to(tl.pointer_type(kind)), 16)
        y = tl.load(at[:, None, None] + place, mask=inside, other=0.0)
        if NORMS:
            here = Stats + tl.cast(2 * outputs, tl.int64)[:, None] * count + tokens[None, :]
            scale = tl.load(here, mask=is_token[None, :], other=0.0)[:, :, None]
            shift = tl.load(here + count, mask=is_token[None, :], other=0.0)[:, :, None]
            gain = tl.load(Gains + outputs[:, None] * dim + columns[None, :], mask=is_column[None, :], other=0.0)
            y = ((y.to(tl.float32) * scale + shift) * gain[:, None, :]).to(kind)
        y = tl.reshape(y, (A, T * E))
        weights = tl.load(Columns + outputs[None, :] * stride + row + ahead[:, None])
        high = weights.to(kind)
        sums = tl.dot(high, y, sums, input_precision="ieee")
        if SPLIT:
            sums = tl.dot((weights - high.to(tl.float32)).to(kind), y, sums)
    slots = Partial + ahead[:, None, None] * (count.to(tl.int64) * dim) + place
    tl.store(slots, tl.reshape(sums.to(kind), (A, T, E)), mask=inside & (row + ahead < num_rows)[:, None, None])


@triton.jit(do_not_specialize=["count", "depth", "stop"])
def gather_ahead(
    Newest, Addresses, W, Stats, Gains, Biases, Partial, Shares,
    count, dim, depth, stop, num_rows,
    NORMS: tl.constexpr, SPLIT: tl.constexpr, J: tl.constexpr, L: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Partial[j] = sum_{depth <= l < stop} W[l, depth - J + 1 + j] * g_l, and this program's share of the gradients of
    those weights: (J, L). Both are matrix products with few rows, which need few registers: many programs fit."""
    columns, program = tl.program_id(0) * E + tl.arange(0, E), tl.program_id(1)
    kind = Newest.dtype.element_ty
    rows, sources = depth + tl.arange(0, L), depth - J + 1 + tl.arange(0, J)
    is_row, is_source, is_column = rows < stop, sources >= 0, columns < dim
    size = count.to(tl.int64) * dim
    halves = tl.arange(0, 2 * J if SPLIT else J)  # the tensor cores take 16 rows: both halves of the weights
    columns_of_w = depth - J + 1 + halves % J
    is_weight = (columns_of_w >= 0)[:, None] & is_row[None, :]
    weights = tl.load(W + rows[None, :] * num_rows + columns_of_w[:, None], mask=is_weight, other=0.0)
    high = weights.to(kind)
    if SPLIT:
        weights = tl.where(halves[:, None] < J, high, (weights - high.to(tl.float32)).to(kind))

    newest = Newest.to(tl.int64)
    at_rows = tl.load(Addresses + num_rows + rows, mask=is_row & (rows > depth), other=0)
    at_rows = tl.where(rows == depth, newest, at_rows).to(tl.pointer_type(kind))
    at_rows = tl.multiple_of(at_rows, 16)
    at_sources = tl.load(Addresses + sources, mask=is_source, other=0).to(tl.pointer_type(kind))
    at_sources = tl.multiple_of(at_sources, 16)
    if NORMS:
        norms = sources[:, None] * dim + columns[None, :]
        gain = tl.load(Gains + norms, mask=is_source[:, None] & is_column[None, :], other=0.0)
        bias = tl.load(Biases + norms, mask=is_source[:, None] & is_column[None, :], other=0.0)
    d_weights = tl.zeros((J, L), tl.float32)
    for token in tl.range(program, count, tl.num_programs(1)):
        place = tl.cast(token, tl.int64) * dim + columns
        g = tl.load(at_rows[:, None] + place[None, :], mask=is_row[:, None] & is_column[None, :], other=0.0)
        y = tl.load(at_sources[:, None] + place[None, :], mask=is_source[:, None] & is_column[None, :], other=0.0)
        if NORMS:
            here = Stats + tl.cast(2 * sources, tl.int64) * count + token
            scale = tl.load(here, mask=is_source, other=0.0)
            shift = tl.load(here + count, mask=is_source, other=0.0)
            y = ((y.to(tl.float32) * scale[:, None] + shift[:, None]) * gain + bias).to(kind)
        d_weights = tl.dot(y, tl.trans(g), d_weights, input_precision="ieee")
        gathered = tl.dot(weights, g, input_precision="ieee")
        if SPLIT:
            gathered = tl.sum(tl.reshape(gathered, (2, J, E)), 0)
        tl.store(
            Partial + tl.arange(0, J)[:, None] * size + place[None, :],
            gathered.to(Partial.dtype.element_ty), mask=is_source[:, None] & is_column[None, :],
        )  # fmt: skip
    share = Shares + (program * tl.num_programs(0) + tl.program_id(0)) * L * J
    tl.store(share + tl.arange(0, J)[:, None] * L + tl.arange(0, L)[None, :], d_weights)


@triton.jit(do_not_specialize=["count", "depth", "stop"])
def gather_column(
    Newest, Y, Addresses, W, Stats, Gains, Biases, Partial, dY, Shares,
    count, dim, depth, stop, num_rows,
    PARTIAL: tl.constexpr, NORM: tl.constexpr, J: tl.constexpr, K: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dY of layer `depth` from the rows before `stop`, K at most, on top of a partial sum; and this program's share of
    the gradients of gain, bias and W[depth : depth + J, depth], in a row. Newest is the gradient of row `depth`."""
    program = tl.program_id(0)
    columns = tl.arange(0, D)
    is_column = columns < dim
    if EVEN:
        is_column = tl.full((D,), True, tl.int1)
    rows = depth + tl.arange(0, K)
    inside = (rows < stop)[:, None] & is_column[None, :]
    newest = Newest.to(tl.int64)
    if program == 0:
        tl.store(Addresses + num_rows + depth, newest)
    addresses = tl.load(Addresses + num_rows + rows, mask=(rows > depth) & (rows < stop), other=0)
    addresses = tl.where(rows == depth, newest, addresses).to(tl.pointer_type(Y.dtype.element_ty))
    addresses = tl.multiple_of(addresses, 16)
    weights = tl.load(W + rows * num_rows + depth, mask=rows < stop, other=0.0)
    d_column = tl.zeros((K, D // 8), tl.float32)  # of neighbours, so that the loop needs no sum across threads
    d_gain = tl.zeros((D,), tl.float32)
    d_bias = tl.zeros((D,), tl.float32)
    if NORM:
        gain = tl.load(Gains + depth * dim + columns, mask=is_column, other=0.0)
        bias = tl.load(Biases + depth * dim + columns, mask=is_column, other=0.0)
    for turn in tl.range(program, count, tl.num_programs(0), num_stages=3):
        token = count - 1 - turn  # the last ones first, as in mix_row
        place = tl.cast(token, tl.int64) * dim + columns
        g = tl.load(addresses[:, None] + place[None, :], mask=inside, other=0.0)
        entered = tl.load(Y + place, mask=is_column, other=0.0).to(tl.float32)
        if PARTIAL:
            before = tl.load(Partial + place, mask=is_column, other=0.0).to(tl.float32)
        g = g.to(tl.float32)
        gathered = tl.sum(g * weights[:, None], 0)
        if PARTIAL:
            gathered += before
        if NORM:
            here = Stats + tl.cast(2 * depth, tl.int64) * count + token + tl.arange(0, 1)
            scale = tl.load(here)
            normed = tl.where(is_column, entered * scale + tl.load(here + count), 0.0)
            entered = normed * gain + bias
            d_gain += gathered * normed
            d_bias += gathered
            d_normed = gathered * gain
            along = tl.sum(d_normed * normed, 0) / dim
            level = tl.sum(d_normed, 0) / dim
            gathered = (d_normed - normed * along - level) * scale
        d_column += tl.sum(tl.reshape(g * entered[None, :], (K, D // 8, 8)), 2)
        tl.store(dY + place, gathered.to(dY.dtype.element_ty), mask=is_column)
    share = Shares + program * (2 * dim + J)
    tl.store(share + columns, d_gain, mask=is_column)
    tl.store(share + dim + columns, d_bias, mask=is_column)
    tl.store(share + 2 * dim + tl.arange(0, K), tl.sum(d_column, 1))
    if K < J:
        tl.store(share + 2 * dim + K + tl.arange(0, J - K), tl.zeros((J - K,), tl.float32))
