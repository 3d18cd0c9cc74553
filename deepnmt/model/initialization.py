"""Initialisation of the parameters: as in the authors' code, or as defined by a scheme."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from deepnmt.model.attention import CrossAttention, SelfAttention
from deepnmt.model.layers import FeedForward, Layer
from deepnmt.model.positions import RelativePositions
from deepnmt.model.skipping import nothing_skipped
from deepnmt.model.sublayers import Sublayer
from deepnmt.model.sublayers.sublayer import Function


def initialize(model: nn.Module) -> None:
    """Embeddings N(0, 1/dim), padding too; linear layers Xavier-uniform with zero bias; norms one and zero.

    Connection weights are initialised by their scheme. Schemes around sub-layers may change the initialisation of the
    functions in them.
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, RelativePositions):
            for table in module.parameters():
                nn.init.xavier_uniform_(table)
        elif isinstance(module, SelfAttention):
            _xavier_as(module.input, rows=3 * module.input.in_features)
        elif isinstance(module, CrossAttention):
            _initialize_cross_attention(module)
        elif isinstance(module, FeedForward) and module.gated:
            _xavier_as(module.expand, rows=module.expand.out_features // 2)
    with torch.no_grad():
        for stack in _sublayers(model):
            for sublayer, function in stack:
                sublayer.initialize(function)


def starts_from_data(model: nn.Module) -> bool:
    return any(sublayer.starts_from_data for stack in _sublayers(model) for sublayer, _ in stack)


@torch.no_grad()
def branch_variances(model: nn.Module, forward: Callable[[], object]) -> list[list[float]]:
    """The variance of the input of a stack, then of every branch after its dropout: of the encoder and of the decoder.

    Measured in one pass over data without skipping, over all positions and dimensions, padding included, as in the code
    of Admin's authors.
    """
    variances: list[list[Tensor]] = []
    hooks = []
    for stack in _sublayers(model):
        found: list[Tensor] = []
        variances.append(found)
        hooks.append(stack[0][0].register_forward_pre_hook(partial(_measure, found)))
        hooks += [sublayer.dropout.register_forward_hook(partial(_measure, found)) for sublayer, _ in stack]
    with nothing_skipped(model):
        forward()
    for hook in hooks:
        hook.remove()
    return [torch.stack(found).tolist() for found in variances]


def _measure(found: list[Tensor], _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor | None = None) -> None:
    """A hook before a module, which measures its input, or after it, which measures its output."""
    found.append((inputs[0] if output is None else output).float().var(correction=0))


@torch.no_grad()
def start_from(model: nn.Module, variances: list[list[float]]) -> None:
    """Complete the initialisation of schemes that need the variances below a sub-layer."""
    for stack, found in zip(_sublayers(model), variances, strict=True):
        for number, (sublayer, _) in enumerate(stack, start=1):
            sublayer.start_from(found[:number])


def _sublayers(model: nn.Module) -> list[list[tuple[Sublayer, Function]]]:
    """Those of the encoder and those of the decoder, from below."""
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    stacks = [[layer for layer in layers if layer.is_decoder == is_decoder] for is_decoder in (False, True)]
    return [[pair for layer in stack for pair in layer.sublayers()] for stack in stacks]


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
