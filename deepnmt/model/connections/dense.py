"""Dense residual connection: the input of a layer is the sum of all outputs below it."""

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


class DenseConfig(ConnectionConfig):
    kind = "dense"


class Dense(Connection):
    """x_{l+1} = sum_k y_k (Britz et al. 2017; figure 2b of the paper).

    y_k already contains its own input, so under pre-norm the scale doubles with every layer.
    """

    Config = DenseConfig
    grows = True
    is_mixture = True

    def __init__(self, config: DenseConfig, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.count = shape.num_layers + 1

    def mixture(self) -> Mixture:
        return Mixture(lower_triangle(self.count).float().unsqueeze(2), [nn.Identity()] * self.count)

    def read(self, history: History) -> Tensor:
        return mix(history, history[0].new_ones(len(history), 1).float())
