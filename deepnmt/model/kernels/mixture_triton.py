"""The weighted sums of layer outputs on a GPU: each of the forward mix, the gradient of the history and the gradient of
the weights is one pass over memory.

The outputs lie in one buffer. The gradient of y_k is sum_{l >= k} W[l, k] * g_l over the rows that read it: the g_l are
kept in a second buffer, and gathered once, when the backward pass reaches layer k, together with the gradients of
column k of W and with the backward of the LayerNorm that y_k went through.

A row reads all outputs before it, so deep stacks wait for memory. Every fourth row looks ahead: while it reads the
history it also adds up what the next rows will need of it, and those then read only what came since. The gradients are
gathered in the same way. That nearly halves the bytes at thirty layers.

Counts, rows and depths are not specialised: 1 and the multiples of 16 would each be compiled apart, and gain nothing.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

ROWS_AT_ONCE = 4  # by one warp, so that the sums over a tile need no barrier
PROGRAMS = 1056  # each keeps a share of the sums over all rows
AHEAD = 4


@triton.jit(do_not_specialize=["count"])
def _enter(Y, Gain, Bias, Out, Mean, Rstd, count, dim, eps, NORM: tl.constexpr, R: tl.constexpr, D: tl.constexpr):
    """Out = LayerNorm(Y), or a copy of it."""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.arange(0, D)
    inside = (rows < count)[:, None] & (columns < dim)[None, :]
    place = rows[:, None].to(tl.int64) * dim + columns[None, :]
    y = tl.load(Y + place, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        mean = tl.sum(y, 1) / dim
        centred = tl.where(inside, y - mean[:, None], 0.0)
        rstd = 1 / tl.sqrt(tl.sum(centred * centred, 1) / dim + eps)
        gain = tl.load(Gain + columns, mask=columns < dim, other=0.0).to(tl.float32)
        bias = tl.load(Bias + columns, mask=columns < dim, other=0.0).to(tl.float32)
        y = centred * rstd[:, None] * gain[None, :] + bias[None, :]
        tl.store(Mean + rows, mean, mask=rows < count)
        tl.store(Rstd + rows, rstd, mask=rows < count)
    tl.store(Out + place, y.to(Out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["first", "row"])
def _mix(History, W, Partial, Out, size, first, row, num_columns, PARTIAL: tl.constexpr, BLOCK: tl.constexpr):
    """Out = sum_{first <= k <= row} W[row, k] * History[k], on top of a partial sum"""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    size = tl.cast(size, tl.int64)  # a whole history may have more than 2**31 elements
    mixed = tl.zeros((BLOCK,), tl.float32)
    if PARTIAL:
        mixed = tl.load(Partial + place, mask=inside, other=0.0)
    for k in range(first, row + 1):
        weight = tl.load(W + row * num_columns + k)
        mixed += weight * tl.load(History + k * size + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(Out + place, mixed.to(Out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["row"])
def _mix_ahead(History, W, Partial, size, row, num_columns, J: tl.constexpr, BLOCK: tl.constexpr):
    """Partial[j] = sum_{k <= row} W[row + j, k] * History[k] for the rows from `row` on"""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    size = tl.cast(size, tl.int64)
    ahead = tl.arange(0, J)
    exists = row + ahead < num_columns
    mixed = tl.zeros((J, BLOCK), tl.float32)
    for k in range(row + 1):
        weights = tl.load(W + (row + ahead) * num_columns + k, mask=exists, other=0.0)
        output = tl.load(History + k * size + place, mask=inside, other=0.0).to(tl.float32)
        mixed += weights[:, None] * output[None, :]
    tl.store(Partial + ahead[:, None] * size + place[None, :], mixed, mask=exists[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["count", "depth"])
def _gather_ahead(
    Gradients, History, W, Partial, Shares,
    count, dim, depth, num_rows, rows_each, J: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Partial[j] = sum_{l >= depth} W[l, depth - j] * g_l, and shares of W[l, depth - j]'s gradients: (J, num_rows)"""
    program = tl.program_id(0)
    columns, lanes, ahead = tl.arange(0, D), tl.arange(0, L), tl.arange(0, J)
    size = count.to(tl.int64) * dim
    exists = ahead <= depth
    inside = exists[:, None] & (columns < dim)[None, :]
    d_columns = tl.zeros((J, L), tl.float32)
    for token in range(program * rows_each, tl.minimum((program + 1) * rows_each, count)):
        place = tl.cast(token, tl.int64) * dim + columns
        entered = tl.load(History + (depth - ahead)[:, None] * size + place[None, :], mask=inside, other=0.0)
        entered = entered.to(tl.float32)
        gathered = tl.zeros((J, D), tl.float32)
        for row in tl.range(depth, num_rows, loop_unroll_factor=4):
            g = tl.load(Gradients + row * size + place, mask=columns < dim, other=0.0).to(tl.float32)
            weights = tl.load(W + row * num_rows + depth - ahead, mask=exists, other=0.0)
            gathered += weights[:, None] * g[None, :]
            products = tl.sum(g[None, :] * entered, 1)
            d_columns += tl.where(lanes[None, :] == row, products[:, None], 0.0)
        tl.store(Partial + ahead[:, None] * size + place[None, :], gathered, mask=inside)
    share = Shares + program * J * num_rows + ahead[:, None] * num_rows + lanes[None, :]
    tl.store(share, d_columns, mask=(lanes < num_rows)[None, :] & (ahead < J)[:, None])


