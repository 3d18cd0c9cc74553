"""Sinkhorn's rounds on a GPU: a small matrix for each position, kept in registers through all of them."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

POSITIONS = 64  # of a program


@triton.jit
def _load(Logits, count, n, P: tl.constexpr, N: tl.constexpr):
    """exp(logits) of P positions, each divided by its greatest: (P, N, N); zero outside"""
    positions = tl.program_id(0) * P + tl.arange(0, P)
    line = tl.arange(0, N)
    inside = (positions < count)[:, None, None] & (line < n)[None, :, None] & (line < n)[None, None, :]
    place = positions[:, None, None].to(tl.int64) * n * n + line[None, :, None] * n + line[None, None, :]
    logits = tl.load(Logits + place, mask=inside, other=float("-inf"))
    greatest = tl.max(tl.max(logits, 2), 1)
    greatest = tl.where(positions < count, greatest, 0.0)
    return tl.exp(logits - greatest[:, None, None]), place, inside, positions, line


@triton.jit
def _sinkhorn(Logits, Out, count, n, ROUNDS: tl.constexpr, P: tl.constexpr, N: tl.constexpr, TINY: tl.constexpr):
    x, place, inside, _, _ = _load(Logits, count, n, P, N)
    for _ in range(ROUNDS):
        x = x / (tl.sum(x, 1) + TINY)[:, None, :]
        x = x / (tl.sum(x, 2) + TINY)[:, :, None]
    tl.store(Out + place, x, mask=inside)


@triton.jit
def _sinkhorn_backward(
    Logits, dOut, dLogits, Sums, count, n, ROUNDS: tl.constexpr, P: tl.constexpr, N: tl.constexpr, TINY: tl.constexpr
):
    """The rounds again, keeping their sums; then back. y = x / s needs of x only y and s: dx = (dy - sum(dy y)) / s."""
    x, place, inside, positions, line = _load(Logits, count, n, P, N)
    kept = Sums + positions[:, None].to(tl.int64) * (2 * ROUNDS * n) + line[None, :]
    exists = (positions < count)[:, None] & (line < n)[None, :]
    for i in range(ROUNDS):
        columns = tl.sum(x, 1) + TINY
        x = x / columns[:, None, :]
        rows = tl.sum(x, 2) + TINY
        x = x / rows[:, :, None]
        tl.store(kept + 2 * i * n, columns, mask=exists)
        tl.store(kept + (2 * i + 1) * n, rows, mask=exists)
    gradient = tl.load(dOut + place, mask=inside, other=0.0)
    tl.debug_barrier()  # one thread may load what another has stored
    for step in range(ROUNDS):
        i = ROUNDS - 1 - step
        rows = tl.load(kept + (2 * i + 1) * n, mask=exists, other=1.0)
        gradient = (gradient - tl.sum(gradient * x, 2)[:, :, None]) / rows[:, :, None]
        x = x * rows[:, :, None]
        columns = tl.load(kept + 2 * i * n, mask=exists, other=1.0)
        gradient = (gradient - tl.sum(gradient * x, 1)[:, None, :]) / columns[:, None, :]
        x = x * columns[:, None, :]
    tl.store(dLogits + place, gradient * x, mask=inside)


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, rounds: int) -> Tensor:
        logits = logits.contiguous()
        ctx.save_for_backward(logits)
        ctx.rounds = rounds
        out = torch.empty_like(logits)
        _sinkhorn[_grid(logits)](logits, out, *_sizes(logits), rounds, **_shape(logits))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (logits,) = ctx.saved_tensors
        (count, n), d_logits = _sizes(logits), torch.empty_like(logits)
        sums = torch.empty(count, 2 * ctx.rounds, n, device=logits.device)
        _sinkhorn_backward[_grid(logits)](
            logits, gradients[0].contiguous(), d_logits, sums, count, n, ctx.rounds, **_shape(logits)
        )
        return d_logits, None


def _sizes(logits: Tensor) -> tuple[int, int]:
    """Positions, and the size of a matrix."""
    n = logits.shape[-1]
    return logits.numel() // (n * n), n


def _grid(logits: Tensor) -> tuple[int]:
    return (triton.cdiv(_sizes(logits)[0], POSITIONS),)


def _shape(logits: Tensor) -> dict[str, Any]:
    return {"P": POSITIONS, "N": triton.next_power_of_2(logits.shape[-1]), "TINY": 1e-30, "num_warps": 2}


def fused_sinkhorn(logits: Tensor, rounds: int) -> Tensor:
    """logits: (..., n, n) in fp32"""
    found: Tensor = _Sinkhorn.apply(logits, rounds)
    return found
