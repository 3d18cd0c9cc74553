"""The interface of schemes around a sub-layer, which combine a function's output with its input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor, nn

from deepnmt.model.kernels.dropout import Dropout
from deepnmt.model.norms import LayerNorm, NewNorm
from deepnmt.model.skipping import Skip

NormPlacement = Literal["pre", "post"]
Branch = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class SublayerConfig:
    """The options of a scheme. Each scheme has its own config, identified by `kind`."""

    kind: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class Place:
    """The position of a sub-layer, and what it is built with."""

    dim: int
    dropout: float
    layer: int = 1  # counted from 1
    num_encoder_layers: int = 1
    num_decoder_layers: int = 1
    is_decoder: bool = False
    is_cross_attention: bool = False
    ends_layer: bool = False  # it is the last sub-layer of its layer
    skip: float = 0.0  # probability of leaving out its branch in training
    new_norm: NewNorm = LayerNorm

    @property
    def num_layers(self) -> int:
        return self.num_decoder_layers if self.is_decoder else self.num_encoder_layers


class Function(Protocol):
    """Attention or feed-forward, without the scheme around it."""

    def branch_weights(self) -> list[Tensor]:
        """The matrices that the branch is linear in, one after the other: not those of queries and keys."""

    def ends(self) -> tuple[nn.Linear, nn.Linear]:
        """The first and the last matrix."""


class Sublayer(nn.Module):
    """Around a function F of the same width. A scheme overrides `forward`, and `initialize` if needed."""

    weight: nn.Parameter

    Config: ClassVar[type[SublayerConfig]]
    placement: ClassVar[NormPlacement]  # post: a layer's output is normalised; pre: it is a sum
    norms_embedding: ClassVar[bool] = False  # a norm of the stack's input
    norms_result: ClassVar[bool] = True  # a norm of the stack's result, where `placement` is pre
    norms_inside: ClassVar[bool] = False  # a norm before the last matrix of self-attention and feed-forward
    learns_factors: ClassVar[bool] = False  # `weight`, a number or one for each dimension
    grows: ClassVar[bool] = False  # its constants, start and norms do not depend on the depth of the stack
    starts_from_data: ClassVar[bool] = False  # `start_from` completes the initialisation
    folds_into: ClassVar[NormPlacement | None] = None  # the plain scheme of `fold_into`
    folds_through_norms: ClassVar[bool] = False  # only where a sub-layer's input is the norm of the one below

    def __init__(self, config: Any, place: Place) -> None:
        super().__init__()
        self.norm = place.new_norm(place.dim)
        self.dropout = Dropout(place.dropout)
        self.skip = Skip(place.skip)

    def forward(self, x: Tensor, function: Branch, layer_input: Tensor) -> Tensor:
        """x: the input of the sub-layer; layer_input: that of its layer."""
        raise NotImplementedError

    def branch(self, function: Branch, x: Tensor) -> Tensor:
        """dropout(function(x)), which training may skip"""
        branch: Tensor = self.dropout(self.skip(function, x))
        return branch

    def initialize(self, function: Function) -> None:
        """Change the initialisation of the function, if that is part of the scheme."""

    def start_from(self, variances_below: list[float]) -> None:
        """Initialise from the variances of the stack's input and of the branches below, found in a pass over data."""

    def fold_into(self, plain: "Sublayer", function: Function, below: "Sublayer | None") -> None:
        """Make a plain scheme with the same weights equivalent to this one, by changing it, its function, or the plain
        scheme below it."""

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
