"""Dynamic dense connections: a weighted sum of all outputs so far, with weights that depend on the position."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from deepnmt.model.connections.connection import Connection, ConnectionConfig, History, StackShape
from deepnmt.model.connections.denseformer import DenseFormerConfig
from deepnmt.model.kernels.mixture import Networks, PositionTape, open_position_tape


class DynamicDenseConfig(DenseFormerConfig):
    kind = "dynamic-dense"


class TapedHistory(History):
    """The last output, and those that rows read, with the tapes that mix them and the networks of the weights.

    A row reads outputs of its own depth modulo the dilation. These are a group, which has its own tape.
    """

    last: Tensor

    def __init__(self, tapes: list[PositionTape], networks: list[Networks]) -> None:
        super().__init__()
        self.depth = -1
        self.groups: list[tuple[PositionTape, list[Tensor]]] = [(tape, []) for tape in tapes]
        self.networks = networks

    @property
    def group(self) -> tuple[PositionTape, list[Tensor]]:
        return self.groups[self.depth % len(self.groups)]


class DynamicDense(Connection):
    """x_{l+1} = sum_k (a[l,k] + d_k) y_k at each position, with d = U_l gelu(V_l rms(y_l)) of that position.

    Xiao et al. 2025, https://arxiv.org/abs/2502.12170, with one mixture per layer. Initialised as the residual stack:
    a = identity, U = 0, V from N(0, 1/dim). The input of the first layer is the embedding.

    Dilation and period thin it out as in DenseFormer (https://arxiv.org/abs/2402.02622), but the result of the stack is
    always a mixture. Where there is none, x_{l+1} = y_l, without parameters.
    """

    Config: ClassVar[type[ConnectionConfig]] = DynamicDenseConfig

    def __init__(self, config: DynamicDenseConfig, shape: StackShape) -> None:
        super().__init__(config, shape)
        depth, self.dilation = shape.num_layers, config.dilation
        self.rows = [row for row in range(1, depth + 1) if row % config.period == 0 or row == depth]
        self.kept = {output for row in self.rows for output in range(depth + 1)[self._sources(row)]}
        self.rows_of = [[row for row in self.rows if row % self.dilation == group] for group in range(self.dilation)]
        self.weight = nn.Parameter(self.start(depth + 1)[[0, *self.rows]])
        counts = [row // self.dilation + 1 for row in self.rows]
        self.inner = nn.ParameterList(torch.empty(count + 1, shape.dim) for count in counts)
        for inner in self.inner:
            nn.init.normal_(inner, std=shape.dim**-0.5)
        self.outer = nn.ParameterList(torch.zeros(count, count + 1) for count in counts)

    @staticmethod
    def start(count: int) -> Tensor:
        return torch.eye(count)

    def begin(self) -> TapedHistory:
        tapes, networks = [], []
        weights = dict(zip(self.rows, self.weight.unbind()[1:], strict=True))
        inner, outer = (dict(zip(self.rows, matrices, strict=True)) for matrices in (self.inner, self.outer))
        for group, rows in enumerate(self.rows_of):
            count = sum(k % self.dilation == group for k in self.kept)
            tapes.append(open_position_tape(count, len(rows), on_gpu=self.weight.is_cuda))
            base = torch.stack([weights[row] for row in rows])[:, self._sources(rows[-1])] if rows else self.weight
            networks.append(Networks(base, [inner[row] for row in rows], [outer[row] for row in rows]))
        return TapedHistory(tapes, networks)

    def write(self, history: TapedHistory, output: Tensor) -> None:
        history.depth += 1
        if history.depth in self.kept:
            tape, outputs = history.group
            output = tape.enter(output)
            outputs.append(output)
        history.last = output

    def read(self, history: TapedHistory) -> Tensor:
        return self.mix(history) if history.depth in self.rows else history.last

    def mix(self, history: TapedHistory) -> Tensor:
        group = history.depth % self.dilation
        tape, outputs = history.groups[group]
        return tape.mix_by(history.networks[group], self.rows_of[group].index(history.depth), outputs)

    def matrix(self) -> Tensor:
        """The part that is the same for every position."""
        weight = self.weight.detach().float().cpu()
        matrix = torch.eye(weight.shape[1])
        for number, row in enumerate([0, *self.rows]):
            matrix[row] = 0
            matrix[row, self._sources(row)] = weight[number, self._sources(row)]
        return matrix

    def _sources(self, row: int) -> slice:
        return slice(row % self.dilation, row + 1, self.dilation)
