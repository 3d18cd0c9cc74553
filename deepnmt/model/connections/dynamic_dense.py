"""Dynamic dense connections: a weighted sum of all outputs so far, with weights that depend on the position."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.model.connections.connection import Connection, ConnectionConfig, History, StackShape
from deepnmt.model.kernels.mixture import PositionTape, open_position_tape
from deepnmt.model.norms import inverse_rms


@dataclass(frozen=True, kw_only=True)
class DynamicDenseConfig(ConnectionConfig):
    kind: str = field(default="dynamic-dense", init=False)


class TapedHistory(History):
    """Also has the tape that mixes the outputs of this pass."""

    def __init__(self, tape: PositionTape) -> None:
        super().__init__()
        self.tape = tape


class DynamicDense(Connection):
    """x_{l+1} = sum_k (a[l,k] + d_k) y_k at each position, with d = U_l gelu(V_l rms(y_l)) of that position.

    Xiao et al. 2025, https://arxiv.org/abs/2502.12170, with one mixture per layer. Initialised as the residual stack:
    a = identity, U = 0, V from N(0, 1/dim). The input of the first layer is the embedding.
    """

    Config: ClassVar[type[ConnectionConfig]] = DynamicDenseConfig

    def __init__(self, config: ConnectionConfig, shape: StackShape) -> None:
        super().__init__(config, shape)
        rows = range(1, shape.num_layers + 1)
        self.weight = nn.Parameter(self.start(shape.num_layers + 1))
        self.inner = nn.ParameterList(torch.empty(row + 2, shape.dim) for row in rows)
        for inner in self.inner:
            nn.init.normal_(inner, std=shape.dim**-0.5)
        self.outer = nn.ParameterList(torch.zeros(row + 1, row + 2) for row in rows)

    @staticmethod
    def start(count: int) -> Tensor:
        return torch.eye(count)

    def begin(self) -> TapedHistory:
        return TapedHistory(open_position_tape(len(self.weight), on_gpu=self.weight.is_cuda))

    def write(self, history: History, output: Tensor) -> None:
        assert isinstance(history, TapedHistory)
        history.append(history.tape.enter(output))

    def read(self, history: History) -> Tensor:
        return history[0] if len(history) == 1 else self.mix(history)

    def mix(self, history: History) -> Tensor:
        assert isinstance(history, TapedHistory)
        row, last = len(history) - 1, history[-1]
        inner, outer = self.inner[row - 1], self.outer[row - 1]
        hidden = F.gelu(F.linear(last, inner) * inverse_rms(last))
        dynamic = F.linear(hidden.to(outer.dtype), outer).to(hidden.dtype)
        return history.tape.mix(history, self.weight[row, : row + 1].to(hidden.dtype) + dynamic)

    def matrix(self) -> Tensor:
        """The part that is the same for every position."""
        return self.weight.detach().float().tril().cpu()
