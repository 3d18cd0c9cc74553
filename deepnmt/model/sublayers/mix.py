"""Mix-LN: post-norm in the lowest layers, pre-norm above them."""

from dataclasses import dataclass

from torch import Tensor

from deepnmt.model.norms import beside
from deepnmt.model.sublayers.sublayer import Branch, Place, Sublayer, SublayerConfig
from deepnmt.settings import check_bounds


@dataclass(frozen=True, kw_only=True)
class MixConfig(SublayerConfig):
    kind = "mix"
    post_share: float = 0.25  # of the layers, from below

    def __post_init__(self) -> None:
        check_bounds(self, "sublayer.post_share", least=0, below=1)


class Mix(Sublayer):
    """LN(x + F(x)) in the first layers, x + F(LN(x)) in the others (Li et al. 2024, https://arxiv.org/abs/2412.13795).

    The share of post-norm layers is rounded down.
    """

    Config = MixConfig
    placement = "pre"  # that of the last layer

    def __init__(self, config: MixConfig, place: Place) -> None:
        super().__init__(config, place)
        self.is_post = place.layer <= int(config.post_share * place.num_layers)

    def forward(self, x: Tensor, function: Branch, layer_input: Tensor) -> Tensor:
        if self.is_post:
            return self.norm(x + self.branch(function, x))
        x, normed = beside(x, self.norm)
        return x + self.branch(function, normed)
