"""Dynamic DLCL: a part of the weights of the linear combination depends on the position."""

import torch
from torch import Tensor, nn

from deepnmt.model.connections.connection import ConnectionConfig, StackShape
from deepnmt.model.connections.dynamic_dense import DynamicDense, DynamicDenseConfig, TapedHistory
from deepnmt.model.kernels.mixture import mix


class DynamicDlclConfig(ConnectionConfig):
    kind = "dynamic-dlcl"


class DynamicDlcl(DynamicDense):
    """Pre-norm: x_{l+1} = sum_k (W[l,k] + d_k) z_k with z_k = LN_k(y_k) and d = U_l gelu(V_l rms(z_l)).
    Post-norm: x_{l+1} = LN_l(sum_k (W[l,k] + d_k) y_k), with z = y.

    With U = 0, its initial value, this is DLCL.
    """

    Config = DynamicDlclConfig

    def __init__(self, config: DynamicDlclConfig, shape: StackShape) -> None:
        super().__init__(DynamicDenseConfig(), shape)
        norms = (shape.new_norm(shape.dim) for _ in range(shape.num_layers))
        self.norms = nn.ModuleList([nn.Identity(), *norms])
        self.norms_outputs = shape.norm == "pre"

    @staticmethod
    def start(count: int) -> Tensor:
        rows = torch.ones(count, count).tril()
        return rows / rows.sum(1, keepdim=True)

    def write(self, history: TapedHistory, output: Tensor) -> None:
        super().write(history, self.norms[history.depth + 1](output) if self.norms_outputs else output)

    def read(self, history: TapedHistory) -> Tensor:
        if history.depth == 0:
            return mix([history.last], self.weight[:1, :1].float())
        mixed = self.mix(history)
        return mixed if self.norms_outputs else self.norms[history.depth](mixed)
