"""Attention among sentences that are laid end to end, in plain torch: the twin of the fused kernels beside it."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Reach(NamedTuple):
    """Query i sees the keys start[i] <= j < end[i], and key j is seen by the queries back_start[j] <= i < back_end[j].

    All int32. A query that sees nothing (the unused tail) attends to zero.
    """

    start: Tensor
    end: Tensor
    back_start: Tensor
    back_end: Tensor


def attend_packed(
    query: Tensor, keys: Tensor, values: Tensor, reach: Reach, dropout: float, causal: bool = False
) -> Tensor:
    """query: (N, heads, head_dim), keys and values: (M, heads, head_dim) -> (N, heads, head_dim).

    causal: query i sees only keys j <= i; N and M are then the same positions.
    """
    visible = visible_pairs(reach, len(keys), causal)
    blind = ~visible.any(1)
    attended = F.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        keys.transpose(0, 1).unsqueeze(0),
        values.transpose(0, 1).unsqueeze(0),
        attn_mask=visible | blind[:, None],
        dropout_p=dropout,
    )
    return attended[0].transpose(0, 1).masked_fill(blind[:, None, None], 0)


def visible_pairs(reach: Reach, num_keys: int, causal: bool) -> Tensor:
    """(N, num_keys), True where the query sees the key."""
    key = torch.arange(num_keys, device=reach.start.device)
    visible = (key >= reach.start[:, None]) & (key < reach.end[:, None])
    return visible.tril() if causal else visible
