"""DeepNorm: post-norm with a depth-dependent weight on the residual."""

from torch import Tensor

from deepnmt.model.sublayers.sublayer import (
    Branch,
    Function,
    Place,
    Sublayer,
    SublayerConfig,
    scale_branch,
    scale_result,
)


class DeepNormConfig(SublayerConfig):
    kind = "deepnorm"


def constants(place: Place) -> tuple[float, float]:
    """a and the gain"""
    n, m = place.num_encoder_layers, place.num_decoder_layers
    if place.is_decoder:
        return (3 * m) ** 0.25, (12 * m) ** -0.25
    return 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)


class DeepNorm(Sublayer):
    """LN(a x + F(x)); the branch is initialised smaller by a gain (Wang et al. 2022, https://arxiv.org/abs/2203.00555).

    With N encoder and M decoder layers, encoder: a = .81 (N^4 M)^(1/16), gain .87 (N^4 M)^(-1/16); decoder: a =
    (3M)^(1/4), gain (12M)^(-1/4). The gain is on all matrices but those of queries and keys.
    """

    Config = DeepNormConfig
    placement = "post"
    folds_into = "post"

    def __init__(self, config: DeepNormConfig, place: Place) -> None:
        super().__init__(config, place)
        self.residual, self.gain = constants(place)

    def forward(self, x: Tensor, function: Branch, layer_input: Tensor) -> Tensor:
        return self.norm(self.residual * x + self.branch(function, x))

    def initialize(self, function: Function) -> None:
        scale_branch(function, self.gain)

    def fold_into(self, plain: Sublayer, function: Function, below: Sublayer | None) -> None:
        """LN(a x + F) is LN(x + F / a), if its epsilon is divided by a^2."""
        scale_result(function, 1 / self.residual)

    @classmethod
    def folded_eps(cls, eps: float, place: Place) -> float:
        return eps / constants(place)[0] ** 2
