"""DenseFormer: a learned weighted sum of all outputs so far, initialised as the residual stack."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deepnmt.model.connections.connection import ConnectionConfig, StackShape, lower_triangle
from deepnmt.model.connections.dlcl import Dlcl, DlclConfig
from deepnmt.settings import check_bounds


@dataclass(frozen=True, kw_only=True)
class DenseFormerConfig(ConnectionConfig):
    kind = "denseformer"
    dilation: int = 1  # a row reads every dilation-th output, counted back from the last
    period: int = 1  # mix after every period-th layer; elsewhere the stack is residual

    def __post_init__(self) -> None:
        check_bounds(self, "connection.dilation connection.period", least=1)


class DenseFormer(Dlcl):
    """x_{l+1} = sum_k a[l,k] y_k: DLCL without norms, with a = identity at the start (Pagliardini et al. 2024,
    https://arxiv.org/abs/2402.02622). The input of the first layer is the embedding."""

    Config = DenseFormerConfig
    grows = False

    def __init__(self, config: DenseFormerConfig, shape: StackShape) -> None:
        super().__init__(DlclConfig(norm=False), shape)
        depth = torch.arange(shape.num_layers + 1)
        mixes = (depth > 0) & (depth % config.period == 0)
        seen = (depth[:, None] - depth) % config.dilation == 0
        self.connected = mixes[:, None] & seen & lower_triangle(len(depth))
        self.weight = nn.Parameter(torch.eye(len(depth)))

    def effective(self) -> Tensor:
        identity = torch.eye(len(self.weight), device=self.weight.device)
        return torch.where(self.connected, self.weight.float(), identity).unsqueeze(2)
