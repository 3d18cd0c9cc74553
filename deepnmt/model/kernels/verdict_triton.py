"""The verdict on an update in one kernel instead of two dozen. `judge` in training/verdict.py has the plain twin."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _judge(
    Norm, Sums, Scale, Calm, Failed_at, Window, Step, Tokens, Divisor, Is_bad, clip_norm, calm_steps, smallest,
    CLIPS: tl.constexpr, DYNAMIC: tl.constexpr,
):  # fmt: skip
    norm, scale, calm, failed_at = tl.load(Norm), tl.load(Scale), tl.load(Calm), tl.load(Failed_at)
    loss, nll = tl.load(Sums), tl.load(Sums + 1)
    found = norm + loss + nll
    overflow = (found != found) | (tl.abs(found) == float("inf"))
    hopeless = overflow
    if DYNAMIC:
        hopeless = overflow & (scale <= smallest)
        calm = tl.where(overflow, 0.0, calm + 1)
        is_calm = calm >= calm_steps
        tl.store(Scale, tl.where(overflow, scale / 2, tl.where(is_calm, scale * 2, scale)))
        tl.store(Calm, tl.where(is_calm, 0.0, calm))
    failed_at = tl.where(hopeless & (failed_at < 0), tl.load(Step).to(tl.int64), failed_at)
    tl.store(Failed_at, failed_at)
    is_bad = overflow | (failed_at >= 0)
    divisor = scale
    if CLIPS:
        divisor = scale * tl.maximum(norm / clip_norm, 1.0)
    tl.store(Divisor, tl.where(is_bad, 1.0, divisor))
    tl.store(Is_bad, is_bad.to(tl.float32))
    tl.store(Window, tl.load(Window) + tl.where(overflow, 0.0, loss))
    tl.store(Window + 1, tl.load(Window + 1) + tl.where(overflow, 0.0, nll))
    tl.store(Window + 2, tl.load(Window + 2) + tl.where(overflow, 0.0, tl.load(Tokens)))
    tl.store(Window + 3, tl.load(Window + 3) + overflow.to(tl.float64))


def judge(
    norm: Tensor, sums: Tensor, scale: Tensor, calm: Tensor, failed_at: Tensor, window: Tensor, step: Tensor,
    tokens: Tensor, clip_norm: float | None, calm_steps: float, smallest: float, dynamic: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """step, tokens: () float64. Updates scale, calm, failed_at and window; returns divisor and is_bad: () fp32."""
    divisor, is_bad = torch.empty_like(scale), torch.empty_like(scale)
    _judge[(1,)](
        norm, sums, scale, calm, failed_at, window, step, tokens, divisor, is_bad,
        float(clip_norm or 1.0), calm_steps, smallest, CLIPS=clip_norm is not None, DYNAMIC=dynamic, num_warps=1,
    )  # fmt: skip
    return divisor, is_bad
