"""Sparse DLCL: blocks of residual layers, and dynamic linear combination between the blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from deepnmt.model.connections.connection import ConnectionConfig, Mixture, StackShape
from deepnmt.model.connections.dlcl import Dlcl, DlclConfig, DlclHistory
from deepnmt.settings import check_bounds


@dataclass(frozen=True, kw_only=True)
class SparseDlclConfig(ConnectionConfig):
    kind = "sparse-dlcl"
    block: int = 6  # layers

    def __post_init__(self) -> None:
        check_bounds(self, "connection.block", least=1)

    def check_growth(self, depths: Sequence[int]) -> None:
        if any(depth % self.block for depth in depths):
            raise ValueError(
                f"training.grow = {list(depths)} must have multiples of encoder.connection.block = {self.block}"
            )


class SparseHistory(DlclHistory):
    """The outputs of complete blocks and, inside a block, the last output."""

    def __init__(self, matrix: Tensor, norms: Sequence[nn.Module]) -> None:
        super().__init__(matrix, norms)
        self.depth = 0
        self.inside: Tensor | None = None


class SparseDlcl(Dlcl):
    """DLCL whose rows and columns are the ends of blocks: y_0, y_g, y_2g, ..., y_N. Inside a block, x_{l+1} = y_l.

    Li et al. 2020, https://arxiv.org/abs/2010.03737
    """

    Config = SparseDlclConfig

    def __init__(self, config: SparseDlclConfig, shape: StackShape) -> None:
        ends = [*range(0, shape.num_layers, config.block), shape.num_layers]
        super().__init__(DlclConfig(), replace(shape, num_layers=len(ends) - 1))
        self.ends = ends

    def begin(self) -> SparseHistory:
        return SparseHistory(self.effective(), self._norms_of_outputs())

    def write(self, history: SparseHistory, output: Tensor) -> None:
        history.inside = None if history.depth in self.ends else output
        if history.inside is None:
            super().write(history, output)
        history.depth += 1

    def read(self, history: SparseHistory) -> Tensor:
        return super().read(history) if history.inside is None else history.inside

    def mixture(self) -> Mixture:
        """With a row and a column for every layer."""
        norms, depths = dict(zip(self.ends, self.norms, strict=True)), range(self.ends[-1] + 1)
        whole = torch.eye(len(depths), device=self.weight.device)
        ends = torch.tensor(self.ends, device=self.weight.device)
        whole[ends[:, None], ends] = self.effective()[:, :, 0]
        return Mixture(whole.unsqueeze(2), [norms.get(depth, nn.Identity()) for depth in depths])
