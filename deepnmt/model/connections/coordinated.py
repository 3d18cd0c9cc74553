"""Layer-wise coordination: each decoder layer attends to the encoder layer of the same depth."""

from torch import Tensor

from deepnmt.model.connections.connection import Connection, ConnectionConfig, History, StackShape


class CoordinatedConfig(ConnectionConfig):
    kind = "coordinated"


class Coordinated(Connection):
    """Reader j of M gets y_l with l = ceil(j N / M): layer by layer if the stacks are equally deep.

    He et al. 2018, Layer-Wise Coordination between Encoder and Decoder, section 3.1. Their joint attention
    to source and target and their shared weights are not included.
    """

    Config = CoordinatedConfig
    grows = True

    def __init__(self, config: CoordinatedConfig, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.depths = [-(-j * shape.num_layers // shape.num_readers) for j in range(1, shape.num_readers + 1)]

    def memories(self, history: History) -> list[Tensor]:
        return [history[depth] for depth in self.depths]
