"""Multi-head attention: the projections here, who sees whom in a `Visibility`."""

from typing import NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor, nn


class KeysValues(NamedTuple):
    """What a query looks at; each (..., positions, heads, head_dim)."""

    keys: Tensor
    values: Tensor


class Visibility(Protocol):
    """Decides which keys a query sees, and attends to them.

    query: (..., positions, heads, head_dim) -> the same shape; `dropout` is on the attention weights.
    """

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor: ...


class _Attention(nn.Module):
    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.output = nn.Linear(dim, dim)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1))

    def _attend(self, query: Tensor, seen: KeysValues, visibility: Visibility) -> Tensor:
        attended = visibility.attend(query, seen, self.dropout if self.training else 0.0)
        return self.output(attended.flatten(-2))


class SelfAttention(_Attention):
    """Queries, keys and values from one input, by one packed projection."""

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__(dim, num_heads, dropout)
        self.input = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor, visibility: Visibility) -> Tensor:
        query, keys, values = (self._split(part) for part in self.input(x).chunk(3, dim=-1))
        return self._attend(query, KeysValues(keys, values), visibility)


class CrossAttention(_Attention):
    """Queries from the decoder, keys and values from the encoder's result, which may have another width."""

    def __init__(self, dim: int, memory_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__(dim, num_heads, dropout)
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(memory_dim, 2 * dim)

    def project(self, memory: Tensor) -> KeysValues:
        """Once for a source sentence, however many steps look at it."""
        keys, values = (self._split(part) for part in self.key_value(memory).chunk(2, dim=-1))
        return KeysValues(keys, values)

    def forward(self, x: Tensor, memory: KeysValues, visibility: Visibility) -> Tensor:
        return self._attend(self._split(self.query(x)), memory, visibility)


def attend_padded(
    query: Tensor, seen: KeysValues, dropout: float, visible: Tensor | None = None, causal: bool = False
) -> Tensor:
    """query: (B, T, heads, head_dim), keys and values (B, S, heads, head_dim) -> like query.

    visible: broadcastable to (B, heads, T, S), True where the query may look.
    """
    attended = F.scaled_dot_product_attention(
        query.transpose(1, 2),
        seen.keys.transpose(1, 2),
        seen.values.transpose(1, 2),
        attn_mask=visible,
        dropout_p=dropout,
        is_causal=causal,
    )
    return attended.transpose(1, 2)
