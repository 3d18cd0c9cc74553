"""Layer-norm scaling: pre-norm with smaller inputs in deeper layers, so that the variance grows slowly."""

import torch
from torch import Tensor

from deepnmt.model.norms import beside
from deepnmt.model.sublayers.sublayer import Branch, Function, Place, Sublayer, SublayerConfig


class ScaledNormConfig(SublayerConfig):
    kind = "scaled"


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

    def forward(self, x: Tensor, function: Branch, layer_input: Tensor) -> Tensor:
        x, normed = beside(x, self.norm)
        return x + self.branch(function, normed / self.layer.sqrt())

    def fold_into(self, plain: Sublayer, function: Function, below: Sublayer | None) -> None:
        """The norm absorbs 1 / sqrt(l)."""
        for parameter in plain.norm.parameters():
            parameter.div_(self.layer.sqrt())
