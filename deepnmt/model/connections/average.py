"""The mean of all outputs so far, as at the initialisation of DLCL."""

from deepnmt.model.connections.connection import ConnectionConfig
from deepnmt.model.connections.dense import Dense


class AverageConfig(ConnectionConfig):
    kind = "average"


class Average(Dense):
    """x_{l+1} = 1 / (l + 1) * sum_k y_k (section 6.3 of the paper, without its LayerNorm)."""

    Config = AverageConfig

    def share(self, count: int) -> float:
        return 1 / count
