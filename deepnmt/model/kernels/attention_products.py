"""Attention on a CPU as matrix products and a softmax, with a hand-written gradient: few calls and few casts.

In bf16 the backward pass of torch's fused attention is much slower on a CPU.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepnmt.model.kernels.dropout import quartered_dropout

REGISTER = 32  # bf16 numbers in one: torch's softmax in bf16 is several times slower if rows do not fill registers
SHORT = 16  # fp32 numbers in one: torch's softmax in fp32 is not vectorised for rows shorter than that


class Weights(NamedTuple):
    """The attention weights (B, T, S), and the noise of dropout on them."""

    plain: Tensor
    noise: Tensor | None

    def dropped(self) -> Tensor:
        return self.plain if self.noise is None else self.plain * self.noise


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, dropout: float, out: Tensor) -> Weights:
    """softmax(q k' / sqrt(head_dim) + mask) v, into `out`. query: (B, T, head_dim), keys and values: (B, S, head_dim)

    mask: an `additive_mask`, broadcastable to (B, T, S)
    """
    scores = torch.baddbmm(mask, query, keys.transpose(1, 2), alpha=query.shape[-1] ** -0.5)
    weights = Weights(_softmax(scores), _noise(scores, dropout) if dropout else None)
    torch.bmm(weights.dropped(), values, out=out)
    return weights


def attend_backward(gradient: Tensor, inputs: tuple[Tensor, ...], weights: Weights, out: tuple[Tensor, ...]) -> None:
    """inputs: query, keys and values; their gradients go into `out`"""
    query, keys, values = inputs
    of_query, of_keys, of_values = out
    torch.bmm(weights.dropped().transpose(1, 2), gradient, out=of_values)
    of_weights = torch.bmm(gradient, values.transpose(1, 2))
    if weights.noise is not None:
        of_weights *= weights.noise
    of_scores = _softmax_backward(of_weights, weights.plain)
    scale = query.shape[-1] ** -0.5
    torch.baddbmm(of_query, of_scores, keys, beta=0, alpha=scale, out=of_query)
    torch.baddbmm(of_keys, of_scores.transpose(1, 2), query, beta=0, alpha=scale, out=of_keys)


def additive_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """To be added to scores. Finite, so that fully masked queries get finite weights, which are never used."""
    return hidden.to(dtype).mul_(torch.finfo(dtype).min / 2)


def _softmax(scores: Tensor) -> Tensor:
    width = scores.shape[-1]
    if scores.dtype is not torch.bfloat16 or width % REGISTER == 0:
        return torch.softmax(scores, -1)
    exact = scores.float()
    if width >= SHORT:
        return torch.softmax(exact, -1).to(scores.dtype)
    powers = exact.sub_(exact.amax(-1, keepdim=True)).exp_()
    return powers.div_(powers.sum(-1, keepdim=True)).to(scores.dtype)


def _softmax_backward(gradient: Tensor, weights: Tensor) -> Tensor:
    width, dtype = weights.shape[-1], weights.dtype
    if dtype is not torch.bfloat16 or width % REGISTER == 0:
        return torch._softmax_backward_data(gradient, weights, -1, dtype)
    exact, product = weights.float(), gradient.float()
    if width >= SHORT:
        return torch._softmax_backward_data(product, exact, -1, torch.float32).to(dtype)
    product *= exact
    return product.addcmul_(exact, product.sum(-1, keepdim=True), value=-1).to(dtype)


def _noise(like: Tensor, dropout: float) -> Tensor:
    return quartered_dropout(like.new_ones(()).expand(like.shape), dropout)


def attend_by_products(query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor, dropout: float) -> Tensor:
    """query: (B, T, heads, head_dim), keys and values: (B, S, heads, head_dim) -> like query.

    hidden: broadcastable to (B, heads, T, S), True where the query must not attend
    """
    mask = additive_mask(hidden, query.dtype)
    if mask.shape[0] > 1 or mask.shape[1] > 1:
        mask = mask.expand(query.shape[0], query.shape[2], -1, -1)
    by_head = [x.transpose(1, 2).flatten(0, 1).contiguous() for x in (query, keys, values)]
    attended = attend_blocks(lambda x: [x], [mask.flatten(0, 1)], dropout, *by_head)
    return attended.unflatten(0, (-1, query.shape[2])).transpose(1, 2)


Views = Callable[[Tensor], list[Tensor]]


def attend_blocks(views: Views, masks: list[Tensor], dropout: float, *parts: Tensor) -> Tensor:
    """`attend` block by block, with its gradient; `views` splits a tensor into blocks, each of which has a mask.

    parts: query, keys and values, or one tensor of all three, one after the other -> like query
    """
    attended: Tensor = _AttendBlocks.apply(views, masks, dropout, *parts)
    return attended


class _AttendBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, views: Views, masks: list[Tensor], dropout: float, *parts: Tensor) -> Tensor:
        inputs = _split(parts)
        attended = torch.empty_like(inputs[0])
        blocks = zip(*map(views, (*inputs, attended)), masks, strict=True)
        with torch.autocast("cpu", enabled=False):
            weights = [attend(q, k, v, mask, dropout, out) for q, k, v, out, mask in blocks]
        ctx.save_for_backward(*parts, *(tensor for pair in weights for tensor in pair))
        ctx.views, ctx.num_parts = views, len(parts)
        return attended

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: recomputed activations are handed out once
        parts, weights = saved[: ctx.num_parts], saved[ctx.num_parts :]
        found = tuple(map(torch.empty_like, parts))
        blocks = zip(*map(ctx.views, (gradients[0], *_split(parts), *_split(found))), strict=True)
        for (gradient, q, k, v, *out), plain, noise in zip(blocks, weights[::2], weights[1::2], strict=True):
            attend_backward(gradient, (q, k, v), Weights(plain, noise), tuple(out))
        return None, None, None, *found


def _split(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return parts if len(parts) == 3 else parts[0].chunk(3)
