"""The weighted sums of layer outputs on a CPU: each is a product of a row of weights with one buffer of all outputs.

The gradients g_l of the mixtures are kept in a second buffer. That of y_k, sum_{l >= k} W[l, k] * g_l, is taken once,
when all that read y_k have left theirs; so no gradient is added to another, and only the sums are rounded.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class ProductsMixtureTape:
    """One pass of a stack whose row l is `sum_k matrix[l, k] * y_k`. matrix: (rows, rows)."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix  # through it the weights get their gradient
        self.entered = 0
        self.weights = self.columns = matrix.detach()  # row by row and column by column, in the buffer's type
        self.history = self.gradients = torch.empty(0)  # (rows, size of an output)
        self.backward_pass, self.silent = -1, set[int]()

    def enter(self, output: Tensor, norm: nn.Module) -> Tensor:
        """The norm is taken, and its result kept, in the buffer's type; what is returned has the output's."""
        exact = torch.promote_types(output.dtype, torch.float32)
        entered: Tensor = _Enter.apply(norm(output.to(exact)), self.matrix, self, output.dtype)
        return entered

    def mix(self, history: Sequence[Tensor], row: int) -> Tensor:
        mixed: Tensor = _Mix.apply(self, row, *history)
        return mixed

    def keep(self, output: Tensor) -> None:
        if self.entered == 0:
            self.weights = self.weights.to(output.dtype).contiguous()
            self.columns = self.weights.T.contiguous()
            self.history = output.new_empty(len(self.matrix), output.numel())
        self.history[self.entered].copy_(output.reshape(-1))
        self.entered += 1

    def keep_gradient(self, row: int, gradient: Tensor) -> None:
        """A graph may be run backwards several times, each time from other rows."""
        this = torch._C._current_graph_task_id()
        if this != self.backward_pass:
            self.backward_pass, self.silent = this, set(range(len(self.matrix)))
            self.gradients = torch.empty_like(self.history)
        self.gradients[row].copy_(gradient.reshape(-1))
        self.silent.discard(row)

    def gradients_from(self, row: int) -> Tensor:
        """Of the rows that read output `row`; a row that this pass does not come through has zeros."""
        for silent in [other for other in self.silent if other >= row]:
            self.gradients[silent].zero_()
            self.silent.discard(silent)
        return self.gradients[row:]


class _Enter(torch.autograd.Function):
    """What it returns stands for the output in the history: it has its shape and type, and no memory of its own."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, matrix: Tensor, tape: ProductsMixtureTape, dtype: torch.dtype) -> Tensor:
        ctx.tape, ctx.depth, ctx.shape = tape, tape.entered, output.shape
        ctx.set_materialize_grads(False)
        tape.keep(output)
        return output.new_full((), torch.nan, dtype=dtype).expand(output.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *unused: Any) -> tuple[Tensor | None, ...]:
        tape, k = ctx.tape, ctx.depth
        needs_output, needs_matrix, *_ = ctx.needs_input_grad
        to_output = to_matrix = None
        gradients = tape.gradients_from(k)
        with torch.autocast("cpu", enabled=False):
            if needs_output:
                to_output = torch.mv(gradients.T, tape.columns[k, k:]).view(ctx.shape)
            if needs_matrix:
                to_matrix = torch.zeros_like(tape.matrix)
                to_matrix[k:, k] = torch.mv(gradients, tape.history[k])
        return to_output, to_matrix, None, None


class _Mix(torch.autograd.Function):
    """The history is an argument only for the order of the backward pass: data and gradients go through the tape."""

    @staticmethod
    def forward(ctx: Any, tape: ProductsMixtureTape, row: int, *history: Tensor) -> Tensor:
        ctx.tape, ctx.row, ctx.count = tape, row, len(history)
        with torch.autocast("cpu", enabled=False):
            mixed = torch.mv(tape.history[: row + 1].T, tape.weights[row, : row + 1])
        return mixed.view(history[0].shape).to(history[0].dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        ctx.tape.keep_gradient(ctx.row, gradients[0])
        return (None,) * (2 + ctx.count)
