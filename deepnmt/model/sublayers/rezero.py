"""ReZero: no norm; every branch has a learned factor, initially zero."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from deepnmt.model.sublayers.sublayer import Place, Sublayer, SublayerConfig


@dataclass(frozen=True, kw_only=True)
class ReZeroConfig(SublayerConfig):
    kind: str = field(default="rezero", init=False)


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

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor], layer_input: Tensor) -> Tensor:
        return x + self.dropout((self.weight * function(x)).to(x.dtype))
