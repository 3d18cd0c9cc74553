"""Weighted sums of layer outputs in which every position has its own weights, on a GPU: one pass over memory each.

The outputs lie in one buffer and the gradients of the rows in another, so that the gradient of y_k, the sum of
w_l[k] * g_l over the later rows l at each position, is gathered when the backward pass reaches y_k. Every fourth output
looks ahead: while it reads the gradients it also adds up what the three outputs before it need of them. A row mixes all
outputs entered before it; several outputs may be entered between two rows. The weights of a row may depend on the
outputs, so their gradients are computed in its own backward pass. `position_networks_triton` computes such weights.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepnmt.model.kernels.mixture import Networks, PositionTape
from deepnmt.model.kernels.position_networks_triton import FusedNetworks, networks_fit
from deepnmt.model.kernels.streams_triton import tile_shape

FUSES_NETWORKS = True  # in training; False: torch computes the weights
GATHERED_AHEAD = 4  # outputs whose gradients are gathered together: a power of two


@triton.jit
def _tile(count, dim, R: tl.constexpr, D: tl.constexpr):
    """This program's positions and whether each exists, its elements likewise, and the size of an output."""
    positions, columns = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, D)
    exists = positions < count
    place = positions[:, None].to(tl.int64) * dim + columns[None, :]
    return positions, exists, place, exists[:, None] & (columns < dim)[None, :], tl.cast(count, tl.int64) * dim


