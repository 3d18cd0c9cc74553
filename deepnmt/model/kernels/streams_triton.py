"""Several mixtures of a few streams with weights of every position, on a GPU: one pass over memory for all of them."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024  # elements of a tile, read by one warp


@triton.jit
def _places(count, dim, R: tl.constexpr, D: tl.constexpr):
    positions = tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.arange(0, D)
    exists = positions < count
    inside = exists[:, None] & (columns < dim)[None, :]
    return positions.to(tl.int64), exists, positions[:, None].to(tl.int64) * dim + columns[None, :], inside


@triton.jit
def _mix(
    Streams, Branch, W, Out, count, dim, stride, n, num_out, num_parts,
    BRANCH: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Out[j] = sum_i W[:, i, j] * Streams[i], and the branch as the last part"""
    positions, exists, place, inside = _places(count, dim, R, D)
    size = tl.cast(count, tl.int64) * dim
    weights = W + positions * num_parts * num_out
    for j in range(num_out):
        mixed = tl.zeros((R, D), tl.float32)
        for i in range(n):
            weight = tl.load(weights + i * num_out + j, mask=exists, other=0.0)
            mixed += weight[:, None] * tl.load(Streams + i * stride + place, mask=inside, other=0.0).to(tl.float32)
        if BRANCH:
            weight = tl.load(weights + n * num_out + j, mask=exists, other=0.0)
            mixed += weight[:, None] * tl.load(Branch + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(Out + j * size + place, mixed.to(Out.dtype.element_ty), mask=inside)


@triton.jit
def _mix_backward(
    Part, G, W, dPart, dW, first, count, dim, stride, n, num_out, num_parts, R: tl.constexpr, D: tl.constexpr
):
    """Of n parts from `first` on: dPart[i] = sum_j W[:, i, j] * G[j], and dW[:, i, j] = G[j] . Part[i]"""
    positions, exists, place, inside = _places(count, dim, R, D)
    size = tl.cast(count, tl.int64) * dim
    own = positions * num_parts * num_out + first * num_out
    for i in range(n):
        part = tl.load(Part + i * stride + place, mask=inside, other=0.0).to(tl.float32)
        gathered = tl.zeros((R, D), tl.float32)
        for j in range(num_out):
            gradient = tl.load(G + j * size + place, mask=inside, other=0.0).to(tl.float32)
            weight = tl.load(W + own + i * num_out + j, mask=exists, other=0.0)
            gathered += weight[:, None] * gradient
            tl.store(dW + own + i * num_out + j, tl.sum(gradient * part, 1), mask=exists)
        tl.store(dPart + i * size + place, gathered.to(dPart.dtype.element_ty), mask=inside)


class _MixStreams(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams: Tensor, branch: Tensor | None, weights: Tensor) -> Tensor:
        if not streams[0].is_contiguous():
            streams = streams.contiguous()
        branch, weights = None if branch is None else branch.contiguous(), weights.contiguous()
        ctx.save_for_backward(streams, branch, weights)
        parts, outputs = weights.shape[-2:]
        mixed = torch.empty(outputs, *streams.shape[1:], dtype=streams.dtype, device=streams.device)
        count, dim, rows, width = tile_shape(mixed[0])
        _mix[(triton.cdiv(count, rows),)](
            streams, streams if branch is None else branch, weights, mixed, count, dim, streams.stride(0),
            len(streams), outputs, parts, BRANCH=branch is not None, R=rows, D=width, num_warps=1,
        )  # fmt: skip
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        streams, branch, weights = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        parts, outputs = weights.shape[-2:]
        count, dim, rows, width = tile_shape(gradient[0])
        d_streams = torch.empty(streams.shape, dtype=streams.dtype, device=streams.device)
        d_weights = torch.empty_like(weights)
        d_branch = None if branch is None else torch.empty_like(branch)
        for part, to_part, first, number in ((streams, d_streams, 0, len(streams)), (branch, d_branch, parts - 1, 1)):
            if part is not None:
                _mix_backward[(triton.cdiv(count, rows),)](
                    part, gradient, weights, to_part, d_weights, first, count, dim, part.stride(0) if first == 0 else 0,
                    number, outputs, parts, R=rows, D=width, num_warps=1,
                )  # fmt: skip
        return d_streams, d_branch, d_weights


def tile_shape(like: Tensor) -> tuple[int, int, int, int]:
    """Positions, width, positions of a tile, and its width."""
    dim = like.shape[-1]
    width = triton.next_power_of_2(dim)
    return like.numel() // dim, dim, max(TILE // width, 1), width


def fused_mix_streams(streams: Tensor, branch: Tensor | None, weights: Tensor) -> Tensor:
    mixed: Tensor = _MixStreams.apply(streams, branch, weights)
    return mixed
