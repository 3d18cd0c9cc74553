"""LayerNorm and feed-forward for training on a GPU, with as few passes over memory as possible.

`norms.LayerNorm` and `layers.FeedForward` are the plain twins.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.model.kernels.dropout import fresh_seed


def fuses_layers(x: Tensor) -> bool:
    """Whether the kernels take this input: training on a GPU."""
    return x.is_cuda and torch.is_grad_enabled() and x.dtype is not torch.float64


def layer_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """norm(x), in the type of x."""
    normed: Tensor = _Norm.apply(x.reshape(-1, x.shape[-1]), norm.weight, norm.bias, norm.eps)
    return normed.view(x.shape)


def layer_norm_beside(x: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """x and norm(x), in its type. The backward pass through the norm adds their gradients."""
    flat = x.reshape(-1, x.shape[-1])
    beside, normed = _NormBeside.apply(flat, norm.weight, norm.bias, norm.eps)
    return beside.view(x.shape), normed.view(x.shape)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        from deepnmt.model.kernels.fused_layers_triton import layer_norm

        x = x.contiguous()
        normed, mean, rstd = layer_norm(x, gain, bias, eps)
        ctx.save_for_backward(x, gain, mean, rstd)
        return normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _norm_gradients(None, gradients[0], *ctx.saved_tensors)


class _NormBeside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        from deepnmt.model.kernels.fused_layers_triton import layer_norm

        x = x.contiguous()
        normed, mean, rstd = layer_norm(x, gain, bias, eps)
        ctx.save_for_backward(x, gain, mean, rstd)
        return x.view_as(x), normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _norm_gradients(*gradients, *ctx.saved_tensors)


def _norm_gradients(beside: Tensor | None, d_normed: Tensor, *saved: Tensor) -> tuple[Tensor | None, ...]:
    from deepnmt.model.kernels.fused_layers_triton import layer_norm_backward

    total, sums = layer_norm_backward(beside, d_normed, *saved)
    d_gain, d_bias = sums.to(saved[1].dtype).chunk(2)
    return total, d_gain, d_bias, None


def feed_forward(x: Tensor, expand: nn.Linear, contract: nn.Linear, dropout: float) -> Tensor:
    """contract(dropout(relu(expand(x)))): the ReLU's backward pass is part of the product before it."""
    mixed = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if mixed else x.dtype
    flat = x.reshape(-1, x.shape[-1])
    given = (each.to(dtype) for each in (flat, expand.weight, expand.bias, contract.weight, contract.bias))
    result: Tensor = _FeedForward.apply(*given, fresh_seed(x.device), dropout)
    return result.view(*x.shape[:-1], -1)


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, seed: Tensor, dropout: float
    ) -> Tensor:
        from deepnmt.model.kernels.fused_layers_triton import relu_dropout

        hidden, signs = relu_dropout(F.linear(x, w1, b1), seed, dropout)
        ctx.save_for_backward(x, w1, w2, hidden, signs)
        ctx.dropout = dropout
        return F.linear(hidden, w2, b2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from deepnmt.model.kernels.fused_layers_triton import relu_product_backward

        (d_result,), (x, w1, w2, hidden, signs) = gradients, ctx.saved_tensors
        d_hidden, d_b1 = relu_product_backward(d_result, w2, signs, ctx.dropout)
        _, trains_w1, _, trains_w2, trains_b2, *_ = ctx.needs_input_grad
        d_w1 = d_hidden.T @ x if trains_w1 else None
        d_w2 = d_result.T @ hidden if trains_w2 else None
        d_b2 = d_result.sum(0) if trains_b2 else None
        return d_hidden @ w1, d_w1, d_b1.to(w1.dtype), d_w2, d_b2, None, None
