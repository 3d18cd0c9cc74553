"""Post-norm: the norm is on the sum, as in the first Transformer."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from deepnmt.model.sublayers.sublayer import Sublayer, SublayerConfig


@dataclass(frozen=True, kw_only=True)
class PostNormConfig(SublayerConfig):
    kind: str = field(default="post", init=False)


class PostNorm(Sublayer):
    """LN(x + F(x)), equation 3 of the paper."""

    Config = PostNormConfig
    placement = "post"

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor], layer_input: Tensor) -> Tensor:
        return self.norm(x + self.dropout(function(x)))
