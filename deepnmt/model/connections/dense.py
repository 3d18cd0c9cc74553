"""Dense residual connection: the input of a layer is the sum of all outputs below it."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from deepnmt.model.connections.connection import Connection, ConnectionConfig, History, Mixture, StackShape
from deepnmt.model.kernels.mixture import mix


class DenseConfig(ConnectionConfig):
    kind = "dense"


class Dense(Connection):
    """x_{l+1} = sum_k y_k (Britz et al. 2017; figure 2b of the paper).

    y_k already contains its own input, so under pre-norm the scale doubles with every layer.
    """

    Config: ClassVar[type[ConnectionConfig]] = DenseConfig
    grows = True
    is_mixture = True

    def __init__(self, config: ConnectionConfig, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.count = shape.num_layers + 1

    def share(self, count: int) -> float:
        """The weight of each of the `count` outputs so far."""
        return 1.0

    def mixture(self) -> Mixture:
        shares = torch.tensor([[self.share(row)] * self.count for row in range(1, self.count + 1)])
        return Mixture(shares.tril().unsqueeze(2), [nn.Identity()] * self.count)

    def read(self, history: History) -> Tensor:
        count, device = len(history), history[0].device
        return mix(history, torch.full((count, 1), self.share(count), device=device))
