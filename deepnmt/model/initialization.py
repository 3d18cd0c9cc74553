"""How the parameters start, all of them, as in the authors' code."""

import math

import torch
from torch import nn

from deepnmt.model.attention import CrossAttention, SelfAttention
from deepnmt.model.layers import FeedForward, Layer


def initialize(model: nn.Module) -> None:
    """Embeddings N(0, 1/dim), padding too; linear layers Xavier-uniform with zero bias; norms one and zero.

    Connection weights are set by their scheme: their start is part of it. Schemes around sub-layers may change how
    the functions in them start.
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, SelfAttention):
            _xavier_as(module.input, rows=3 * module.input.in_features)
        elif isinstance(module, CrossAttention):
            _initialize_cross_attention(module)
        elif isinstance(module, FeedForward) and module.gated:
            _xavier_as(module.expand, rows=module.expand.out_features // 2)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Layer):
                for sublayer, function in module.sublayers():
                    sublayer.initialize(function)


def _initialize_cross_attention(attention: CrossAttention) -> None:
    """Queries, keys and values are one packed matrix for the authors; of two widths, one for each side."""
    dim, memory_dim = attention.query.in_features, attention.key_value.in_features
    if dim == memory_dim:
        _xavier_as(attention.query, rows=3 * dim)
        _xavier_as(attention.key_value, rows=3 * dim)
    else:
        _xavier_as(attention.key_value, rows=dim)


def _xavier_as(linear: nn.Linear, rows: int) -> None:
    """Xavier-uniform as if the matrix had this many rows."""
    bound = math.sqrt(6 / (rows + linear.in_features))
    nn.init.uniform_(linear.weight, -bound, bound)
