"""The standard residual stack: the input of a layer is the output of the previous one."""

from deepnmt.model.connections.connection import Connection, ConnectionConfig, Mixture


class ResidualConfig(ConnectionConfig):
    kind = "residual"


class Residual(Connection):
    """x_{l+1} = y_l (He et al. 2016; figure 2a of the paper)."""

    Config = ResidualConfig
    grows = True
    has_shortcuts = False
    is_mixture = True

    def mixture(self) -> Mixture:
        return Mixture(None, ())
