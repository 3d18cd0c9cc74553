"""The weighted sums of layer outputs on a GPU, with as few passes over memory as they allow.

Row l of a stack is sum_k W[l, k] * norm_k(y_k). The outputs stay where the layers left them, and the gradients g_l of
the rows where autograd left them: a kernel finds them by a table of addresses. A LayerNorm is computed while an output
is read, from its mean and its deviation, so that neither a normalised copy nor a stacked history exists.

A row reads all outputs before it, so deep stacks wait for memory. Every fourth row looks ahead: while it reads the
outputs it also adds up what the next three rows will need of them, and those then read only the outputs that came
since. Deep stacks come in blocks of 16 rows: before the first row of a block, one matrix product adds up what all of
them need of the outputs of earlier blocks. The gradient of y_k, which is sum_{l >= k} W[l, k] * g_l through the
LayerNorm, is gathered in the same way when the backward pass reaches layer k; the gradients of W come from the same
reading. The programs of a gather take the tokens in turn, and those that share a token by columns come one after the
other, so that together they read neighbouring memory.

In the products a weight is the sum of two numbers in half precision, so that its rounding does not matter.

Counts, rows and depths are not specialised: 1 and the multiples of 16 would each be compiled apart, and gain nothing.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

MIXED_AHEAD = 4  # a row that is a multiple of this adds up as many rows, itself included
UNROLLED, SUMS_PER_WARP = 2, 4096  # outputs that a row reads at a time, and sums that a warp holds
BLOCK, DEEP = 16, 16  # stacks of more rows are mixed in blocks, which keeps 13 more outputs in memory
BLOCK_TILE, BLOCK_WARPS, BLOCK_STAGES = (4, 64), 4, 5  # tokens and columns of a program
GATHERED_AHEAD = 8
# Of gathering ahead, up to 64 rows and more: gradients that a program gathers at a time, stages, programs at once.
AHEAD, DEEP_AHEAD = (4096, 4, 528), (8192, 3, 396)
PROGRAMS = 1056  # of a gather: each keeps a share of the sums over all tokens


@triton.jit
def _normalise(y, inside, dim, eps):
    """(y - mean) / deviation over the last axis, which is y * scale + shift; and scale and shift."""
    mean = tl.sum(y, 2, keep_dims=True) / dim
    centred = tl.where(inside, y - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 2, keep_dims=True) / dim + eps)
    return centred * scale, scale, -mean * scale


@triton.jit(do_not_specialize=["count", "first", "row", "slot"])
def _mix(
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
def _mix_ahead(
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
def _gather_ahead(
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
def _gather(
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
        token = count - 1 - turn  # the last ones first, as in _mix
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


class FusedMixtureTape:
    """One pass of a stack whose row l is `sum_k matrix[l, k] * norm_k(y_k)`. matrix: (rows, rows) in fp32.

    A norm other than LayerNorm is computed outside.
    """

    def __init__(self, matrix: Tensor, norms: Sequence[nn.Module]) -> None:
        self.matrix, self.norms = matrix, norms
        self.entered = 0
        self.work: _Work | None = None
        self.token = matrix.new_empty(0)
        self.mixed: tuple[int, Tensor] | None = None

    def enter(self, output: Tensor) -> Tensor:
        norm = self.norms[self.entered]
        if not isinstance(norm, nn.LayerNorm):
            output = norm(output)
        output = _readable(output if self.work is None else output.to(self.work.dtype))
        if self.work is None:
            gains, biases = self._stacked(output.shape[-1])
            self.work = _Work(self.matrix, gains, biases, self.norms, output)
            self.token = _Open.apply(self.matrix, gains, biases, self.work)
        self.entered += 1
        return output

    def mix(self, history: Sequence[Tensor], row: int) -> Tensor:
        """Row `row`. Asked again, the same tensor: its gradients must come in one sum."""
        if self.mixed is None or self.mixed[0] != row:
            mixed, self.token = _Row.apply(self.token, history[row], self.work, row)
            self.mixed = row, mixed
        return self.mixed[1]

    def _stacked(self, dim: int) -> tuple[Tensor | None, Tensor | None]:
        """The gains and biases of all norms: (rows, dim) in fp32."""
        if not any(isinstance(norm, nn.LayerNorm) for norm in self.norms):
            return None, None
        one, zero = self.matrix.new_ones(dim), self.matrix.new_zeros(dim)
        pairs = [(norm.weight, norm.bias) if isinstance(norm, nn.LayerNorm) else (one, zero) for norm in self.norms]
        gains, biases = (torch.stack(parts).float() for parts in zip(*pairs, strict=True))
        return gains, biases


class _Work:
    """What the kernels of a pass share. It knows nothing of autograd's graph, which holds it."""

    def __init__(
        self, matrix: Tensor, gains: Tensor | None, biases: Tensor | None, norms: Sequence[nn.Module], like: Tensor
    ) -> None:
        self.matrix = matrix.detach().contiguous()
        self.has_norms = gains is not None
        self.gains, self.biases = (self.matrix if part is None else part.detach() for part in (gains, biases))
        # What the biases add to each row, exact also where products of fp32 may be rounded.
        self.constants = (self.matrix.tril().unsqueeze(2) * self.biases).sum(1) if self.has_norms else self.matrix
        self.eps = [norm.eps if isinstance(norm, nn.LayerNorm) else None for norm in norms]
        self.num_rows, self.dim, self.count = len(matrix), like.shape[-1], like.numel() // like.shape[-1]
        self.width = max(16, triton.next_power_of_2(self.dim))
        self.dtype = like.dtype
        self.deep = self.num_rows > DEEP
        # Padded with zeros, so that a kernel may read past the last row.
        self.columns = F.pad(self.matrix.T, (0, -self.num_rows % BLOCK + BLOCK))
        self.addresses = torch.empty(2, self.num_rows, dtype=torch.long, device=like.device)
        self.stats = matrix.new_empty(self.num_rows if self.has_norms else 0, 2, self.count)
        self.num_mixed = 0
        self.mixed_ahead: Tensor | None = None  # of the rows after the last look ahead
        self.gathered_ahead: Tensor | None = None  # of the columns up to the last look ahead
        self.gradients: list[Tensor] = []  # whose addresses the table has
        self.shares: Tensor | None = None  # (rows, programs, gradients of gain, bias and some weights)
        self.d_matrix: Tensor | None = None

    def mix(self, row: int, output: Tensor) -> Tensor:
        self.num_mixed = row + 1
        first, ahead = self._looks(row)
        if ahead > 1 and self.mixed_ahead is None:
            self.mixed_ahead = output.new_empty(BLOCK if self.deep else MIXED_AHEAD - 1, self.count, self.dim)
        if self.deep and row and row % BLOCK == 0:
            self._mix_ahead(row)
        mixed, tokens = torch.empty_like(output), max(1, 2048 // (self.width * max(4, ahead)))
        _mix[(triton.cdiv(self.count, tokens),)](
            output, self.gains, self.constants, self.columns, self.addresses, self.stats,
            mixed if self.mixed_ahead is None else self.mixed_ahead, mixed,
            self.count, self.dim, first, row, self.num_rows, self.columns.shape[1],
            row % BLOCK if self.deep else row % MIXED_AHEAD - 1, self.eps[row] or 0.0,
            NORM=self.eps[row] is not None, NORMS=self.has_norms, PARTIAL=first > 0, A=ahead,
            R=tokens, D=self.width, EVEN=self.width == self.dim and self.count % tokens == 0,
            U=UNROLLED, num_warps=max(1, self.width // 1024, self.width * ahead // SUMS_PER_WARP),
        )  # fmt: skip
        if row + 1 == self.num_rows:
            self.mixed_ahead = None
        return mixed

    def _looks(self, row: int) -> tuple[int, int]:
        """The first output that this row reads, as those before it are summed; and how many rows it adds up."""
        block = row - row % BLOCK if self.deep else 0
        looked = row - row % MIXED_AHEAD
        if block < row == looked:
            return block, min(MIXED_AHEAD, triton.next_power_of_2(self.num_rows - row))
        return looked + 1 if looked > block else block, 1

    def _mix_ahead(self, row: int) -> None:
        tokens, columns = BLOCK_TILE[0], min(BLOCK_TILE[1], self.width)
        _mix_ahead[(triton.cdiv(self.dim, columns) * triton.cdiv(self.count, tokens),)](
            self.addresses, self.columns, self.stats, self.gains, self.mixed_ahead,
            self.count, self.dim, row, self.num_rows, self.columns.shape[1],
            NORMS=self.has_norms, SPLIT=self.dtype.itemsize < 4, A=BLOCK, T=tokens, E=columns,
            EVEN=self.count % tokens == 0 and self.dim % columns == 0, S=BLOCK_STAGES, num_warps=BLOCK_WARPS,
        )  # fmt: skip

    def gather(self, depth: int, output: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of y_depth, once those of the rows from there on have arrived."""
        gradient = _readable(gradient.to(output.dtype))
        self.gradients.append(gradient)
        stop, partial = self._gather_ahead(depth, gradient)
        # A warp has a token at a time, and a narrow one needs few registers.
        programs = min(triton.cdiv(self.count, 2), PROGRAMS * max(1, 512 // self.width))
        if self.shares is None:
            self.shares = self.matrix.new_empty(self.num_mixed, programs, 2 * self.dim + GATHERED_AHEAD)
        d_output = torch.empty_like(output)
        _gather[(programs,)](
            gradient, output, self.addresses, self.matrix, self.stats, self.gains, self.biases,
            output if partial is None else partial, d_output, self.shares[depth],
            self.count, self.dim, depth, stop, self.num_rows,
            PARTIAL=partial is not None, NORM=self.eps[depth] is not None,
            J=GATHERED_AHEAD, K=4 if stop - depth <= 4 else GATHERED_AHEAD, D=self.width,
            EVEN=self.width == self.dim, num_warps=max(1, self.width // 512),
        )  # fmt: skip
        return d_output

    def _gather_ahead(self, depth: int, gradient: Tensor) -> tuple[int, Tensor | None]:
        """Before which row column `depth` has to be gathered, and what was found of the rows from there on."""
        distance = self.num_mixed - 1 - depth
        if distance < GATHERED_AHEAD:
            return self.num_mixed, None
        start = depth + distance % GATHERED_AHEAD
        first = start - GATHERED_AHEAD + 1
        if depth == start:
            if self.gathered_ahead is None:
                self.gathered_ahead = gradient.new_empty(GATHERED_AHEAD, self.count, self.dim)
            lanes = max(32, triton.next_power_of_2(self.num_mixed - depth))
            tile, stages, programs = DEEP_AHEAD if lanes > 64 else AHEAD
            columns = min(self.width, tile // lanes)
            tiles = triton.cdiv(self.dim, columns)
            grid = tiles, min(self.count, max(1, programs // tiles))
            shares = self.matrix.new_empty(grid[0] * grid[1], GATHERED_AHEAD, lanes)
            _gather_ahead[grid](
                gradient, self.addresses, self.matrix, self.stats, self.gains, self.biases, self.gathered_ahead, shares,
                self.count, self.dim, depth, self.num_mixed, self.num_rows,
                NORMS=self.has_norms, SPLIT=gradient.element_size() < 4, J=GATHERED_AHEAD, L=lanes, E=columns,
                num_warps=4, num_stages=stages,
            )  # fmt: skip
            found = shares.sum(0).T[: self.num_mixed - depth, max(0, -first) :]
            self._gradient_of_matrix()[depth : self.num_mixed, max(0, first) : depth + 1] = found
        assert self.gathered_ahead is not None
        return start, self.gathered_ahead[depth - first]

    def gradients_of_parameters(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Of W, the gains and the biases, when the backward pass has been through all rows."""
        assert self.shares is not None
        rows = self.num_rows
        sums = F.pad(self.shares.sum(1), (0, 0, 0, rows - self.num_mixed))
        d_gains, d_biases, d_columns = sums.split([self.dim, self.dim, GATHERED_AHEAD], 1)
        d_matrix = self._gradient_of_matrix()
        d_matrix.as_strided((rows, GATHERED_AHEAD), (rows + 1, rows)).add_(d_columns)  # [k + i, k] for (k, i)
        self.gradients, self.shares, self.gathered_ahead, self.d_matrix = [], None, None, None
        return d_matrix[:rows], *((d_gains, d_biases) if self.has_norms else (None, None))

    def _gradient_of_matrix(self) -> Tensor:
        """With rows below the last, which stay zero."""
        if self.d_matrix is None:
            self.d_matrix = self.matrix.new_zeros(self.num_rows + GATHERED_AHEAD, self.num_rows)
        return self.d_matrix


def _readable(tensor: Tensor) -> Tensor:
    """Contiguous, and aligned, so that the kernels may read it in vectors."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


class _Open(torch.autograd.Function):
    """The parameters of a pass. Its backward is the last: each row's depends on it, by the token."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, gains: Tensor | None, biases: Tensor | None, work: _Work) -> Tensor:
        ctx.work = work
        ctx.set_materialize_grads(False)
        return matrix.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *unused: Any) -> tuple[Tensor | None, ...]:
        return *ctx.work.gradients_of_parameters(), None


class _Row(torch.autograd.Function):
    """The mixture after layer `row`. The token makes the backward passes of the rows follow each other."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, output: Tensor, work: _Work, row: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(output)
        ctx.work, ctx.row = work, row
        ctx.set_materialize_grads(False)
        return work.mix(row, output), token.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (output,) = ctx.saved_tensors
        gradient = torch.zeros_like(output) if gradients[0] is None else gradients[0]
        return None, ctx.work.gather(ctx.row, output, gradient), None, None
