"""Layer-norm scaling: pre-norm with smaller inputs in deeper layers, so that the variance grows slowly."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from deepnmt.model.norms import beside
from deepnmt.model.sublayers.sublayer import Function, Place, Sublayer, SublayerConfig


@dataclass(frozen=True, kw_only=True)
class ScaledNormConfig(SublayerConfig):
    kind: str = field(default="scaled", init=False)


class ScaledNorm(Sublayer):
    """x + F(LN(x) / sqrt(l)), l the layer counted from 1 (Sun et al. 2025, https://arxiv.org/abs/2502.05795)."""

    Config = ScaledNormConfig
    placement = "pre"
    folds_into = "pre"
    layer: Tensor

    def __init__(self, config: ScaledNormConfig, place: Place) -> None:
        super().__init__(config, place)
        # A tensor, because a Python number would be compiled separately for every layer.
        self.register_buffer("layer", torch.tensor(float(place.layer)), persistent=False)

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor], layer_input: Tensor) -> Tensor:
        x, normed = beside(x, self.norm)
        return x + self.dropout(function(normed / self.layer.sqrt()))

    def fold_into(self, plain: Sublayer, function: Function, below: Sublayer | None) -> None:
        """The norm absorbs 1 / sqrt(l)."""
        for parameter in plain.norm.parameters():
            parameter.div_(self.layer.sqrt())