@triton.jit(do_not_specialize=["count", "depth", "stop"])
def _gather(
    Gradients, Entered, W, Partial, Y, Gain, Mean, Rstd, dY, Shares,
    count, dim, depth, stop, num_rows, rows_each,
    PARTIAL: tl.constexpr, NORM: tl.constexpr, R: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """dY of layer `depth` from the rows before `stop`, on top of a partial sum; and this program's share of the
    gradients of gain, bias and W[:, depth], in a row."""
    program = tl.program_id(0)
    lanes = tl.arange(0, L)
    d_column = tl.zeros((L,), tl.float32)
    columns = tl.arange(0, D)
    size = count.to(tl.int64) * dim
    gain = tl.load(Gain + columns, mask=columns < dim, other=0.0).to(tl.float32)
    d_gain = tl.zeros((D,), tl.float32)
    d_bias = tl.zeros((D,), tl.float32)
    for first in range(program * rows_each, tl.minimum((program + 1) * rows_each, count), R):
        rows = first + tl.arange(0, R)
        inside = (rows < count)[:, None] & (columns < dim)[None, :]
        place = rows[:, None].to(tl.int64) * dim + columns[None, :]
        entered = tl.load(Entered + place, mask=inside, other=0.0).to(tl.float32)
        gathered = tl.zeros((R, D), tl.float32)
        if PARTIAL:
            gathered = tl.load(Partial + place, mask=inside, other=0.0)
        for row in range(depth, stop):
            g = tl.load(Gradients + row * size + place, mask=inside, other=0.0).to(tl.float32)
            gathered += tl.load(W + row * num_rows + depth) * g
            d_column += tl.where(lanes == row, tl.sum(g * entered), 0.0)
        if NORM:
            y = tl.load(Y + place, mask=inside, other=0.0).to(tl.float32)
            mean = tl.load(Mean + rows, mask=rows < count, other=0.0)
            rstd = tl.load(Rstd + rows, mask=rows < count, other=0.0)
            normed = tl.where(inside, (y - mean[:, None]) * rstd[:, None], 0.0)
            d_gain += tl.sum(gathered * normed, 0)
            d_bias += tl.sum(gathered, 0)
            d_normed = gathered * gain[None, :]
            along = tl.sum(d_normed * normed, 1) / dim
            level = tl.sum(d_normed, 1) / dim
            gathered = (d_normed - normed * along[:, None] - level[:, None]) * rstd[:, None]
        tl.store(dY + place, gathered.to(dY.dtype.element_ty), mask=inside)
    share = Shares + program * (2 * dim + num_rows)
    tl.store(share + columns, d_gain, mask=columns < dim)
    tl.store(share + dim + columns, d_bias, mask=columns < dim)
    tl.store(share + 2 * dim + lanes, d_column, mask=lanes < num_rows)


class FusedMixtureTape:
    """One pass of a stack whose row l is `sum_k matrix[l, k] * y_k`. matrix: (rows, rows) in fp32."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix.detach().contiguous()
        self.columns = matrix.unbind(1)  # through these the weights get their gradients
        self.entered = 0
        self.history: Tensor | None = None
        self.gradients: Tensor | None = None
        self.first_gradient = len(matrix)
        self.mixed_ahead: Tensor | None = None  # (AHEAD, ...) fp32: of the rows from the last look ahead on
        self.gathered_ahead: Tensor | None = None  # the same of the columns down from the last look ahead
        self.columns_ahead: Tensor | None = None  # (AHEAD, rows): what it found of their gradients

    def enter(self, output: Tensor, norm: nn.Module) -> Tensor:
        gain, bias = None, None
        if isinstance(norm, nn.LayerNorm):
            gain, bias = norm.weight, norm.bias
        else:
            output = norm(output)
        entered: Tensor = _Enter.apply(output, gain, bias, self.columns[self.entered], self, getattr(norm, "eps", 0.0))
        self.entered += 1
        return entered

    def mix(self, history: Sequence[Tensor], row: int) -> Tensor:
        mixed: Tensor = _Mix.apply(self, row, *history)
        return mixed

    def slot(self, depth: int, like: Tensor) -> Tensor:
        if self.history is None:
            self.history = torch.empty(len(self.matrix), *like.shape, dtype=like.dtype, device=like.device)
        return self.history[depth]

    def keep_gradient(self, row: int, gradient: Tensor) -> None:
        if self.gradients is None:
            shape = (len(self.matrix), *gradient.shape)
            self.gradients = torch.empty(shape, dtype=gradient.dtype, device=gradient.device)
        self.gradients[row].copy_(gradient)
        self.first_gradient = row

    def look_ahead(self, row: int) -> tuple[int, Tensor | None]:
        """From which output on row `row` has to be mixed, and the sum of those before."""
        if row < AHEAD:
            return 0, None
        assert self.history is not None
        start = row - row % AHEAD
        if row == start:
            size, block = self.history[0].numel(), 1024
            self.mixed_ahead = _partial(self.mixed_ahead, self.history)
            _mix_ahead[(triton.cdiv(size, block),)](
                self.history, self.matrix, self.mixed_ahead, size, row, len(self.matrix),
                J=AHEAD, BLOCK=block, num_warps=4,
            )  # fmt: skip
        assert self.mixed_ahead is not None
        return start + 1, self.mixed_ahead[row - start]

    def gather_ahead(self, depth: int) -> tuple[int, Tensor | None, Tensor | None]:
        """Before which row column `depth` has to be gathered, and what was found of the rows from there on."""
        assert self.history is not None
        num_rows = len(self.matrix)
        distance = num_rows - 1 - depth
        if distance < AHEAD:
            return num_rows, None, None
        start = depth + distance % AHEAD
        if depth == start:
            dim = self.history.shape[-1]
            count = self.history[0].numel() // dim
            programs = min(4 * PROGRAMS, count)
            shares = torch.empty(programs, AHEAD, num_rows, device=self.history.device)
            self.gathered_ahead = _partial(self.gathered_ahead, self.history)
            _gather_ahead[(programs,)](
                self.gradients, self.history, self.matrix, self.gathered_ahead, shares,
                count, dim, depth, num_rows, triton.cdiv(count, programs),
                J=AHEAD, D=triton.next_power_of_2(dim), L=triton.next_power_of_2(num_rows), num_warps=1,
            )  # fmt: skip
            self.columns_ahead = shares.sum(0)
        assert self.gathered_ahead is not None and self.columns_ahead is not None
        return start, self.gathered_ahead[start - depth], self.columns_ahead[start - depth]


def _partial(buffer: Tensor | None, history: Tensor) -> Tensor:
    if buffer is not None:
        return buffer
    return torch.empty(AHEAD, *history.shape[1:], dtype=torch.float32, device=history.device)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, output: Tensor, gain: Tensor | None, bias: Tensor | None, column: Tensor, tape: Any, eps: float
    ) -> Tensor:
        output = output.contiguous()
        dim = output.shape[-1]
        count = output.numel() // dim
        slot = tape.slot(tape.entered, output)
        norm = gain is not None
        mean, rstd = (torch.empty(count, dtype=torch.float32, device=output.device) for _ in range(2))
        width = triton.next_power_of_2(dim)
        _enter[(triton.cdiv(count, ROWS_AT_ONCE),)](
            output, gain if norm else output, bias if norm else output, slot, mean, rstd, count, dim, eps,
            NORM=norm, R=ROWS_AT_ONCE, D=width, num_warps=1,
        )  # fmt: skip
        ctx.save_for_backward(output if norm else None, gain, mean, rstd)
        ctx.tape, ctx.depth = tape, tape.entered
        ctx.set_materialize_grads(False)
        return slot

    @staticmethod
    def backward(ctx: Any, *unused: Any) -> tuple[Tensor | None, ...]:
        """The mixtures that read this output have all been through their backward and left their gradients."""
        output, gain, mean, rstd = ctx.saved_tensors
        tape, depth = ctx.tape, ctx.depth
        if tape.first_gradient > depth:
            raise RuntimeError(f"no gradient reached the mixture of row {depth}")
        entered, norm = tape.history[depth], gain is not None
        dim = entered.shape[-1]
        count, num_rows = entered.numel() // dim, len(tape.matrix)
        programs = min(PROGRAMS, triton.cdiv(count, ROWS_AT_ONCE))
        rows_each = triton.cdiv(triton.cdiv(count, programs), ROWS_AT_ONCE) * ROWS_AT_ONCE
        d_output = torch.empty_like(entered)
        stop, partial, column = tape.gather_ahead(depth)
        shares = torch.empty(programs, 2 * dim + num_rows, device=entered.device)
        _gather[(programs,)](
            tape.gradients, entered, tape.matrix, entered if partial is None else partial,
            output if norm else entered, gain if norm else entered, mean, rstd,
            d_output, shares, count, dim, depth, stop, num_rows, rows_each,
            PARTIAL=partial is not None, NORM=norm,
            R=ROWS_AT_ONCE, D=triton.next_power_of_2(dim), L=triton.next_power_of_2(num_rows), num_warps=1,
        )  # fmt: skip
        d_gain, d_bias, d_column = shares.sum(0).split([dim, dim, num_rows])
        if column is not None:
            d_column = d_column + column
        d_norm = (d_gain.to(gain.dtype), d_bias.to(gain.dtype)) if norm else (None, None)
        return d_output, *d_norm, d_column, None, None


class _Mix(torch.autograd.Function):
    """The history is an argument only for the order of the backward pass: data and gradients go through the tape."""

    @staticmethod
    def forward(ctx: Any, tape: FusedMixtureTape, row: int, *history: Tensor) -> Tensor:
        assert tape.history is not None
        mixed = torch.empty_like(history[0])
        first, partial = tape.look_ahead(row)
        block = 2048
        _mix[(triton.cdiv(mixed.numel(), block),)](
            tape.history, tape.matrix, mixed if partial is None else partial, mixed, mixed.numel(), first, row,
            len(tape.matrix), PARTIAL=partial is not None, BLOCK=block, num_warps=4,
        )  # fmt: skip
        ctx.tape, ctx.row, ctx.count = tape, row, len(history)
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        ctx.tape.keep_gradient(ctx.row, gradients[0])
        return (None,) * (2 + ctx.count)
