"""Dynamic linear combination of layers, with every option of the paper's ablation and of its code."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.model.connections.connection import (
    Connection,
    ConnectionConfig,
    History,
    Mixture,
    StackShape,
    lower_triangle,
)
from deepnmt.model.kernels.mixture import fused_tape, mix
from deepnmt.settings import check_bounds


@dataclass(frozen=True, kw_only=True)
class DlclConfig(ConnectionConfig):
    kind = "dlcl"
    learned: bool = True  # or fixed at the start
    start: Literal["average", "one"] = "average"
    norm: bool = True  # the LayerNorm of equations 8 and 9
    norm_embedding: bool = False  # y_0 too
    softmax: bool = False  # over the row
    groups: int = 1  # weights per pair of layers; dimension i has weight i modulo groups; dim = one for each
    window: int | None = None  # only the last outputs
    dropout: float = 0.0  # on the mixture

    def __post_init__(self) -> None:
        check_bounds(self, "connection.groups connection.window", least=1)
        check_bounds(self, "connection.dropout", least=0, below=1)
        if self.norm_embedding and not self.norm:
            raise ValueError("connection.norm_embedding = true needs connection.norm = true")

    def check(self, dim: int) -> None:
        if dim % self.groups:
            raise ValueError(f"connection.groups = {self.groups} does not divide dim = {dim}")


class DlclHistory(History):
    """The outputs, normalised, and the matrix W that mixes them. On a GPU a tape does both with one kernel."""

    def __init__(self, matrix: Tensor, norms: Sequence[nn.Module]) -> None:
        """matrix: W as (rows, columns, groups) in fp32; norms: of the outputs"""
        super().__init__()
        self.matrix, self.norms, self.tape = matrix, norms, fused_tape(matrix, norms)

    def enter(self, output: Tensor) -> None:
        """Add LN_l(y_l)."""
        self.append(self.tape.enter(output) if self.tape else self.norms[len(self)](output))

    def mixed(self) -> Tensor:
        """sum_k W[l,k] LN_k(y_k)"""
        row = len(self) - 1
        return self.tape.mix(self, row) if self.tape else mix(self, self.matrix[row, : row + 1])


class Dlcl(Connection):
    """Pre-norm: x_{l+1} = sum_k W[l,k] LN_k(y_k). Post-norm: x_{l+1} = LN_l(sum_k W[l,k] y_k). Equations 8 and 9.

    W is lower triangular and learned; its rows are initialised as means. Row 0 belongs to the embedding y_0, which
    has no LayerNorm unless requested.
    """

    Config: ClassVar[type[ConnectionConfig]] = DlclConfig
    grows = True
    is_mixture = True
    connected: Tensor

    def __init__(self, config: DlclConfig, shape: StackShape) -> None:
        super().__init__(config, shape)
        count = shape.num_layers + 1
        connected = lower_triangle(count, config.window)
        start = connected.float()
        if config.start == "average":
            start = start / start.sum(1, keepdim=True)
        weight = start.unsqueeze(2).repeat(1, 1, config.groups)
        self.weight = nn.Parameter(weight, requires_grad=config.learned)
        self.register_buffer("connected", connected.unsqueeze(2), persistent=False)
        self.softmax = config.softmax
        self.dropout = config.dropout

        # The norm of y_k (pre) or of row k (post). Row 0 of post-norm is normed twice when the embedding is: once as
        # y_0 and once as row 0, with the same LayerNorm; so does the authors' code.
        normed = [config.norm_embedding] + [config.norm] * shape.num_layers
        self.norms = nn.ModuleList(shape.new_norm(shape.dim) if has_norm else nn.Identity() for has_norm in normed)
        self.norms_outputs = shape.norm == "pre"

    def begin(self) -> DlclHistory:
        return DlclHistory(self.effective(), self._norms_of_outputs())

    def write(self, history: Any, output: Tensor) -> None:
        history.enter(output)

    def read(self, history: Any) -> Tensor:
        mixed = history.mixed()
        if not self.norms_outputs:
            mixed = self.norms[len(history) - 1](mixed)
        return F.dropout(mixed, self.dropout, self.training)

    def grow_from(self, shallow: Connection) -> None:
        """The rows of new layers keep their initialisation; their norms are copies, like the layers."""
        assert isinstance(shallow, Dlcl)
        count, added = len(shallow.norms), len(self.norms) - len(shallow.norms)
        self.weight[:count, :count] = shallow.weight
        for k, norm in enumerate(self.norms):
            norm.load_state_dict(shallow.norms[k if k < count else k - added].state_dict())

    def matrix(self) -> Tensor | None:
        mixture = self.mixture()
        return None if mixture is None or mixture.matrix is None else mixture.matrix.detach().float().mean(2).cpu()

    def mixture(self) -> Mixture | None:
        return Mixture(self.effective(), list(self.norms))

    def _norms_of_outputs(self) -> list[nn.Module]:
        return [norm if self.norms_outputs or k == 0 else nn.Identity() for k, norm in enumerate(self.norms)]

    def effective(self) -> Tensor:
        """W as it is used: zero where not connected, rows normalised if requested. (rows, columns, groups), fp32."""
        if self.softmax:
            return self.weight.float().masked_fill(~self.connected, -torch.inf).softmax(1)
        return self.weight.float() * self.connected
