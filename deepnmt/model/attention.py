"""Multi-head attention: projections here, masking and attending in a `Visibility`."""

from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from deepnmt.model.kernels.attention_products import additive_mask, attend_by_products
from deepnmt.model.norms import RmsNorm
from deepnmt.model.positions import RelativePositions, Rotation

# Not cuDNN's: a small model's eager step on ever new shapes took 456 ms with it, and 32 ms without.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class KeysValues(NamedTuple):
    """Keys and values; each (..., positions, heads, head_dim)."""

    keys: Tensor
    values: Tensor


class Visibility(ABC):
    """Decides which keys a query sees, and attends to them; `dropout` is on the attention weights."""

    rotation: Rotation | None = None  # of the queries and keys of self-attention, where positions are rotary

    @abstractmethod
    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        """query: (..., positions, heads, head_dim) -> the same shape"""

    def attend_itself(self, projected: Tensor, dropout: float) -> Tensor:
        """projected: queries, keys and values as (..., positions, 3, heads, head_dim)"""
        query, keys, values = projected.unbind(-3)
        return self.attend(query, KeysValues(keys, values), dropout)

    def attend_relatively(self, projected: Tensor, relative: RelativePositions, dropout: float) -> Tensor:
        """The same with relative positions"""
        raise NotImplementedError


class _Attention(nn.Module):
    """With `qk_norm`, queries and keys are divided by their RMS head by head, and have gains (after Henry et al. 2020,
    https://arxiv.org/abs/2010.04245)."""

    def __init__(self, dim: int, num_heads: int, dropout: float, qk_norm: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.output = nn.Linear(dim, dim)
        new_norm = RmsNorm if qk_norm else nn.Identity
        self.query_norm, self.key_norm = new_norm(dim // num_heads), new_norm(dim // num_heads)

    def _split(self, x: Tensor, parts: int) -> Tensor:
        """(..., parts * dim) -> (..., parts, heads, head_dim)"""
        return x.view(*x.shape[:-1], parts, self.num_heads, -1)

    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0


class SelfAttention(_Attention):
    """Queries, keys and values from one input, by one packed projection."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float,
        inner_norm: nn.Module | None = None,
        relative: RelativePositions | None = None,
        qk_norm: bool = False,
    ) -> None:
        super().__init__(dim, num_heads, dropout, qk_norm)
        self.inner_norm = inner_norm or nn.Identity()
        self.input = nn.Linear(dim, 3 * dim)
        self.relative = relative

    def project(self, x: Tensor) -> Tensor:
        """Queries, keys and values: (..., 3, heads, head_dim)"""
        projected = self._split(self.input(x), 3)
        if isinstance(self.query_norm, nn.Identity):
            return projected
        query, keys, values = projected.unbind(-3)
        return torch.stack([self.query_norm(query), self.key_norm(keys), values], -3)

    def forward(self, x: Tensor, visibility: Visibility) -> Tensor:
        projected = self.project(x)
        if visibility.rotation is not None:
            projected = visibility.rotation.turn_projected(projected)
        if self.relative is None:
            attended = visibility.attend_itself(projected, self._dropout())
        else:
            attended = visibility.attend_relatively(projected, self.relative, self._dropout())
        return self.output(self.inner_norm(attended.flatten(-2)))

    def branch_weights(self) -> list[Tensor]:
        return [self.input.weight.chunk(3)[2], self.output.weight]

    def ends(self) -> tuple[nn.Linear, nn.Linear]:
        return self.input, self.output


class CrossAttention(_Attention):
    """Queries from the decoder, keys and values from the encoder's result, which may have another width."""

    def __init__(self, dim: int, memory_dim: int, num_heads: int, dropout: float, qk_norm: bool = False) -> None:
        super().__init__(dim, num_heads, dropout, qk_norm)
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(memory_dim, 2 * dim)

    def project(self, memory: Tensor) -> KeysValues:
        """Computed once per source sentence."""
        keys, values = self._split(self.key_value(memory), 2).unbind(-3)
        return KeysValues(self.key_norm(keys), values)

    def queries(self, x: Tensor) -> Tensor:
        """(..., dim) -> (..., heads, head_dim)"""
        queries: Tensor = self.query_norm(self._split(self.query(x), 1).squeeze(-3))
        return queries

    def forward(self, x: Tensor, memory: KeysValues, visibility: Visibility) -> Tensor:
        attended = visibility.attend(self.queries(x), memory, self._dropout())
        return self.output(attended.flatten(-2))

    def branch_weights(self) -> list[Tensor]:
        return [self.key_value.weight.chunk(2)[1], self.output.weight]

    def ends(self) -> tuple[nn.Linear, nn.Linear]:
        return self.query, self.output


def attend_padded(
    query: Tensor, seen: KeysValues, dropout: float, visible: Tensor | None = None, causal: bool = False
) -> Tensor:
    """query: (B, T, heads, head_dim), keys and values (B, S, heads, head_dim) -> like query.

    visible: broadcastable to (B, heads, T, S), True where the query may attend.
    """
    if query.dtype is torch.bfloat16 and query.device.type == "cpu" and query.requires_grad:
        hidden = _hidden(query.shape[1], seen.keys.shape[1], visible, causal)
        return attend_by_products(query, *seen, hidden, dropout)
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


def attend_padded_relatively(
    projected: Tensor, relative: RelativePositions, dropout: float, visible: Tensor | None = None, causal: bool = False
) -> Tensor:
    """projected: (B, T, 3, heads, head_dim) -> (B, T, heads, head_dim); the rest as in `attend_padded`."""
    query, keys, values = (part.transpose(1, 2) for part in projected.unbind(2))
    length = projected.shape[1]
    rows = relative.rows_between(length, length, projected.device)
    mask = additive_mask(_hidden(length, length, visible, causal, projected.device), projected.dtype)
    return relative.attend(query, keys, values, rows, mask, dropout).transpose(1, 2)


def _hidden(
    num_queries: int, num_keys: int, visible: Tensor | None, causal: bool, device: torch.device | None = None
) -> Tensor:
    if causal:
        return torch.ones(1, 1, num_queries, num_keys, dtype=torch.bool, device=device).triu(1)
    return torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=device) if visible is None else ~visible
