"""The norms of a model; both axes, sub-layers and connections, are built with them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from deepnmt.model.kernels.fused_layers import fuses_layers, layer_norm, layer_norm_beside

NewNorm = Callable[[int], nn.Module]  # the norm of this width
EPS = {"layer": 1e-5, "rms": 1e-6}


class LayerNorm(nn.LayerNorm):
    """Computes in fp32 under mixed precision and returns the type it was given: the stack stays in half precision."""

    def forward(self, x: Tensor) -> Tensor:
        if fuses_layers(x):
            return layer_norm(x, self)
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class RmsNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps), times a gain (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467)."""

    def __init__(self, dim: int, eps: float = EPS["rms"]) -> None:
        super().__init__(dim, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


NORMS: dict[str, Callable[..., nn.Module]] = {"layer": LayerNorm, "rms": RmsNorm}


def beside(x: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """x for the way past a branch, and norm(x) for the branch; on a GPU the norm's kernel adds their gradients."""
    if isinstance(norm, LayerNorm) and fuses_layers(x):
        return layer_norm_beside(x, norm)
    return x, norm(x)


def inverse_rms(x: Tensor, eps: float = EPS["rms"]) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) of each position, in fp32: (..., 1).

    A product with rms(x) is one with x, times this: so autograd keeps nothing as wide as x.
    """
    inverse: Tensor = _InverseRms.apply(x, eps)
    return inverse


class _InverseRms(torch.autograd.Function):
    """Its backward pass is one product in the type of x; torch's own makes several copies of x in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
        inverse = (norm.square() / x.shape[-1] + eps).rsqrt()
        ctx.save_for_backward(x, inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, inverse = ctx.saved_tensors
        factor = gradients[0] * inverse.pow(3) / -x.shape[-1]
        return torch.mul(x, factor, out=torch.empty_like(x)), None
