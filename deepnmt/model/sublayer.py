"""Norm placement: what happens around one sub-layer (equations 3 and 4). The other axis is `connections`."""

from collections.abc import Callable

from torch import Tensor, nn

from deepnmt.model.kernels.dropout import Dropout


class LayerNorm(nn.LayerNorm):
    """Computes in fp32 under mixed precision and returns the type it was given: the stack stays in half precision."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class Sublayer(nn.Module):
    """The residual unit around a function F of the same width."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        raise NotImplementedError


class PreNorm(Sublayer):
    """x + F(LN(x))"""

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.dropout(function(self.norm(x)))


class PostNorm(Sublayer):
    """LN(x + F(x))"""

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(x + self.dropout(function(x)))


SUBLAYERS: dict[str, type[Sublayer]] = {"pre": PreNorm, "post": PostNorm}
