"""Label-smoothed cross-entropy in one kernel: a row of logits is read, and overwritten by its gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _load(logits, place, size, width, EVEN: tl.constexpr, FULL: tl.constexpr):
    x = tl.load(logits + place, mask=None if EVEN else place < width).to(tl.float32)
    return x if EVEN and FULL else tl.where(place < size, x, float("-inf"))


@triton.jit
def _cross_entropy(
    Logits, Targets, Loss, Nll, size, width, smoothing, lift, pad_id,
    EVEN: tl.constexpr, FULL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Exponents have base two. EVEN: whole blocks fill a row of this width; FULL: symbols do."""
    row = tl.program_id(0)
    target = tl.load(Targets + row)
    logits = Logits + row.to(tl.int64) * width
    of_target = tl.load(logits + target).to(tl.float32)
    best, total, plain_sum = float("-inf"), 0.0, 0.0
    for first in range(0, size, BLOCK):
        place = first + tl.arange(0, BLOCK)
        x = _load(logits, place, size, width, EVEN, FULL)
        new_best = tl.maximum(best, tl.max(x, 0) * LOG2_E)
        total = total * tl.exp2(best - new_best) + tl.sum(tl.exp2(x * LOG2_E - new_best), 0)
        plain_sum += tl.sum(x if EVEN and FULL else tl.where(place < size, x, 0.0), 0)
        best = new_best
    log2_z = best + tl.log2(total)
    log_z = log2_z / LOG2_E
    real = target != pad_id
    nll = log_z - of_target
    loss = (1 - smoothing) * nll + smoothing * (log_z - plain_sum / size)
    tl.store(Nll + row, tl.where(real, nll, 0.0))
    tl.store(Loss + row, tl.where(real, loss, 0.0))
    factor = tl.where(real, lift, 0.0)
    floor = smoothing / size * factor
    for first in range(0, size, BLOCK):
        place = first + tl.arange(0, BLOCK)
        x = _load(logits, place, size, width, EVEN, FULL)
        gradient = tl.exp2(x * LOG2_E - log2_z) * factor - floor
        if not FULL:
            gradient = tl.where(place < size, gradient, 0.0)
        tl.store(logits + place, gradient.to(Logits.dtype.element_ty), mask=None if EVEN else place < width)
    tl.debug_barrier()  # the target's gradient is stored again, after all others
    gradient = (tl.exp2(of_target * LOG2_E - log2_z) - (1 - smoothing)) * factor - floor
    tl.store(logits + target, gradient.to(Logits.dtype.element_ty))


def cross_entropy_(
    logits: Tensor, targets: Tensor, smoothing: float, pad_id: int, lift: float
) -> tuple[Tensor, Tensor]:
    """Overwrite logits (N, V) by `lift` times the gradient of the summed loss; return the sums of loss and nll.

    The logits may be the first columns of wider rows; the others are set to zero.
    """
    (rows, size), width = logits.shape, logits.stride(0)
    loss, nll = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    block = min(8192, triton.next_power_of_2(width))
    _cross_entropy[(rows,)](
        logits, targets, loss, nll, size, width, smoothing, lift, pad_id,
        EVEN=width % block == 0, FULL=size == width, BLOCK=block, num_warps=8,
    )  # fmt: skip
    return loss.sum(), nll.sum()
