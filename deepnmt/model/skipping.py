"""Random skipping of layers and sub-layers in training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from deepnmt.model.kernels.dropout import fresh_seed

SEEDS = 2**31 - 1


def unless_dropped(p: float, compute: Callable[[], Tensor], instead: Tensor) -> Tensor:
    """compute(), or `instead` with probability p.

    On a GPU both are computed, because a CUDA graph cannot branch; elsewhere skipping saves time.
    """
    if instead.is_cuda:
        return torch.where(fresh_seed(instead.device) < int(p * SEEDS), instead, compute())
    return instead if torch.rand(()) < p else compute()


class LayerDrop(nn.Module):
    """A layer returns its input with probability p in training (Fan et al. 2020, https://arxiv.org/abs/1909.11556)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return unless_dropped(self.p, lambda: layer(x), x) if self.training and self.p else layer(x)


class Skip(LayerDrop):
    """The branch F of a sub-layer becomes m F / (1 - p) in training, m = 0 with probability p and 1 otherwise.

    Li et al. 2021 (https://arxiv.org/abs/2012.13866), who train with m F and evaluate (1 - p) F. This is equivalent
    up to a constant in the weights, and gives a plain model.
    """

    def forward(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return function(x)
        return unless_dropped(self.p, lambda: function(x) / (1 - self.p), torch.zeros_like(x))


@contextmanager
def nothing_skipped(model: nn.Module) -> Iterator[None]:
    """Inside, training computes every layer and sub-layer."""
    skips = {module: module.p for module in model.modules() if isinstance(module, LayerDrop)}
    for module in skips:
        module.p = 0.0
    try:
        yield
    finally:
        for module, p in skips.items():
            module.p = p


@contextmanager
def bypassed(layer: nn.Module) -> Iterator[None]:
    """Inside, this layer returns its input, like one that LayerDrop skips, but always and in evaluation too.

    Its connection is given y = x, the output of a layer that adds nothing, and needs no code for that.
    """
    handle = layer.register_forward_hook(lambda module, given, output: given[0])
    try:
        yield
    finally:
        handle.remove()
