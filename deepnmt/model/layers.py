"""The layers of the two stacks: attention and feed-forward, each inside a residual unit."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.model.attention import CrossAttention, KeysValues, SelfAttention, Visibility
from deepnmt.model.config import ModelConfig
from deepnmt.model.kernels.dropout import Dropout
from deepnmt.model.sublayer import SUBLAYERS

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "swish": F.silu,
    "swiglu": F.silu,
}


class FeedForward(nn.Module):
    """W2 f(W1 x); with swiglu, W2 (silu(W1 x) * V1 x), where W1 and V1 are one packed matrix."""

    def __init__(self, dim: int, ffn_dim: int, dropout: float, activation: str) -> None:
        super().__init__()
        self.gated = activation == "swiglu"
        self.activation = ACTIVATIONS[activation]
        self.expand = nn.Linear(dim, 2 * ffn_dim if self.gated else ffn_dim)
        self.contract = nn.Linear(ffn_dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.expand(x)
        if self.gated:
            gate, x = x.chunk(2, dim=-1)
            x = self.activation(gate) * x
        else:
            x = self.activation(x)
        return self.contract(self.dropout(x))


class EncoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        stack, residual_unit = config.encoder, SUBLAYERS[config.norm]
        self.attention = SelfAttention(stack.dim, stack.num_heads, config.attention_dropout)
        self.feed_forward = FeedForward(stack.dim, stack.ffn_dim, config.ffn_dropout, config.activation)
        self.around_attention = residual_unit(stack.dim, config.dropout)
        self.around_feed_forward = residual_unit(stack.dim, config.dropout)

    def forward(self, x: Tensor, visibility: Visibility) -> Tensor:
        """x: (..., dim) -> (..., dim)"""
        x = self.around_attention(x, lambda x: self.attention(x, visibility))
        return self.around_feed_forward(x, self.feed_forward)


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        stack, residual_unit = config.decoder, SUBLAYERS[config.norm]
        self.attention = SelfAttention(stack.dim, stack.num_heads, config.attention_dropout)
        self.cross_attention = CrossAttention(stack.dim, config.encoder.dim, stack.num_heads, config.attention_dropout)
        self.feed_forward = FeedForward(stack.dim, stack.ffn_dim, config.ffn_dropout, config.activation)
        self.around_attention = residual_unit(stack.dim, config.dropout)
        self.around_cross_attention = residual_unit(stack.dim, config.dropout)
        self.around_feed_forward = residual_unit(stack.dim, config.dropout)

    def forward(self, x: Tensor, visibility: Visibility, memory: KeysValues, memory_visibility: Visibility) -> Tensor:
        """x: (..., dim) -> (..., dim); memory: the keys and values made of the encoder's result."""
        x = self.around_attention(x, lambda x: self.attention(x, visibility))
        x = self.around_cross_attention(x, lambda x: self.cross_attention(x, memory, memory_visibility))
        return self.around_feed_forward(x, self.feed_forward)
