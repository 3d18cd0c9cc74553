"""Multi-head attention: the projections here, who sees whom in a `Visibility`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

# Not cuDNN's: a small model's eager step on ever new shapes took 456 ms with it, and 32 ms without.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class KeysValues(NamedTuple):
    """What a query looks at; each (..., positions, heads, head_dim)."""

    keys: Tensor
    values: Tensor


class Visibility(ABC):
    """Decides which keys a query sees, and attends to them; `dropout` is on the attention weights."""

    @abstractmethod
    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        """query: (..., positions, heads, head_dim) -> the same shape"""

    def attend_itself(self, projected: Tensor, dropout: float) -> Tensor:
        """projected: queries, keys and values as (..., positions, 3, heads, head_dim)"""
        query, keys, values = projected.unbind(-3)
        return self.attend(query, KeysValues(keys, values), dropout)


class _Attention(nn.Module):
    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.output = nn.Linear(dim, dim)

    def _split(self, x: Tensor, parts: int) -> Tensor:
        """(..., parts * dim) -> (..., parts, heads, head_dim)"""
        return x.unflatten(-1, (parts, self.num_heads, -1))

    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0


class SelfAttention(_Attention):
    """Queries, keys and values from one input, by one packed projection."""

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__(dim, num_heads, dropout)
        self.input = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor, visibility: Visibility) -> Tensor:
        attended = visibility.attend_itself(self._split(self.input(x), 3), self._dropout())
        return self.output(attended.flatten(-2))


class CrossAttention(_Attention):
    """Queries from the decoder, keys and values from the encoder's result, which may have another width."""

    def __init__(self, dim: int, memory_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__(dim, num_heads, dropout)
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(memory_dim, 2 * dim)

    def project(self, memory: Tensor) -> KeysValues:
        """Once for a source sentence, however many steps look at it."""
        return KeysValues(*self._split(self.key_value(memory), 2).unbind(-3))

    def forward(self, x: Tensor, memory: KeysValues, visibility: Visibility) -> Tensor:
        query = self._split(self.query(x), 1).squeeze(-3)
        attended = visibility.attend(query, memory, self._dropout())
        return self.output(attended.flatten(-2))


def attend_padded(
    query: Tensor, seen: KeysValues, dropout: float, visible: Tensor | None = None, causal: bool = False
) -> Tensor:
    """query: (B, T, heads, head_dim), keys and values (B, S, heads, head_dim) -> like query.

    visible: broadcastable to (B, heads, T, S), True where the query may look.
    """
    if query.dtype is torch.bfloat16 and query.device.type == "cpu" and query.requires_grad:
        return _attend_by_products(query, seen, dropout, visible, causal)
    with sdpa_kernel(BACKENDS) if query.is_cuda else nullcontext():
        attended = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            seen.keys.transpose(1, 2),
            seen.values.transpose(1, 2),
            attn_mask=visible,
            dropout_p=dropout,
            is_causal=causal,
        )
    return attended.transpose(1, 2)


def _attend_by_products(
    query: Tensor, seen: KeysValues, dropout: float, visible: Tensor | None, causal: bool
) -> Tensor:
    """Two matrix products and a softmax. In bf16 on a CPU the backward pass of the fused attention is much slower."""
    q, k, v = query.transpose(1, 2), seen.keys.transpose(1, 2), seen.values.transpose(1, 2)
    scores = (q @ k.transpose(-1, -2)).float() * query.shape[-1] ** -0.5
    if causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if visible is not None:
        scores = scores + torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)
    softmax: Callable[[Tensor], Tensor] = (
        _ShortSoftmax.apply if scores.shape[-1] < 16 else partial(torch.softmax, dim=-1)
    )
    shares = F.dropout(softmax(scores), dropout)
    return (shares.to(v.dtype) @ v).transpose(1, 2)


class _ShortSoftmax(torch.autograd.Function):
    """The softmax of each row. torch's own is not vectorised for rows shorter than a register: six times as long."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        shares = (scores - scores.amax(-1, keepdim=True)).exp_()
        shares /= shares.sum(-1, keepdim=True)
        ctx.save_for_backward(shares)
        return shares

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (shares,) = ctx.saved_tensors
        product = gradients[0] * shares
        return product.sub_(shares * product.sum(-1, keepdim=True))
