"""Tokens and positions to vectors."""

import math

import torch
from torch import Tensor, nn

from deepnmt.model.kernels.embedding import look_up


class SinusoidalPositions(nn.Module):
    """The authors' layout: the first half of the dimensions are sines, the second half cosines; no limit on length."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.num_frequencies = dim // 2

    def forward(self, positions: Tensor) -> Tensor:
        """positions: any shape -> (..., dim) in fp32"""
        index = torch.arange(self.num_frequencies, device=positions.device, dtype=torch.float32)
        frequencies = torch.exp(index * (-math.log(10_000) / max(self.num_frequencies - 1, 1)))
        angles = positions.float().unsqueeze(-1) * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class LearnedPositions(nn.Embedding):
    def forward(self, positions: Tensor) -> Tensor:
        return look_up(self.weight, positions)


class Embedding(nn.Module):
    """y_0 = dropout(sqrt(dim) * token + position). The token table is handed in: it may be shared.

    Positions count from pad_id + 1, as in the authors' code.
    """

    def __init__(self, tokens: nn.Embedding, positions: nn.Module, first_position: int, dropout: float) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.scale = math.sqrt(tokens.embedding_dim)
        self.first_position = first_position
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """positions: from zero, broadcastable to ids -> (..., dim) in the type of mixed precision, else the table's."""
        tokens = self.scale * look_up(self.tokens.weight, ids, self.tokens.padding_idx)
        embedded: Tensor = self.dropout(tokens + self.positions(positions + self.first_position))
        device = embedded.device.type
        mixed = torch.is_autocast_enabled(device)
        return embedded.to(torch.get_autocast_dtype(device) if mixed else tokens.dtype)
