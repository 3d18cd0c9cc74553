"""The learning rate is a function of the step: the paper's numbers, continuity, and where each schedule ends."""

import math
from itertools import pairwise

import pytest

from deepnmt.training.config import TrainingConfig
from deepnmt.training.schedule import SCHEDULES, learning_rate

PAPER = {
    "post base": (7e-4, 4000),
    "post big": (5e-4, 4000),
    "pre base": (1e-3, 8000),
    "pre big": (7e-4, 8000),
    "deep": (2e-3, 16000),
}


@pytest.mark.parametrize("lr, warmup", PAPER.values(), ids=PAPER.keys())
def test_paper_rate_at_step_1_at_warmup_and_at_ten_times_warmup(lr, warmup):
    config = TrainingConfig(max_steps=200_000, lr=lr, warmup_steps=warmup)
    assert learning_rate(0, config) == 1e-7
    assert learning_rate(1, config) == pytest.approx(1e-7 + (lr - 1e-7) / warmup, rel=1e-12)
    assert learning_rate(warmup, config) == pytest.approx(lr, rel=1e-12)
    assert learning_rate(10 * warmup, config) == pytest.approx(lr / math.sqrt(10), rel=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_peaks_at_lr_and_has_no_jump(name):
    config = TrainingConfig(max_steps=1000, schedule=name, lr=1e-2, warmup_steps=100, decay_steps=200)
    rates = [learning_rate(step, config) for step in range(1001)]
    assert max(rates) == pytest.approx(1e-2)
    assert max(abs(b - a) for a, b in pairwise(rates)) < 2e-4


@pytest.mark.parametrize("name", ["cosine", "warmup_stable_decay"])
def test_decaying_schedules_end_at_min_lr_and_stay_there(name):
    config = TrainingConfig(max_steps=1000, schedule=name, lr=1e-2, min_lr=1e-5, warmup_steps=100, decay_steps=200)
    assert learning_rate(1000, config) == pytest.approx(1e-5)
    assert learning_rate(2000, config) == pytest.approx(1e-5)


def test_stable_stretch_is_flat_until_the_decay_begins():
    config = TrainingConfig(max_steps=1000, schedule="warmup_stable_decay", lr=1.0, warmup_steps=100, decay_steps=200)
    assert learning_rate(100, config) == learning_rate(800, config) == 1.0
    assert learning_rate(900, config) == pytest.approx(0.5)


def test_no_warmup_starts_at_lr():
    assert learning_rate(0, TrainingConfig(max_steps=10, warmup_steps=0, lr=0.5)) == 0.5


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"max_steps": 0}, "max_steps = 0 must be at least 1"),
        ({"max_steps": 5, "label_smoothing": 1.0}, "label_smoothing = 1.0 must be at least 0 and below 1"),
        ({"max_steps": 5, "lr": 0.0}, "lr = 0.0 must be above 0"),
        ({"max_steps": 5, "betas": (0.9, 1.0)}, "betas = 1.0 must be"),
        ({"max_steps": 5, "lr": math.inf}, "lr = inf must be above 0 and finite"),
        ({"max_steps": 5, "lr": 1e-3, "min_lr": 2e-3}, "min_lr = 0.002 must be at most lr = 0.001"),
        ({"max_steps": 5, "seed": -1}, "seed = -1 must be at least 0"),
        ({"max_steps": 5, "seed": 2**64}, "seed = 18446744073709551616 must be at least 0 and below 9"),
        ({"max_steps": 5, "validation_lines": -1}, "validation_lines = -1 must be at least 0"),
        ({"max_steps": 5, "distributed_timeout_seconds": 0}, "distributed_timeout_seconds = 0 must be at least 1"),
        ({"max_steps": 5, "rollback_factor": 0.0}, "rollback_factor = 0.0 must be above 0 and below 1"),
        ({"max_steps": 5, "schedule": "warmup_stable_decay"}, "decay_steps"),
        ({"max_steps": 5, "schedule": "cosine", "warmup_steps": 5}, "warmup_steps = 5 must be below max_steps = 5"),
    ],
)
def test_impossible_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**settings)
