"""Deep representations: a residual stack whose outputs are merged step by step by small networks."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.model.connections.connection import Connection, ConnectionConfig, History, StackShape
from deepnmt.model.norms import NewNorm

EXPANSION = 4  # of the feed-forward networks, as in the layers of the paper


@dataclass(frozen=True, kw_only=True)
class AggregatedConfig(ConnectionConfig):
    kind = "aggregated"
    order: Literal["hierarchical", "iterative"] = "hierarchical"  # two layers at a time, or one


class Node(nn.Module):
    """AGG(x, y, ...) = LN(W2 relu(W1 [x; y; ...]) + x + y + ...)"""

    def __init__(self, count: int, dim: int, new_norm: NewNorm) -> None:
        super().__init__()
        self.expand = nn.Linear(count * dim, EXPANSION * dim)
        self.contract = nn.Linear(EXPANSION * dim, dim)
        self.norm = new_norm(dim)

    def forward(self, *given: Tensor) -> Tensor:
        merged = self.contract(F.relu(self.expand(torch.cat(given, dim=-1))))
        return self.norm(sum(given, merged))


class Aggregated(Connection):
    """The stack's result is the last of a_i = AGG(y_{2i-1}, y_{2i}, a_{i-1}), or of a_l = AGG(y_l, a_{l-1}), a_1 = y_1.

    Dou et al. 2018, Exploiting Deep Representations (https://arxiv.org/abs/1810.10181), hierarchical and iterative
    aggregation. Their multi-layer attention and diversity term are not connections.
    """

    Config = AggregatedConfig

    def __init__(self, config: AggregatedConfig, shape: StackShape) -> None:
        super().__init__(config, shape)
        step = 2 if config.order == "hierarchical" else 1
        depths = list(range(1, shape.num_layers + 1))
        self.groups = [depths[first : first + step] for first in range(0, len(depths), step)]
        if config.order == "iterative":
            self.groups[:2] = [[depth for group in self.groups[:2] for depth in group]]  # a_1 is y_1 itself
        self.nodes = nn.ModuleList(
            Node(len(group) + (number > 0), shape.dim, shape.new_norm) for number, group in enumerate(self.groups)
        )

    def memories(self, history: History) -> list[Tensor]:
        merged: list[Tensor] = []
        for group, node in zip(self.groups, self.nodes, strict=True):
            merged = [node(*(history[depth] for depth in group), *merged)]
        return merged
