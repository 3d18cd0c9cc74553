"""What every scheme around a sub-layer is: a rule by which a function's result joins the input it came from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor, nn

from deepnmt.model.kernels.dropout import Dropout
from deepnmt.model.norms import LayerNorm, NewNorm

NormPlacement = Literal["pre", "post"]


@dataclass(frozen=True, kw_only=True)
class SublayerConfig:
    """The options of a scheme. Each scheme has its own config, identified by `kind`."""

    kind: str


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a sub-layer is, and what it is built with."""

    dim: int
    dropout: float
    layer: int = 1  # counted from 1
    num_encoder_layers: int = 1
    num_decoder_layers: int = 1
    is_decoder: bool = False
    is_cross_attention: bool = False
    ends_layer: bool = False  # it is the last sub-layer of its layer
    new_norm: NewNorm = LayerNorm

    @property
    def num_layers(self) -> int:
        return self.num_decoder_layers if self.is_decoder else self.num_encoder_layers


class Function(Protocol):
    """Attention or feed-forward, without what is around it."""

    def branch_weights(self) -> list[Tensor]:
        """The matrices that the branch is linear in, one after the other: not those of queries and keys."""

    def ends(self) -> tuple[nn.Linear, nn.Linear]:
        """What reads the input, and what makes the result."""


class Sublayer(nn.Module):
    """Around a function F of the same width. A scheme overrides `forward`, and states its own start in `initialize`."""

    weight: nn.Parameter

    Config: ClassVar[type[SublayerConfig]]
    placement: ClassVar[NormPlacement]  # post: what leaves a layer is normalised; pre: it is a sum
    norms_embedding: ClassVar[bool] = False  # a norm of the stack's input
    norms_result: ClassVar[bool] = True  # a norm of the stack's result, where `placement` is pre
    norms_inside: ClassVar[bool] = False  # a norm before the last matrix of self-attention and feed-forward
    learns_factors: ClassVar[bool] = False  # `weight`, a number or one for each dimension
    starts_from_data: ClassVar[bool] = False  # `start_from` completes the start
    folds_into: ClassVar[NormPlacement | None] = None  # the plain scheme that `fold_into` knows how to become
    folds_through_norms: ClassVar[bool] = False  # only where a sub-layer's input is the norm of the one below

    def __init__(self, config: Any, place: Place) -> None:
        super().__init__()
        self.norm = place.new_norm(place.dim)
        self.dropout = Dropout(place.dropout)

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor], layer_input: Tensor) -> Tensor:
        """x: the input of the sub-layer; layer_input: that of its layer."""
        raise NotImplementedError

    def initialize(self, function: Function) -> None:
        """Change how the function starts, if that is part of the scheme."""

    def start_from(self, variances_below: list[float]) -> None:
        """Start by the variances of the branches below this one in its stack, found by a pass over data."""

    def fold_into(self, plain: "Sublayer", function: Function, below: "Sublayer | None") -> None:
        """Let a plain scheme, which has the same weights, compute what this one does: change it, its function, or the
        plain scheme below it."""

    @classmethod
    def folded_eps(cls, eps: float, place: Place) -> float:
        """The epsilon of the plain scheme's norms."""
        return eps


def scale_result(function: Function, factor: float | Tensor) -> None:
    """factor: a number, or one for each dimension"""
    _, last = function.ends()
    last.bias.mul_(factor)
    last.weight.T.mul_(factor)


def scale_branch(function: Function, gain: float) -> None:
    for weight in function.branch_weights():
        weight.mul_(gain)
