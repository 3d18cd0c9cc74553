"""The interface of connection schemes, which compute the input of a layer from the outputs of those below."""

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

    kind: ClassVar[str]

    def check(self, dim: int) -> None:
        """Raise ValueError if an option does not fit the width of the stack."""

    def check_growth(self, depths: Sequence[int]) -> None:
        """Raise ValueError if a growing stack cannot have these successive depths."""


@dataclass(frozen=True, kw_only=True)
class StackShape:
    """The properties of a stack that a scheme needs."""

    num_layers: int
    dim: int
    norm: NormPlacement
    num_readers: int  # layers that use the stack's result: the decoder layers for an encoder, else one
    new_norm: NewNorm = LayerNorm


class History(list[Tensor]):
    """The outputs y_0 (the embedding), y_1, ... y_l of the layers so far; local to one pass through the stack."""


@dataclass(frozen=True)
class LearnedWeights:
    """The weight of each output y_k (columns) in each row, for plots."""

    matrix: Tensor  # (rows, columns), zero where not connected
    rows: tuple[str, ...]  # symbols: x1 is the input of layer 1
    readers: tuple[str, ...]  # what uses a row, in words


@dataclass(frozen=True)
class Mixture:
    """A scheme as one matrix: the input after layer l is row l times the outputs y_0, ..., y_l, for every sentence."""

    matrix: Tensor | None  # (rows, columns, groups), fp32; None: the last output alone
    norms: Sequence[nn.Module]  # the scheme's own, of each output (pre-norm) or of each row (post-norm)


class Connection(nn.Module):
    """x_{l+1} = G(y_0, ..., y_l), equation 7 of the paper. The base class is the residual stack: G = y_l.

    One pass is `begin`, then `write` and `read` in turn for every layer, then `memories`. A scheme overrides what it
    changes. The module keeps no state of a pass.
    """

    Config: ClassVar[type[ConnectionConfig]]
    grows: ClassVar[bool] = False  # `grow_from` is implemented
    has_shortcuts: ClassVar[bool] = True  # an output may reach more than the next layer, so a layer may be bypassed
    needs_branches: ClassVar[bool] = False  # uses the contribution of a layer, y - x
    is_mixture: ClassVar[bool] = False  # `mixture` is implemented, for every shape

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__()

    def begin(self) -> History:
        """An empty history, of the scheme's own class if it needs more than the outputs."""
        return History()

    def write(self, history: Any, output: Tensor) -> None:
        """Add the output of a layer."""
        history.append(output)

    def read(self, history: Any) -> Tensor:
        """The input of the next layer; after the last layer, the result of the stack."""
        last: Tensor = history[-1]
        return last

    def memories(self, history: Any) -> list[Tensor]:
        """The results of the stack for its readers: one tensor for all, or one for each."""
        return [self.read(history)]

    def grow_from(self, shallow: "Connection") -> None:
        """Copy the parameters of a shallower stack's connection, whose top layers this stack repeats."""

    def matrix(self) -> Tensor | None:
        """The weights of y_k (columns) in the input after layer l (rows); None if the scheme has none.

        (rows, columns), the mean over dimensions if a weight is a vector; entries that are not connected are zero.
        """
        return None

    def mixture(self) -> Mixture | None:
        """The scheme as one matrix, for decoding kernels and other toolkits; None if it is more than that."""
        return None

    def learned_weights(self) -> LearnedWeights | None:
        """The weights to plot; None if nothing is learned."""
        matrix = self.matrix()
        if matrix is None or not any(parameter.requires_grad for parameter in self.parameters(recurse=False)):
            return None
        count = len(matrix)
        readers = (*(f"layer {row}" for row in range(1, count)), "the output")
        return LearnedWeights(matrix, tuple(f"x{row}" for row in range(1, count + 1)), readers)


def contribution(output: Tensor, given: Tensor) -> Tensor:
    """v = y - x, what a layer adds to its input; in fp32, because the difference cancels."""
    wide = torch.promote_types(output.dtype, torch.float32)
    return (output.to(wide) - given.to(wide)).to(output.dtype)


def lower_triangle(size: int, window: int | None = None) -> Tensor:
    """True where row l may use column k: k <= l, and k among the last `window` outputs."""
    connected = torch.ones(size, size, dtype=torch.bool).tril()
    return connected if window is None else connected.triu(1 - window)
