"""The verdict on an update: whether it is applied, the divisor of its gradients, and what the log counts."""

import torch
from torch import Tensor

from deepnmt.training.mixed_precision import LossScale
from deepnmt.training.optimizer import Number
from deepnmt.training.state import TrainingState


def judge(
    state: TrainingState, norm: Tensor, sums: Tensor, clip_norm: float | None, step: Number, tokens: Number
) -> tuple[Tensor, Tensor]:
    """The divisor of the gradients, which carry the loss scale, and whether they are bad: (), fp32, on the device.

    Also records in the state: a failure at `step`, the next loss scale, and the sums of loss and nll.
    """
    scale = state.loss_scale
    if isinstance(step, Tensor) and isinstance(tokens, Tensor) and step.is_cuda:
        from deepnmt.model.kernels.verdict_triton import judge as judge_by_kernel

        return judge_by_kernel(
            norm, sums, scale.factor, scale.calm, state.failed_at, state.window, step, tokens, clip_norm,
            LossScale.CALM_STEPS, LossScale.SMALLEST, scale.dynamic,
        )  # fmt: skip
    overflow = ~torch.isfinite(norm + sums.sum())
    hopeless = scale.hopeless(overflow)
    state.failed_at.copy_(torch.where(hopeless & (state.failed_at < 0), step, state.failed_at))
    is_bad = overflow | (state.failed_at >= 0)
    divisor = torch.where(is_bad, 1.0, clipping_divisor(norm, clip_norm, scale.factor))
    scale.update(overflow)
    state.window += torch.cat([torch.where(overflow, 0.0, sums), torch.stack([~overflow * tokens, overflow])])
    return divisor, is_bad.float()


def clipping_divisor(norm: Tensor, clip_norm: float | None, scale: Tensor) -> Tensor:
    """Removes `scale` from the gradients, and clips their `norm`, which is without it, to `clip_norm`."""
    return scale if clip_norm is None else scale * (norm / clip_norm).clamp(min=1.0)
