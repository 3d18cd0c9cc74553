"""DenseFormer: a learned weighted sum of all outputs so far, initialised as the residual stack."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deepnmt.model.connections.connection import (
    Connection,
    ConnectionConfig,
    History,
    StackShape,
    StepMixture,
    lower_triangle,
)
from deepnmt.model.connections.dlcl import DlclHistory
from deepnmt.settings import check_bounds


@dataclass(frozen=True, kw_only=True)
class DenseFormerConfig(ConnectionConfig):
    kind = "denseformer"
    dilation: int = 1  # a row reads every dilation-th output, counted back from the last
    period: int = 1  # mix after every period-th layer; elsewhere the stack is residual

    def __post_init__(self) -> None:
        check_bounds(self, "connection.dilation connection.period", least=1)


class DenseFormer(Connection):
    """x_{l+1} = sum_k a[l,k] y_k, with a = identity at the start (Pagliardini et al. 2024,
    https://arxiv.org/abs/2402.02622). The input of the first layer is the embedding."""

    Config = DenseFormerConfig

    def __init__(self, config: DenseFormerConfig, shape: StackShape) -> None:
        super().__init__(config, shape)
        depth = torch.arange(shape.num_layers + 1)
        mixes = (depth > 0) & (depth % config.period == 0)
        seen = (depth[:, None] - depth) % config.dilation == 0
        self.register_buffer("connected", mixes[:, None] & seen & lower_triangle(len(depth)), persistent=False)
        self.weight = nn.Parameter(torch.eye(len(depth)))

    def begin(self) -> DlclHistory:
        return DlclHistory(self._effective().unsqueeze(2), [nn.Identity() for _ in self.weight])

    def write(self, history: History, output: Tensor) -> None:
        assert isinstance(history, DlclHistory)
        history.append(history.tape.enter(output))

    def read(self, history: History) -> Tensor:
        assert isinstance(history, DlclHistory)
        return history.tape.mix(history, len(history) - 1)

    def matrix(self) -> Tensor:
        return self._effective().detach().cpu()

    def step_mixture(self) -> StepMixture:
        return StepMixture(self._effective(), [nn.Identity() for _ in self.weight])

    def _effective(self) -> Tensor:
        identity = torch.eye(len(self.weight), device=self.weight.device)
        return torch.where(self.get_buffer("connected"), self.weight.float(), identity)
