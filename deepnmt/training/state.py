"""The state of training: everything a restart must bring back, in one object.

The learning rate and the noise of dropout are functions of the step, so they need no state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from deepnmt.data.batching import StreamState
from deepnmt.model.transformer import Transformer
from deepnmt.training.config import TrainingConfig
from deepnmt.training.distributed import World
from deepnmt.training.engine import Objective
from deepnmt.training.memory import Splitter
from deepnmt.training.mixed_precision import LossScale
from deepnmt.training.optimizer import Ema, build_optimizer

SCORED = {"score", "best_scores", "stale"}


@dataclass(kw_only=True)
class PlainState:
    """The plain values of the state, which state.json stores under these names."""

    step: int = 0
    rate_factor: float = 1.0
    rollbacks: int = 0
    score: float | None = None  # of the validation at this step
    measure: str = ""  # what a score measures: only scores of the same measure can be compared
    best_scores: list[float] = field(default_factory=list)  # as many as checkpoints are kept for their score
    stale: int = 0  # validations since the best one
    strikes: int = 0  # consecutive signs that the model does not learn
    log_lines: int = 0  # of log.jsonl when this was saved


@dataclass(kw_only=True)
class TrainingState(PlainState):
    model: Transformer
    optimizer: torch.optim.Optimizer
    loss_scale: LossScale
    ema: Ema | None
    window: Tensor  # sums since the last log line: loss, nll, target tokens, skipped updates
    failed_at: Tensor  # the update whose loss or gradient was not finite, or -1; on the device, read when needed
    data: StreamState | None = None  # the position in the training data; None at the start
    saved_step: int = -1
    splitter: Splitter = field(default_factory=Splitter)  # how batches are cut since one did not fit

    @classmethod
    def start(cls, objective: Objective, config: TrainingConfig, world: World) -> "TrainingState":
        model = objective.model
        return cls(
            model=model,
            optimizer=build_optimizer(model, config, world),
            loss_scale=LossScale(dynamic=objective.dtype is torch.float16, device=world.device),
            ema=None if config.ema_decay is None else Ema(model, config.ema_decay),
            window=torch.zeros(4, dtype=torch.float64, device=world.device),
            failed_at=torch.tensor(-1, device=world.device),
        )

    def take(self, model: Transformer, config: TrainingConfig, world: World) -> None:
        """Continue with another model: a new optimiser and moving average, and patience from the start."""
        self.model, self.optimizer = model, build_optimizer(model, config, world)
        self.ema = None if config.ema_decay is None else Ema(model, config.ema_decay)
        self.strikes = self.stale = 0

    @property
    def is_best(self) -> bool:
        """Whether the score of this step is among the best; of equal scores the newest counts."""
        return self.score is not None and self.score >= self.best_scores[-1]

    def stored(self) -> dict[str, Any]:
        """All but tensors of the model's size and the position in the data: the run's part of state.json."""
        return {plain.name: getattr(self, plain.name) for plain in fields(PlainState)} | {
            "window": self.window.tolist(),
            "loss_scale": self.loss_scale.state(),
            "split_limit": self.splitter.limit,
            "split_room": self.splitter.room,
        }

    def restore(self, stored: Mapping[str, Any], data: StreamState | None) -> None:
        kept = {"measure"} if stored["measure"] == self.measure else {"measure", *SCORED}
        for name in {plain.name for plain in fields(PlainState)} - kept:
            setattr(self, name, stored[name])
        self.data, self.saved_step = data, self.step
        self.window.copy_(torch.tensor(stored["window"], dtype=torch.float64))
        self.loss_scale.load(stored["loss_scale"])
        room = stored["split_room"]
        self.splitter.limit, self.splitter.room = stored["split_limit"], None if room is None else (room[0], room[1])
        self.failed_at.fill_(-1)
