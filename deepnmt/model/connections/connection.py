"""What every connection scheme is: a rule by which the outputs of a stack's layers become the input of the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from deepnmt.model.norms import LayerNorm, NewNorm
from deepnmt.model.sublayers import NormPlacement


@dataclass(frozen=True, kw_only=True)
class ConnectionConfig:
    """The options of a scheme. Each scheme has its own config, identified by `kind`."""

    kind: str

    def check(self, dim: int) -> None:
        """Raise ValueError where an option does not fit the width of the stack."""

    def check_growth(self, depths: Sequence[int]) -> None:
        """Raise ValueError where a stack of a scheme that grows cannot have these depths one after the other."""


@dataclass(frozen=True, kw_only=True)
class StackShape:
    """What a scheme needs to know of the stack it connects."""

    num_layers: int
    dim: int
    norm: NormPlacement
    num_readers: int  # how many layers read the stack's result: the decoder's layers for an encoder, else one
    new_norm: NewNorm = LayerNorm


class History(list[Tensor]):
    """The outputs y_0 (the embedding), y_1, ... y_l of the layers so far; local to one pass through the stack."""


@dataclass(frozen=True)
class LearnedWeights:
    """For pictures: the weight of each output y_k (columns) in each row."""

    matrix: Tensor  # (rows, columns), zero where not connected
    rows: tuple[str, ...]  # symbols: x1 is the input of layer 1
    readers: tuple[str, ...]  # who reads a row, in words


@dataclass(frozen=True)
class StepMixture:
    """For kernels that decode: what follows layer l is row l of `matrix` times the outputs y_0, ..., y_l."""

    matrix: Tensor | None  # (rows, columns), fp32; None: the last output alone
    norms: Sequence[nn.Module]  # the scheme's own, of each output (pre-norm) or of each row (post-norm)


class Connection(nn.Module):
    """x_{l+1} = G(y_0, ..., y_l), equation 6 of the paper. The base class is the residual stack: G = y_l.

    One pass is `begin`, then `write` and `read` in turn for every layer, then `memories`. A scheme overrides what it
    changes. Nothing of a pass is kept in the module.
    """

    Config: ClassVar[type[ConnectionConfig]]
    grows: ClassVar[bool] = False  # `grow_from` is known
    has_shortcuts: ClassVar[bool] = True  # an output may reach more than the next layer, so a layer may be bypassed
    needs_branches: ClassVar[bool] = False  # it uses what a layer adds to its input, y - x

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__()

    def begin(self) -> History:
        return History()

    def write(self, history: History, output: Tensor) -> None:
        """Take the output of the layer at depth len(history)."""
        history.append(output)

    def read(self, history: History) -> Tensor:
        """The input of the next layer; after the last layer, the result of the stack."""
        return history[-1]

    def memories(self, history: History) -> list[Tensor]:
        """What the readers of the stack see: one tensor for all of them, or one for each."""
        return [self.read(history)]

    def grow_from(self, shallow: "Connection") -> None:
        """Take over what the connection of a shallower stack has learned, of which this one has the top layers twice.

        Nothing, where nothing is learned.
        """

    def matrix(self) -> Tensor | None:
        """The weights of y_k (columns) in what follows layer l (rows); None if the scheme has none.

        (rows, columns), the mean over dimensions if a weight is a vector; entries that are not connected are zero.
        """
        return None

    def step_mixture(self) -> StepMixture | None:
        """How a fused decoding step computes this scheme; None if the kernels cannot."""
        return None

    def learned_weights(self) -> LearnedWeights | None:
        """What a picture of this scheme shows; None if nothing is learned."""
        matrix = self.matrix()
        if matrix is None or not any(parameter.requires_grad for parameter in self.parameters(recurse=False)):
            return None
        count = len(matrix)
        readers = (*(f"layer {row}" for row in range(1, count)), "the output")
        return LearnedWeights(matrix, tuple(f"x{row}" for row in range(1, count + 1)), readers)


def lower_triangle(size: int, window: int | None = None) -> Tensor:
    """True where row l may use column k: k <= l, and k among the last `window` outputs."""
    connected = torch.ones(size, size, dtype=torch.bool).tril()
    return connected if window is None else connected.triu(1 - window)
