"""Low-rank adapters: W + s B A in place of a frozen matrix W, with A and B trained (Hu et al. 2021, LoRA).

https://arxiv.org/abs/2106.09685
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.errors import InputError
from deepnmt.model.attention import CrossAttention, SelfAttention
from deepnmt.model.layers import FeedForward
from deepnmt.model.parts import names_in

MARK = ".adapter."  # in the name of an adapter's tensor, after the name of the linear layer


def add_adapters(model: nn.Module, parts: Iterable[str], rank: int, alpha: float) -> None:
    """Freeze a model, and add adapters to the projections of its attention and feed-forward layers in these parts."""
    model.requires_grad_(False)
    linears = {
        f"{name}.{own}": (parent, own, child)
        for name, parent in model.named_modules()
        if isinstance(parent, SelfAttention | CrossAttention | FeedForward)
        for own, child in parent.named_children()
        if isinstance(child, nn.Linear)
    }
    for name in sorted(names_in(parts, linears, "training.lora.parts", "projection")):
        parent, own, linear = linears[name]
        if rank >= min(linear.weight.shape):
            size = " x ".join(map(str, linear.weight.shape))
            raise InputError(f"training.lora.rank = {rank} must be below the rank of {name}, a matrix of {size}")
        setattr(parent, own, AdaptedLinear(linear, rank, alpha / rank))
        if isinstance(parent, FeedForward):
            parent.is_plain = False  # its kernel computes the gradient of W


class Adapter(nn.Module):
    """A and B of W + s B A. B is zero at first, so that nothing changes; s is stored with them, but not trained."""

    def __init__(self, linear: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        bound = 1 / math.sqrt(linear.in_features)
        like = linear.weight
        self.down = nn.Parameter(torch.empty(rank, linear.in_features).uniform_(-bound, bound).to(like))
        self.up = nn.Parameter(like.new_zeros(linear.out_features, rank))
        self.scale = nn.Parameter(like.new_tensor([scale]), requires_grad=False)


class AdaptedLinear(nn.Linear):
    """x (W + s B A)^T + b, computed with the sum, so that it equals the merged layer to the last bit."""

    def __init__(self, linear: nn.Linear, rank: int, scale: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.adapter = Adapter(linear, rank, scale)
        self.is_merged = False

    def forward(self, x: Tensor) -> Tensor:
        if self.is_merged:
            return super().forward(x)
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        adapter = self.adapter
        given = self.weight, adapter.down, adapter.up, adapter.scale
        result: Tensor = _Adapted.apply(x.to(dtype), self.bias.to(dtype), *given)
        return result


class _Adapted(torch.autograd.Function):
    """Neither the sum nor its gradient is kept: dB = s dy^T (x A^T) and dA = s (dy B)^T x are small products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, weight: Tensor, down: Tensor, up: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, down, up, scale)
        return F.linear(x, merge(weight, down, up, scale).to(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (d_y,), (x, weight, down, up, scale) = gradients, ctx.saved_tensors
        flat_d, flat_x = d_y.flatten(0, -2), x.flatten(0, -2)
        with torch.autocast(x.device.type, enabled=False):
            d_x = d_y @ merge(weight, down, up, scale).to(x.dtype) if ctx.needs_input_grad[0] else None
            d_up = flat_d.T @ (flat_x @ (scale * down).to(x.dtype).T)
            d_down = (flat_d @ (scale * up).to(x.dtype)).T @ flat_x
        return d_x, None, None, d_down.to(down.dtype), d_up.to(up.dtype), None


def merge(weight: Tensor, down: Tensor, up: Tensor, scale: Tensor) -> Tensor:
    """W + s B A, in the type of W."""
    with torch.autocast(weight.device.type, enabled=False):
        return torch.addmm(weight, scale * up, down)


def merge_all(tensors: Mapping[str, Tensor], where: Path) -> dict[str, Tensor]:
    """The weights of a plain model, by name, from those of a model that may have adapters; `where` they are from."""
    plain = {name: tensor for name, tensor in tensors.items() if MARK not in name}
    for name in {name.partition(MARK)[0] for name in tensors.keys() - plain.keys()}:
        try:
            adapter = (tensors[f"{name}{MARK}{part}"] for part in ("down", "up", "scale"))
            plain[f"{name}.weight"] = merge(tensors[f"{name}.weight"], *adapter)
        except (KeyError, RuntimeError) as error:
            raise InputError(f"{where} has an adapter of {name} that does not fit the model beside it") from error
    return plain


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """Inside, the adapters are part of the weights, as in the MODEL that is stored; the matrices wait on the host.

    Nothing is frozen there: autocast rounds a parameter that is trained once, and a frozen one at every use.
    """
    adapted = [module for module in model.modules() if isinstance(module, AdaptedLinear)]
    kept = [module.weight.to("cpu", copy=True) for module in adapted]
    frozen = [p for p in model.parameters() if not (p.requires_grad or hasattr(p, "full_tensor"))]  # nor sharded
    try:
        for module in adapted:
            module.is_merged = True
            own = module.adapter
            module.weight.copy_(merge(module.weight, own.down, own.up, own.scale).detach())
        for parameter in frozen:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        for module, weight in zip(adapted, kept, strict=True):
            module.is_merged = False
            module.weight.copy_(weight)
