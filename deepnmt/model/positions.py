"""Rotary and relative positions, which act in self-attention instead of being added to the embedding."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BASE = 10_000


class Rotation(NamedTuple):
    """Rotates the pair (x_i, x_{i + d/2}) of a query or key at position t by the angle t * BASE^(-2i/d).

    The product of a query at s and a key at t then depends on s - t alone. RoFormer, Su et al. 2021
    (https://arxiv.org/abs/2104.09864), who pair neighbouring dimensions instead, which is equivalent.
    """

    cos: Tensor  # (..., positions, 1, head_dim / 2), fp32
    sin: Tensor

    @classmethod
    def at(cls, positions: Tensor, head_dim: int) -> "Rotation":
        """positions: any shape, from zero"""
        index = torch.arange(head_dim // 2, device=positions.device, dtype=torch.float32)
        angles = (positions.float().unsqueeze(-1) * BASE ** (-2 * index / head_dim)).unsqueeze(-2)
        return cls(angles.cos(), angles.sin())

    def turn(self, x: Tensor) -> Tensor:
        """x: (..., positions, heads, head_dim)"""
        left, right = x.chunk(2, dim=-1)
        turned = torch.cat([left * self.cos - right * self.sin, right * self.cos + left * self.sin], dim=-1)
        return turned.to(x.dtype)

    def turn_projected(self, projected: Tensor) -> Tensor:
        """projected: (..., positions, 3, heads, head_dim), of which the queries and keys turn"""
        queries_keys, values = projected.split([2, 1], dim=-3)
        turned = Rotation(self.cos.unsqueeze(-2), self.sin.unsqueeze(-2)).turn(queries_keys)
        return torch.cat([turned, values], dim=-3)


class RelativePositions(nn.Module):
    """Vectors for the distances j - i, clipped: query i sees key j as k_j + keys[j - i], and value j likewise.

    Shaw et al. 2018 (https://arxiv.org/abs/1803.02155), equations 3 to 5. All heads share them.
    """

    def __init__(self, head_dim: int, max_distance: int, values: bool) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.keys = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))
        self.values = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim)) if values else None

    def rows(self, distances: Tensor) -> Tensor:
        """The row of each distance in the tables."""
        return distances.clamp(-self.max_distance, self.max_distance) + self.max_distance

    def rows_between(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor:
        """(queries, keys), both from position zero"""
        query, key = (torch.arange(count, device=device) for count in (num_queries, num_keys))
        return self.rows(key - query[:, None])

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, rows: Tensor, mask: Tensor | None, dropout: float
    ) -> Tensor:
        """query: (..., T, head_dim), keys and values: (..., S, head_dim) -> like query.

        rows, mask: broadcastable to (..., T, S); the mask is added to the scores. No vector is made for a pair of
        positions: q (k + a) = q k + q a has one product for each row of the table, and sum_j p_j a_j one share.
        """
        dtype = keys.dtype
        query = query.to(dtype)
        scores = (query @ keys.transpose(-1, -2) + self.scores(query, rows)) * query.shape[-1] ** -0.5
        weights = (scores if mask is None else scores + mask).softmax(
            -1, dtype=torch.promote_types(dtype, torch.float32)
        )
        weights = F.dropout(weights, dropout).to(dtype)
        return self.add_values(weights @ values, weights, rows)

    def scores(self, query: Tensor, rows: Tensor) -> Tensor:
        """The products q a: (..., T, S), not scaled"""
        by_row = query @ self.keys.to(query.dtype).T
        return by_row.gather(-1, rows.expand(*by_row.shape[:-1], rows.shape[-1]))

    def add_values(self, attended: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        """attended: (..., T, head_dim), weights: (..., T, S) -> like attended, with sum_j p_j a_j added"""
        if self.values is None:
            return attended
        shares = weights.new_zeros(*weights.shape[:-1], len(self.values))
        shares = shares.scatter_add(-1, rows.expand_as(weights), weights)
        return attended + shares @ self.values.to(attended.dtype)
