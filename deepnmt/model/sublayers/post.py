"""Post-norm: the norm is on the sum, as in the first Transformer."""

from torch import Tensor

from deepnmt.model.sublayers.sublayer import Branch, Sublayer, SublayerConfig


class PostNormConfig(SublayerConfig):
    kind = "post"


class PostNorm(Sublayer):
    """LN(x + F(x)), equation 3 of the paper."""

    Config = PostNormConfig
    placement = "post"
    grows = True

    def forward(self, x: Tensor, function: Branch, layer_input: Tensor) -> Tensor:
        return self.norm(x + self.branch(function, x))
