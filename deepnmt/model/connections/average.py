"""The mean of all outputs so far, as at the initialisation of DLCL."""

from torch import Tensor, nn

from deepnmt.model.connections.connection import (
    Connection,
    ConnectionConfig,
    History,
    Mixture,
    StackShape,
    lower_triangle,
)
from deepnmt.model.kernels.mixture import mix


class AverageConfig(ConnectionConfig):
    kind = "average"


class Average(Connection):
    """x_{l+1} = 1 / (l + 1) * sum_k y_k (section 6.3 of the paper, without its LayerNorm)."""

    Config = AverageConfig
    grows = True
    is_mixture = True

    def __init__(self, config: AverageConfig, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.count = shape.num_layers + 1

    def mixture(self) -> Mixture:
        rows = lower_triangle(self.count).float()
        return Mixture((rows / rows.sum(1, keepdim=True)).unsqueeze(2), [nn.Identity()] * self.count)

    def read(self, history: History) -> Tensor:
        count = len(history)
        return mix(history, history[0].new_full((count, 1), 1 / count).float())
