"""Weighted sums of layer outputs in which every position has its own weights, on a GPU: one pass over memory each.

The outputs lie in one buffer and the gradients of the rows in another, so that the gradient of y_k, the sum of
w_l[k] * g_l over the later rows l at each position, is gathered once, when the backward pass reaches y_k. A row mixes
all outputs entered before it; several outputs may be entered between two rows. The weights of a row may depend on the
outputs, so their gradients are computed in its own backward pass.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepnmt.model.kernels.mixture import PositionTape
from deepnmt.model.kernels.streams_triton import tile_shape


@triton.jit
def _tile(count, dim, R: tl.constexpr, D: tl.constexpr):
    """This program's positions and whether each exists, its elements likewise, and the size of an output."""
    positions, columns = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, D)
    exists = positions < count
    place = positions[:, None].to(tl.int64) * dim + columns[None, :]
    return positions, exists, place, exists[:, None] & (columns < dim)[None, :], tl.cast(count, tl.int64) * dim


@triton.jit(do_not_specialize=["count", "row", "entered"])
def _mix(History, W, Kept, Out, count, dim, row, entered, num_outputs, R: tl.constexpr, D: tl.constexpr):
    """Out = sum_{k < entered} W[:, k] * History[k]; W is kept for the gathering: (rows, outputs, positions)"""
    positions, exists, place, inside, size = _tile(count, dim, R, D)
    kept = Kept + tl.cast(row, tl.int64) * num_outputs * count + positions
    mixed = tl.zeros((R, D), tl.float32)
    for k in tl.range(0, entered, loop_unroll_factor=4):
        weight = tl.load(W + positions.to(tl.int64) * entered + k, mask=exists, other=0.0)
        tl.store(kept + tl.cast(k, tl.int64) * count, weight, mask=exists)
        mixed += weight[:, None] * tl.load(History + k * size + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(Out + place, mixed.to(Out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count", "row", "entered"])
def _weigh(History, G, Gradients, dW, count, dim, row, entered, R: tl.constexpr, D: tl.constexpr):
    """dW[:, k] = G . History[k] for k < entered; and G goes to Gradients[row]."""
    positions, exists, place, inside, size = _tile(count, dim, R, D)
    given = tl.load(G + place, mask=inside, other=0.0)
    tl.store(Gradients + row * size + place, given, mask=inside)
    gradient = given.to(tl.float32)
    for k in tl.range(0, entered, loop_unroll_factor=4):
        output = tl.load(History + k * size + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(dW + positions.to(tl.int64) * entered + k, tl.sum(gradient * output, 1), mask=exists)


@triton.jit(do_not_specialize=["count", "output", "first"])
def _gather(
    Gradients, Kept, Given, dY, count, dim, output, first, num_outputs, num_rows,
    GIVEN: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """dY = sum_{row >= first} W_row[:, output] * g_row, plus the gradient from elsewhere"""
    positions, exists, place, inside, size = _tile(count, dim, R, D)
    gathered = tl.zeros((R, D), tl.float32)
    if GIVEN:
        gathered = tl.load(Given + place, mask=inside, other=0.0).to(tl.float32)
    for row in tl.range(first, num_rows, loop_unroll_factor=4):
        kept = Kept + (tl.cast(row, tl.int64) * num_outputs + output) * count
        weight = tl.load(kept + positions, mask=exists, other=0.0)
        gathered += weight[:, None] * tl.load(Gradients + row * size + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(dY + place, gathered.to(dY.dtype.element_ty), mask=inside)


class FusedPositionTape(PositionTape):
    """One pass of a stack in which a row is sum_k w[k] * y_k at each position, over the outputs entered before it."""

    def __init__(self, num_outputs: int, num_rows: int) -> None:
        self.num_outputs, self.num_rows = num_outputs, num_rows
        self.entered = self.mixed = 0
        self.history: Tensor | None = None
        self.kept: Tensor | None = None  # the weights: (rows, outputs, positions) in fp32
        self.gradients: Tensor | None = None

    def enter(self, output: Tensor) -> Tensor:
        entered: Tensor = _Enter.apply(output, self)
        self.entered += 1
        return entered

    def mix(self, history: Sequence[Tensor], weights: Tensor) -> Tensor:
        mixed: Tensor = _Mix.apply(self, weights, *history)
        self.mixed += 1
        return mixed

    def slot(self, like: Tensor) -> Tensor:
        """That of the next output."""
        if self.history is None:
            self.history = torch.empty(self.num_outputs, *like.shape, dtype=like.dtype, device=like.device)
            count = like.numel() // like.shape[-1]
            self.kept = torch.empty(self.num_rows, self.num_outputs, count, device=like.device)
        return self.history[self.entered]


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, tape: FusedPositionTape) -> Tensor:
        slot = tape.slot(output)
        slot.data.copy_(output)  # which does not count as a change of the slots that others have saved
        ctx.tape, ctx.output, ctx.first_row = tape, tape.entered, tape.mixed
        ctx.set_materialize_grads(False)
        return slot

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None]:
        """By now all mixtures that read this output have run their backward passes and stored their gradients."""
        tape, (given,) = ctx.tape, gradients
        entered = tape.history[ctx.output]
        if tape.gradients is None:
            raise RuntimeError(f"no gradient reached the mixtures of output {ctx.output}")
        count, dim, rows, width = tile_shape(entered)
        d_output = torch.empty_like(entered)
        _gather[(triton.cdiv(count, rows),)](
            tape.gradients, tape.kept, entered if given is None else given.contiguous(), d_output,
            count, dim, ctx.output, ctx.first_row, tape.num_outputs, tape.num_rows,
            GIVEN=given is not None, R=rows, D=width, num_warps=1,
        )  # fmt: skip
        return d_output, None


class _Mix(torch.autograd.Function):
    """The history is an argument only for the order of the backward pass: data and gradients go through the tape."""

    @staticmethod
    def forward(ctx: Any, tape: FusedPositionTape, weights: Tensor, *history: Tensor) -> Tensor:
        if tape.mixed == tape.num_rows:
            raise RuntimeError(f"a tape of {tape.num_rows} rows was asked for another: a row is mixed once")
        mixed = torch.empty_like(history[0])
        count, dim, rows, width = tile_shape(mixed)
        _mix[(triton.cdiv(count, rows),)](
            tape.history, weights.contiguous(), tape.kept, mixed, count, dim, tape.mixed, len(history),
            tape.num_outputs, R=rows, D=width, num_warps=1,
        )  # fmt: skip
        ctx.tape, ctx.row, ctx.entered = tape, tape.mixed, len(history)
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tape, gradient = ctx.tape, gradients[0].contiguous()
        count, dim, rows, width = tile_shape(gradient)
        if tape.gradients is None:
            tape.gradients = torch.empty(tape.num_rows, *gradient.shape, dtype=gradient.dtype, device=gradient.device)
        to_weights = torch.empty(*gradient.shape[:-1], ctx.entered, device=gradient.device)
        _weigh[(triton.cdiv(count, rows),)](
            tape.history, gradient, tape.gradients, to_weights, count, dim, ctx.row, ctx.entered,
            R=rows, D=width, num_warps=1,
        )  # fmt: skip
        return None, to_weights, *[None] * ctx.entered
