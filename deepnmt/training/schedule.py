"""The learning rate as a plain function of the step: nothing to restore after a restart."""

import math
from collections.abc import Callable

from deepnmt.training.config import Schedule, TrainingConfig


def learning_rate(step: int, config: TrainingConfig) -> float:
    """The learning rate of the update after the first `step` updates.

    Where the model grows, it restarts at its peak, the end of the warm-up (Li et al. 2020, section 3.2).
    """
    grown_at = max((at for at in config.grow_at if at <= step), default=None)
    if grown_at is not None:
        step = config.warmup_steps + step - grown_at
    if step < config.warmup_steps:
        return config.warmup_start_lr + (config.lr - config.warmup_start_lr) * step / config.warmup_steps
    return SCHEDULES[config.schedule](step, config)


def encoder_depth(step: int, config: TrainingConfig) -> int | None:
    """The encoder's depth for the update after the first `step` updates; None if it never changes."""
    return config.grow[sum(at <= step for at in config.grow_at)] if config.grow else None


def inverse_sqrt(step: int, config: TrainingConfig) -> float:
    """lr * sqrt(warmup / step), the paper's (Vaswani et al. 2017, as in fairseq: continuous where the warm-up ends)."""
    warmup = max(config.warmup_steps, 1)
    return max(config.lr * math.sqrt(warmup / max(step, warmup)), config.min_lr)


def cosine(step: int, config: TrainingConfig) -> float:
    """Half a cosine from lr at the end of the warm-up to min_lr at max_steps."""
    done = (step - config.warmup_steps) / max(config.max_steps - config.warmup_steps, 1)
    return config.min_lr + (config.lr - config.min_lr) * (1 + math.cos(math.pi * min(done, 1.0))) / 2


def warmup_stable_decay(step: int, config: TrainingConfig) -> float:
    """lr until decay_steps before max_steps, then a straight line to min_lr (Hu et al. 2024, MiniCPM)."""
    assert config.decay_steps is not None
    left = min(max(config.max_steps - step, 0) / config.decay_steps, 1.0)
    return config.min_lr + (config.lr - config.min_lr) * left


def constant(step: int, config: TrainingConfig) -> float:
    return config.lr


SCHEDULES: dict[Schedule, Callable[[int, TrainingConfig], float]] = {
    "inverse_sqrt": inverse_sqrt,
    "cosine": cosine,
    "warmup_stable_decay": warmup_stable_decay,
    "constant": constant,
}
