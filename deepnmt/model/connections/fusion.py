"""Multi-layer representation fusion: residual inside, one learned row on top."""

import torch
from torch import Tensor, nn

from deepnmt.model.connections.connection import (
    Connection,
    ConnectionConfig,
    History,
    LearnedWeights,
    Mixture,
    StackShape,
)
from deepnmt.model.kernels.mixture import mix


class FusionConfig(ConnectionConfig):
    kind = "fusion"


class Fusion(Connection):
    """The stack's result is sum_k w_k y_k over all its outputs (Wang et al. 2018; figure 2c of the paper)."""

    Config = FusionConfig
    is_mixture = True

    def __init__(self, config: FusionConfig, shape: StackShape) -> None:
        super().__init__(config, shape)
        count = shape.num_layers + 1
        self.weight = nn.Parameter(torch.full((count, 1), 1 / count))

    def memories(self, history: History) -> list[Tensor]:
        return [mix(history, self.weight)]

    def matrix(self) -> Tensor:
        count = len(self.weight)
        rows = torch.eye(count)
        rows[-1] = self.weight.detach().float().cpu()[:, 0]
        return rows

    def mixture(self) -> Mixture:
        return Mixture(self.matrix().unsqueeze(2), [nn.Identity() for _ in self.weight])

    def learned_weights(self) -> LearnedWeights:
        return LearnedWeights(self.matrix()[-1:], ("result",), ("the output",))  # the rows below it are not learned
