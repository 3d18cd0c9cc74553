"""Attention residuals: each position attends to the contributions of the layers below, with a query per layer."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.model.connections.connection import Connection, ConnectionConfig, History, StackShape, contribution
from deepnmt.model.kernels.mixture import PositionTape, open_position_tape
from deepnmt.model.norms import inverse_rms
from deepnmt.settings import check_bounds


@dataclass(frozen=True, kw_only=True)
class AttentionResidualConfig(ConnectionConfig):
    kind = "attention-residual"
    blocks: int | None = None  # the approximate number of blocks; attends to sums over blocks instead of every layer

    def __post_init__(self) -> None:
        check_bounds(self, "connection.blocks", least=1)


class BranchHistory(History):
    """The branches: the embedding v_0, then v_l = y_l - x_l, in blocks; with the scores that each row gives them."""

    depth = 0
    given: Tensor  # x_l

    def __init__(self, tape: PositionTape) -> None:
        super().__init__()
        self.tape = tape
        self.scores: list[Tensor] = []  # (..., rows) each


class AttentionResidual(Connection):
    """x_{l+1} = sum_i softmax_i(w_l . rms(v_i) + b[l,i]) v_i over v_0, the embedding, and the layers' branches v_i.

    Kimi Team 2026, https://arxiv.org/abs/2603.15031, with one mixture per layer. In the block form the branches of a
    block are summed, including an incomplete last block. With w = b = 0 it is initialised as their mean.
    """

    Config = AttentionResidualConfig
    needs_branches = True

    def __init__(self, config: AttentionResidualConfig, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.block = 1 if config.blocks is None else -(-shape.num_layers // config.blocks)
        self.num_layers = shape.num_layers
        num_sources = 1 + -(-shape.num_layers // self.block)
        self.query = nn.Parameter(torch.zeros(shape.num_layers, shape.dim))  # of rows 1, 2, ...: row 0 has no choice
        self.bias = nn.Parameter(torch.zeros(shape.num_layers, num_sources))

    def begin(self) -> BranchHistory:
        is_fused = self.query.is_cuda and self.block == 1  # the fused tape cannot add to earlier entries
        return BranchHistory(open_position_tape(self.num_layers + 1, self.num_layers, on_gpu=is_fused))

    def write(self, history: BranchHistory, output: Tensor) -> None:
        branch = contribution(output, history.given) if history.depth else output
        if history.depth == 0 or (history.depth - 1) % self.block == 0:
            history.append(history.tape.enter(branch))
        else:
            history[-1] = history[-1] + branch
            history.scores.pop()
        history.scores.append(F.linear(history[-1], self.query) * inverse_rms(history[-1]))
        history.depth += 1

    def read(self, history: BranchHistory) -> Tensor:
        row = history.depth - 2
        if row < 0:
            history.given = history[0]
        else:
            scores = torch.stack([scores[..., row] for scores in history.scores], -1)
            history.given = history.tape.mix(history, (scores + self.bias[row, : len(history)]).softmax(-1))
        return history.given

    def matrix(self) -> Tensor:
        """The weights of the branches (not of outputs) at zero scores; each layer has the weight of its block."""
        depth = torch.arange(self.num_layers + 1)
        source = (depth + self.block - 1) // self.block
        weights = torch.zeros(len(depth), len(depth))
        weights[0, 0] = 1
        for row in range(1, len(depth)):
            shares = self.bias[row - 1, : source[row] + 1].detach().float().cpu().softmax(0)
            weights[row, : row + 1] = shares[source[: row + 1]]
        return weights
