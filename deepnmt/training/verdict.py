"""What becomes of an update: whether it may move the weights, its gradients' divisor, and what the log counts."""

import torch
from torch import Tensor

from deepnmt.training.mixed_precision import LossScale
from deepnmt.training.optimizer import Number
from deepnmt.training.state import TrainingState


def judge(
    state: TrainingState, norm: Tensor, sums: Tensor, clip_norm: float | None, step: Number, tokens: Number
) -> tuple[Tensor, Tensor]:
    """The divisor of the gradients, which carry the loss's scale, and whether they are bad: (), fp32, on the device.

    Takes note in the state: of a failure at `step`, of the scale that follows, and of the sums of loss and nll.
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
    """Of gradients that carry `scale`: takes it away, and clips their `norm` without it to `clip_norm`."""
    return scale if clip_norm is None else scale * (norm / clip_norm).clamp(min=1.0)
