"""Rows of a table by number, with a gradient that is bit-for-bit reproducible.

On a GPU torch sums the gradients of equal numbers in varying order, which made the table the only parameter of a model
whose gradient was not reproducible. Here each row's gradients are summed in the order of the text.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def look_up(table: Tensor, numbers: Tensor, padding: int | None = None) -> Tensor:
    """table (V, d), numbers (...) -> (..., d); the row of `padding` gets no gradient."""
    if table.is_cuda and table.requires_grad and torch.is_grad_enabled() and table.dtype is not torch.float64:
        apply: Callable[..., Tensor] = _LookUp.apply
        return apply(table, numbers, -1 if padding is None else padding)
    return functional.embedding(numbers, table, padding)


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, numbers: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(numbers)
        ctx.shape, ctx.dtype, ctx.padding = table.shape, table.dtype, padding
        return functional.embedding(numbers, table)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from deepnmt.model.kernels.lookup_triton import sum_rows

        (numbers,) = ctx.saved_tensors
        flat = gradient.reshape(-1, ctx.shape[1]).contiguous()
        return sum_rows(flat, numbers.reshape(-1), ctx.shape[0], ctx.padding).to(ctx.dtype), None, None
