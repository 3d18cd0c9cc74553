"""The connection schemes, one file each. A new scheme is one file and one line here."""

from deepnmt.model.connections.aggregated import Aggregated
from deepnmt.model.connections.attention_residual import AttentionResidual
from deepnmt.model.connections.average import Average
from deepnmt.model.connections.connection import Connection, ConnectionConfig, StackShape
from deepnmt.model.connections.coordinated import Coordinated
from deepnmt.model.connections.dense import Dense
from deepnmt.model.connections.denseformer import DenseFormer
from deepnmt.model.connections.dlcl import Dlcl
from deepnmt.model.connections.dynamic_dense import DynamicDense
from deepnmt.model.connections.dynamic_dlcl import DynamicDlcl
from deepnmt.model.connections.fusion import Fusion
from deepnmt.model.connections.hyper import Hyper
from deepnmt.model.connections.manifold_hyper import ManifoldHyper
from deepnmt.model.connections.residual import Residual
from deepnmt.model.connections.sparse_dlcl import SparseDlcl
from deepnmt.model.connections.transparent import Transparent
from deepnmt.model.connections.transparent_dlcl import TransparentDlcl

CONNECTIONS: dict[str, type[Connection]] = {
    "residual": Residual,
    "dense": Dense,
    "average": Average,
    "transparent": Transparent,
    "fusion": Fusion,
    "coordinated": Coordinated,
    "aggregated": Aggregated,
    "dlcl": Dlcl,
    "sparse-dlcl": SparseDlcl,
    "transparent-dlcl": TransparentDlcl,
    "dynamic-dlcl": DynamicDlcl,
    "denseformer": DenseFormer,
    "dynamic-dense": DynamicDense,
    "attention-residual": AttentionResidual,
    "hyper": Hyper,
    "manifold-hyper": ManifoldHyper,
}

__all__ = ["CONNECTIONS", "Connection", "ConnectionConfig", "StackShape"]
