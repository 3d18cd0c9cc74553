"""Label-smoothed cross-entropy in one kernel: a row of logits is read, and overwritten by its gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _cross_entropy(Logits, Targets, Loss, Nll, size, smoothing, lift, pad_id, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    target = tl.load(Targets + row)
    logits = Logits + row.to(tl.int64) * size
    best, total, plain_sum = float("-inf"), 0.0, 0.0
    for first in range(0, size, BLOCK):
        place = first + tl.arange(0, BLOCK)
        x = tl.load(logits + place, mask=place < size, other=float("-inf")).to(tl.float32)
        new_best = tl.maximum(best, tl.max(x, 0))
        total = total * tl.exp(best - new_best) + tl.sum(tl.exp(x - new_best), 0)
        plain_sum += tl.sum(tl.where(place < size, x, 0.0), 0)
        best = new_best
    log_z = best + tl.log(total)
    real = target != pad_id
    nll = log_z - tl.load(logits + target).to(tl.float32)
    loss = (1 - smoothing) * nll + smoothing * (log_z - plain_sum / size)
    tl.store(Nll + row, tl.where(real, nll, 0.0))
    tl.store(Loss + row, tl.where(real, loss, 0.0))
    factor = tl.where(real, lift, 0.0)
    for first in range(0, size, BLOCK):
        place = first + tl.arange(0, BLOCK)
        x = tl.load(logits + place, mask=place < size, other=float("-inf")).to(tl.float32)
        gradient = tl.exp(x - log_z) - smoothing / size - tl.where(place == target, 1 - smoothing, 0.0)
        tl.store(logits + place, (gradient * factor).to(Logits.dtype.element_ty), mask=place < size)


def cross_entropy_(
    logits: Tensor, targets: Tensor, smoothing: float, pad_id: int, lift: float
) -> tuple[Tensor, Tensor]:
    """Overwrite logits (N, V) by `lift` times the gradient of the summed loss; returns the sums of loss and nll."""
    rows, size = logits.shape
    loss, nll = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    block = min(8192, triton.next_power_of_2(size))
    _cross_entropy[(rows,)](logits, targets, loss, nll, size, smoothing, lift, pad_id, BLOCK=block, num_warps=8)
    return loss.sum(), nll.sum()
