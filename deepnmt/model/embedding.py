"""Tokens and positions to vectors."""

import math

import torch
from torch import Tensor, nn

from deepnmt.model.config import ModelConfig
from deepnmt.model.kernels.dropout import Dropout
from deepnmt.model.kernels.lookup import look_up


class SinusoidalPositions(nn.Module):
    """The authors' layout: the first half of the dimensions are sines, the second half cosines; no limit on length.

    The last of n frequencies is 1 / 10,000, as in tensor2tensor, fairseq and Marian. Hugging Face's Marian takes n
    steps to it instead of n - 1, like the formula of "Attention is all you need" does.
    """

    def __init__(self, dim: int, reaches_last: bool = True) -> None:
        super().__init__()
        self.num_frequencies = dim // 2
        self.num_steps = max(self.num_frequencies - 1, 1) if reaches_last else self.num_frequencies

    def forward(self, positions: Tensor) -> Tensor:
        """positions: any shape -> (..., dim) in fp32"""
        index = torch.arange(self.num_frequencies, device=positions.device, dtype=torch.float32)
        frequencies = torch.exp(index * (-math.log(10_000) / self.num_steps))
        angles = positions.float().unsqueeze(-1) * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class LearnedPositions(nn.Embedding):
    def forward(self, positions: Tensor) -> Tensor:
        return look_up(self.weight, positions)


class Embedding(nn.Module):
    """y_0 = dropout(scale * token + position). The token table is an argument, because it may be shared.

    Positions count from pad_id + 1 in the authors' code, where the scale is the square root of the width; none are
    added if self-attention has relative or rotary positions. With a `start_id`, that symbol replaces the first id of
    every sentence.
    """

    def __init__(self, config: ModelConfig, tokens: nn.Embedding, start_id: int | None = None) -> None:
        super().__init__()
        dim = tokens.embedding_dim
        self.tokens, self.start_id, self.first_position = tokens, start_id, config.position_offset
        self.scale = math.sqrt(dim) if config.scale_embeddings else 1.0
        self.positions: nn.Module | None = None
        if config.positions == "learned":
            self.positions = LearnedPositions(config.max_positions + config.position_offset, dim)
        elif config.positions.startswith("sinusoidal"):
            self.positions = SinusoidalPositions(dim, reaches_last=config.positions == "sinusoidal")
        self.dropout = Dropout(config.dropout)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """positions: from zero, broadcastable to ids -> (..., dim) in the type of mixed precision, else the table's."""
        if self.start_id is not None:
            ids = ids.masked_fill(positions == 0, self.start_id)
        tokens = self.scale * look_up(self.tokens.weight, ids, self.tokens.padding_idx)
        placed = tokens if self.positions is None else tokens + self.positions(positions + self.first_position)
        embedded: Tensor = self.dropout(placed)
        device = embedded.device.type
        mixed = torch.is_autocast_enabled(device)
        return embedded.to(torch.get_autocast_dtype(device) if mixed else tokens.dtype)
