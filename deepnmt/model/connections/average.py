"""The mean of all outputs so far, as at the initialisation of DLCL."""

from torch import Tensor

from deepnmt.model.connections.connection import Connection, ConnectionConfig, History
from deepnmt.model.kernels.mixture import mix


class AverageConfig(ConnectionConfig):
    kind = "average"


class Average(Connection):
    """x_{l+1} = 1 / (l + 1) * sum_k y_k (section 6.3 of the paper, without its LayerNorm)."""

    Config = AverageConfig
    grows = True

    def read(self, history: History) -> Tensor:
        count = len(history)
        return mix(history, history[0].new_full((count, 1), 1 / count).float())
