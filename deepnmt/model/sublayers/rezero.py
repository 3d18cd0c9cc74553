"""ReZero: no norm; every branch has a learned factor, initially zero."""

import torch
from torch import Tensor, nn

from deepnmt.model.sublayers.sublayer import Branch, Place, Sublayer, SublayerConfig


class ReZeroConfig(SublayerConfig):
    kind = "rezero"


class ReZero(Sublayer):
    """x + a F(x), with a learned number a that starts at zero (Bachlechner et al. 2021,
    https://arxiv.org/abs/2003.04887)."""

    Config = ReZeroConfig
    placement = "pre"
    learns_factors = True
    norms_result = False

    def __init__(self, config: ReZeroConfig, place: Place) -> None:
        super().__init__(config, place)
        self.norm = nn.Identity()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, function: Branch, layer_input: Tensor) -> Tensor:
        return x + self.branch(lambda z: (self.weight * function(z)).to(x.dtype), x)
