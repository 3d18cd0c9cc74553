"""Pre-norm: the norm is on the function's input, and the residual path is unnormalised."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from deepnmt.model.norms import beside
from deepnmt.model.sublayers.sublayer import Sublayer, SublayerConfig


@dataclass(frozen=True, kw_only=True)
class PreNormConfig(SublayerConfig):
    kind: str = field(default="pre", init=False)


class PreNorm(Sublayer):
    """x + F(LN(x)), equation 4 of the paper."""

    Config = PreNormConfig
    placement = "pre"

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor], layer_input: Tensor) -> Tensor:
        x, normed = beside(x, self.norm)
        return x + self.dropout(function(normed))
