"""Dense residual connection: the input of a layer is the sum of all outputs below it."""

from torch import Tensor

from deepnmt.model.connections.connection import Connection, ConnectionConfig, History
from deepnmt.model.kernels.mixture import mix


class DenseConfig(ConnectionConfig):
    kind = "dense"


class Dense(Connection):
    """x_{l+1} = sum_k y_k (Britz et al. 2017; figure 2b of the paper).

    y_k already contains its own input, so under pre-norm the scale doubles with every layer.
    """

    Config = DenseConfig
    grows = True

    def read(self, history: History) -> Tensor:
        return mix(history, history[0].new_ones(len(history), 1).float())
