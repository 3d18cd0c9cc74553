"""Layer scale: pre-norm with a learned factor per dimension, initialised near zero."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deepnmt.model.norms import beside
from deepnmt.model.sublayers.sublayer import Branch, Function, Place, Sublayer, SublayerConfig, scale_result
from deepnmt.settings import check_bounds


@dataclass(frozen=True, kw_only=True)
class LayerScaleConfig(SublayerConfig):
    kind = "layer-scale"
    start: float | None = None  # None: by the depth of the stack, as in the paper

    def __post_init__(self) -> None:
        check_bounds(self, "sublayer.start", above=0)


def start_at(depth: int) -> float:
    """Touvron et al., section 2."""
    return 0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6


class LayerScale(Sublayer):
    """x + g * F(LN(x)), g a learned vector (Touvron et al. 2021, https://arxiv.org/abs/2103.17239)."""

    Config = LayerScaleConfig
    placement = "pre"
    learns_factors = True
    folds_into = "pre"

    def __init__(self, config: LayerScaleConfig, place: Place) -> None:
        super().__init__(config, place)
        start = config.start or start_at(place.num_layers)
        self.weight = nn.Parameter(torch.full((place.dim,), start))

    def forward(self, x: Tensor, function: Branch, layer_input: Tensor) -> Tensor:
        x, normed = beside(x, self.norm)
        return x + self.branch(lambda z: (self.weight * function(z)).to(x.dtype), normed)

    def fold_into(self, plain: Sublayer, function: Function, below: Sublayer | None) -> None:
        """The last matrix absorbs g."""
        scale_result(function, self.weight)