@triton.jit(do_not_specialize=["count", "row", "entered"])
def _mix(History, Kept, Out, count, dim, row, entered, num_outputs, R: tl.constexpr, D: tl.constexpr):
    """Out = sum_{k < entered} Kept[row, k] * History[k]; Kept: (rows, outputs, positions)"""
    positions, exists, place, inside, size = _tile(count, dim, R, D)
    kept = Kept + tl.cast(row, tl.int64) * num_outputs * count + positions
    mixed = tl.zeros((R, D), tl.float32)
    for k in tl.range(0, entered, loop_unroll_factor=4):
        weight = tl.load(kept + tl.cast(k, tl.int64) * count, mask=exists, other=0.0)
        mixed += weight[:, None] * tl.load(History + k * size + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(Out + place, mixed.to(Out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count", "row", "entered", "stride"])
def _weigh(History, G, Gradients, dW, count, dim, row, entered, stride, R: tl.constexpr, D: tl.constexpr):
    """dW[:, k] = G . History[k] for k < entered; and G goes to Gradients[row]."""
    positions, exists, place, inside, size = _tile(count, dim, R, D)
    given = tl.load(G + place, mask=inside, other=0.0)
    tl.store(Gradients + row * size + place, given, mask=inside)
    gradient = given.to(tl.float32)
    for k in tl.range(0, entered, loop_unroll_factor=4):
        output = tl.load(History + k * size + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(dW + positions.to(tl.int64) * stride + k, tl.sum(gradient * output, 1), mask=exists)


@triton.jit(do_not_specialize=["count", "output", "first", "stop"])
def _gather(
    Gradients, Kept, Given, Partial, dY, count, dim, output, first, stop, num_outputs,
    GIVEN: tl.constexpr, PARTIAL: tl.constexpr, A: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """dY = sum_{first <= row < stop} W_row[:, output] * g_row, plus the gradient from elsewhere and a partial sum.

    The same sums for the A - 1 outputs before it go to Partial, the last of them first."""
    positions = tl.program_id(0) * R + tl.arange(0, R)
    columns, ahead = tl.arange(0, D)[None, None, :], tl.arange(0, A)[:, None, None]
    exists, size = positions < count, tl.cast(count, tl.int64) * dim
    inside = exists[None, :, None] & (columns < dim)
    place = positions[None, :, None].to(tl.int64) * dim + columns
    gathered = tl.zeros((A, R, D), tl.float32)
    if GIVEN:
        gathered += tl.where(ahead == 0, tl.load(Given + place, mask=inside, other=0.0).to(tl.float32), 0.0)
    if PARTIAL:
        gathered += tl.load(Partial + place, mask=inside, other=0.0).to(tl.float32)
    kept = Kept + (output - tl.arange(0, A)[:, None]).to(tl.int64) * count + positions[None, :]
    for row in tl.range(first, stop, loop_unroll_factor=4):
        weight = tl.load(kept + tl.cast(row, tl.int64) * num_outputs * count, mask=exists[None, :], other=0.0)
        gathered += weight[:, :, None] * tl.load(Gradients + row * size + place, mask=inside, other=0.0).to(tl.float32)
    gathered = gathered.to(dY.dtype.element_ty)
    tl.store(dY + place + 0 * ahead, gathered, mask=inside & (ahead == 0))
    if A > 1:
        tl.store(Partial + (ahead - 1) * size + place, gathered, mask=inside & (ahead > 0))


class FusedPositionTape(PositionTape):
    """One pass of a stack in which a row is sum_k w[k] * y_k at each position, over the outputs entered before it."""

    def __init__(self, num_outputs: int, num_rows: int) -> None:
        self.num_outputs, self.num_rows = num_outputs, num_rows
        self.entered = self.mixed = 0
        self.history: Tensor | None = None
        self.kept: Tensor | None = None  # the weights: (rows, outputs, positions) in fp32
        self.gradients: Tensor | None = None
        self.networks: FusedNetworks | None = None
        self.first_rows: list[int] = []  # that read an output
        self.partial: Tensor | None = None  # gradients of the outputs before the one that last looked ahead

    def enter(self, output: Tensor) -> Tensor:
        entered: Tensor = _Enter.apply(output, self)
        self.entered += 1
        return entered

    def mix(self, history: Sequence[Tensor], weights: Tensor) -> Tensor:
        mixed: Tensor = _Mix.apply(self, None, weights, *history)
        self.mixed += 1
        return mixed

    def mix_by(self, networks: Networks, row: int, history: Sequence[Tensor]) -> Tensor:
        if not (FUSES_NETWORKS and torch.is_grad_enabled() and networks_fit(networks, history[-1])):
            return super().mix_by(networks, row, history)
        if self.networks is None:
            self.networks = FusedNetworks(networks, history[-1])
            networks.token = _Open.apply(self, networks.base, *networks.inner, *networks.outer)
        mixed: Tensor = _Mix.apply(self, self.networks, networks.token, *history)
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
        ctx.tape, ctx.output = tape, tape.entered
        tape.first_rows.append(tape.mixed)
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
        distance = -(ctx.output + 1) % GATHERED_AHEAD  # from the output that looks ahead for this one
        ahead, stop = 1, tape.num_rows
        if tape.partial is None:
            tape.partial = entered.new_empty(max(1, GATHERED_AHEAD - 1), *entered.shape)
        if distance == 0:
            ahead, rows = GATHERED_AHEAD, max(1, rows // 2)
        elif ctx.output + distance < tape.entered:
            stop = tape.first_rows[ctx.output + distance]
        _gather[(triton.cdiv(count, rows),)](
            tape.gradients, tape.kept, entered if given is None else given.contiguous(),
            tape.partial[max(distance, 1) - 1], d_output,
            count, dim, ctx.output, tape.first_rows[ctx.output], stop, tape.num_outputs,
            GIVEN=given is not None, PARTIAL=stop < tape.num_rows, A=ahead, R=rows, D=width, num_warps=1,
        )  # fmt: skip
        return d_output, None


class _Mix(torch.autograd.Function):
    """The history is an argument only for the order of the backward pass: data and gradients go through the tape."""

    @staticmethod
    def forward(
        ctx: Any, tape: FusedPositionTape, networks: FusedNetworks | None, weights: Tensor, *history: Tensor
    ) -> Tensor:
        """weights: with networks, the token of `_Open`"""
        if tape.mixed == tape.num_rows:
            raise RuntimeError(f"a tape of {tape.num_rows} rows was asked for another: a row is mixed once")
        mixed, entered = torch.empty_like(history[0]), len(history)
        count, dim, rows, width = tile_shape(mixed)
        if networks is None:
            tape.kept[tape.mixed, :entered] = weights.reshape(-1, entered).T
        else:
            networks.weigh(tape.mixed, history[-1], tape.kept[tape.mixed])
        _mix[(triton.cdiv(count, rows),)](
            tape.history, tape.kept, mixed, count, dim, tape.mixed, entered, tape.num_outputs,
            R=rows, D=width, num_warps=1,
        )  # fmt: skip
        ctx.tape, ctx.networks, ctx.row, ctx.entered = tape, networks, tape.mixed, entered
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tape, networks, gradient = ctx.tape, ctx.networks, gradients[0].contiguous()
        count, dim, rows, width = tile_shape(gradient)
        if tape.gradients is None:
            tape.gradients = torch.empty(tape.num_rows, *gradient.shape, dtype=gradient.dtype, device=gradient.device)
        if networks is None:
            to_weights = torch.empty(*gradient.shape[:-1], ctx.entered, device=gradient.device)
        else:
            to_weights = networks.gradient_of_weights(ctx.row)
        _weigh[(triton.cdiv(count, rows),)](
            tape.history, gradient, tape.gradients, to_weights, count, dim, ctx.row, ctx.entered,
            to_weights.shape[-1], R=rows, D=width, num_warps=1,
        )  # fmt: skip
        to_outputs: list[Tensor | None] = [None] * ctx.entered
        if networks is None:
            return None, None, to_weights, *to_outputs
        to_outputs[-1] = networks.backward(ctx.row, ctx.entered - 1, tape.history[ctx.entered - 1])
        return None, None, None, *to_outputs


class _Open(torch.autograd.Function):
    """The parameters of the networks. Its backward is the last, because every row takes the token."""

    @staticmethod
    def forward(ctx: Any, tape: FusedPositionTape, *parameters: Tensor) -> Tensor:
        ctx.tape = tape
        ctx.set_materialize_grads(False)
        return parameters[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, *unused: Any) -> tuple[Tensor | None, ...]:
        return None, *ctx.tape.networks.gradients(ctx.tape.history)
