"""Transparent attention: residual inside, and on top one learned mixture for each decoder layer."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.model.connections.connection import Connection, ConnectionConfig, History, LearnedWeights, StackShape
from deepnmt.model.kernels.mixture import mix
from deepnmt.settings import check_bounds


@dataclass(frozen=True, kw_only=True)
class TransparentConfig(ConnectionConfig):
    kind = "transparent"
    dropout: float = 0.1  # on the normalised weights

    def __post_init__(self) -> None:
        check_bounds(self, "connection.dropout", least=0, below=1)


class Transparent(Connection):
    """Reader j gets sum_k s_kj y_k, with s_j = dropout(softmax(W_j)) over all outputs, the embedding included.

    Bapna et al. 2018, section 4.
    """

    Config = TransparentConfig

    def __init__(self, config: TransparentConfig, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.dropout = config.dropout
        self.weight = nn.Parameter(torch.zeros(shape.num_layers + 1, shape.num_readers))

    def memories(self, history: History) -> list[Tensor]:
        shares = F.dropout(self.weight.float().softmax(0), self.dropout, self.training)
        return [mix(history, column.unsqueeze(1)) for column in shares.unbind(1)]

    def matrix(self) -> Tensor:
        """Rows are the readers (decoder layers), columns the outputs of the encoder."""
        return self.weight.detach().float().softmax(0).T.cpu()

    def learned_weights(self) -> LearnedWeights:
        matrix = self.matrix()
        numbers = range(1, len(matrix) + 1)
        return LearnedWeights(
            matrix, tuple(f"decoder {j}" for j in numbers), tuple(f"decoder layer {j}" for j in numbers)
        )
