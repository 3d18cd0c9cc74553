"""Layer-wise coordination of encoder and decoder: each decoder layer reads the encoder layer of its own depth."""

from dataclasses import dataclass, field

from torch import Tensor

from deepnmt.model.connections.connection import Connection, ConnectionConfig, History, StackShape


@dataclass(frozen=True, kw_only=True)
class CoordinatedConfig(ConnectionConfig):
    kind: str = field(default="coordinated", init=False)


class Coordinated(Connection):
    """Reader j of M sees y_l, l = ceil(j N / M): of equally deep stacks the layers meet one to one.

    He et al. 2018, Layer-Wise Coordination between Encoder and Decoder, section 3.1. Their attention to source and
    target at once and their weights, shared by both stacks, are other ideas, and not here.
    """

    Config = CoordinatedConfig
    grows = True

    def __init__(self, config: CoordinatedConfig, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.depths = [-(-j * shape.num_layers // shape.num_readers) for j in range(1, shape.num_readers + 1)]

    def memories(self, history: History) -> list[Tensor]:
        return [history[depth] for depth in self.depths]
