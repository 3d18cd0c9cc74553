"""Peri-LN: a norm on both sides of the function, on the embedding and on the result."""

from torch import Tensor

from deepnmt.model.norms import beside
from deepnmt.model.sublayers.sublayer import Branch, Place, Sublayer, SublayerConfig


class PeriConfig(SublayerConfig):
    kind = "peri"


class Peri(Sublayer):
    """x + LN_out(F(LN_in(x))) (Kim et al. 2025, https://arxiv.org/abs/2502.02732)."""

    Config = PeriConfig
    placement = "pre"
    norms_embedding = True

    def __init__(self, config: PeriConfig, place: Place) -> None:
        super().__init__(config, place)
        self.output_norm = place.new_norm(place.dim)

    def forward(self, x: Tensor, function: Branch, layer_input: Tensor) -> Tensor:
        x, normed = beside(x, self.norm)
        return x + self.branch(lambda z: self.output_norm(function(z)), normed)
