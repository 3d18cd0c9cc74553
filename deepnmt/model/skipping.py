"""Random skipping of layers and sub-layers in training."""

from collections.abc import Callable

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


class Skip(nn.Module):
    """The branch F of a sub-layer becomes m F / (1 - p) in training, m = 0 with probability p and 1 otherwise.

    Li et al. 2021 (https://arxiv.org/abs/2012.13866), who train with m F and evaluate (1 - p) F. This is equivalent
    up to a constant in the weights, and gives a plain model.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        if not self.training or self.p == 0:
            return function
        return lambda x: unless_dropped(self.p, lambda: function(x) / (1 - self.p), torch.zeros_like(x))
