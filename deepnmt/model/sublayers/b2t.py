"""B2T (bottom to top): post-norm in which a layer's input also bypasses all norms but the last."""

from torch import Tensor

from deepnmt.model.sublayers.sublayer import Branch, Place, Sublayer, SublayerConfig


class B2tConfig(SublayerConfig):
    kind = "b2t"


class B2t(Sublayer):
    """z = LN(x + F(x)), and at the end of the layer LN(x_0 + z + F(z)), where x_0 is the layer's input.

    Takase et al. 2023, https://arxiv.org/abs/2206.00330
    """

    Config = B2tConfig
    placement = "post"

    def __init__(self, config: B2tConfig, place: Place) -> None:
        super().__init__(config, place)
        self.ends_layer = place.ends_layer

    def forward(self, x: Tensor, function: Branch, layer_input: Tensor) -> Tensor:
        added = x + self.branch(function, x)
        return self.norm(layer_input + added if self.ends_layer else added)
