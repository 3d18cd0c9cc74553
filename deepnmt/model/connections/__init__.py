"""The connection schemes, one file each. A new scheme is one file and one line here."""

from deepnmt.model.connections.average import Average
from deepnmt.model.connections.connection import Connection, ConnectionConfig, StackShape
from deepnmt.model.connections.dense import Dense
from deepnmt.model.connections.dlcl import Dlcl
from deepnmt.model.connections.fusion import Fusion
from deepnmt.model.connections.residual import Residual
from deepnmt.model.connections.transparent import Transparent

CONNECTIONS: dict[str, type[Connection]] = {
    "residual": Residual,
    "dense": Dense,
    "average": Average,
    "transparent": Transparent,
    "fusion": Fusion,
    "dlcl": Dlcl,
}

__all__ = ["CONNECTIONS", "Connection", "ConnectionConfig", "StackShape"]
