"""Pre-norm: the norm is on the function's input, and the residual path is unnormalised."""

from typing import ClassVar

from torch import Tensor

from deepnmt.model.norms import beside
from deepnmt.model.sublayers.sublayer import Branch, Sublayer, SublayerConfig


class PreNormConfig(SublayerConfig):
    kind = "pre"


class PreNorm(Sublayer):
    """x + F(LN(x)), equation 4 of the paper."""

    Config: ClassVar[type[SublayerConfig]] = PreNormConfig
    placement = "pre"
    grows = True

    def forward(self, x: Tensor, function: Branch, layer_input: Tensor) -> Tensor:
        x, normed = beside(x, self.norm)
        return x + self.branch(function, normed)
