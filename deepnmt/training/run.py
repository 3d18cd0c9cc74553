"""The state of a run: everything a restart must bring back, in one object.

The learning rate and the noise of dropout are functions of the step, so there is nothing of them to bring back.
"""

from dataclasses import dataclass, field
from typing import TypedDict

import torch
from torch import Tensor, nn

from deepnmt.training.config import TrainingConfig
from deepnmt.training.memory import Splitter
from deepnmt.training.optimizer import Ema, build_optimizer
from deepnmt.training.precision import LossScale


class RunState(TypedDict):
    """The part of a run that is not tensors of the model's size: state.json of a checkpoint."""

    step: int
    rate_factor: float
    rollbacks: int
    score: float | None
    best_scores: list[float]
    stale: int
    strikes: int
    window: list[float]
    loss_scale: dict[str, float]
    split_limit: int | None
    split_room: tuple[int, int] | None


@dataclass
class Run:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_scale: LossScale
    ema: Ema | None
    window: Tensor  # sums since the last log line: loss, nll, target tokens, skipped updates
    failed_at: Tensor  # the update whose loss or gradient was not finite, or -1; on the device, read when it is needed
    step: int = 0
    rate_factor: float = 1.0
    rollbacks: int = 0
    score: float | None = None  # of the validation at this very step
    is_best: bool = False  # that score is among the best ones
    saved_step: int = -1
    best_scores: list[float] = field(default_factory=list)  # as many as checkpoints are kept for their score
    stale: int = 0  # validations since the best one
    strikes: int = 0  # signs in a row that it does not learn
    splitter: Splitter = field(default_factory=Splitter)  # into which pieces batches are cut since one did not fit

    @classmethod
    def start(cls, model: nn.Module, config: TrainingConfig, fp16: bool, device: torch.device) -> "Run":
        return cls(
            model=model,
            optimizer=build_optimizer(model, config),
            loss_scale=LossScale(dynamic=fp16, device=device),
            ema=None if config.ema_decay is None else Ema(model, config.ema_decay),
            window=torch.zeros(4, dtype=torch.float64, device=device),
            failed_at=torch.tensor(-1, device=device),
        )

    def state(self) -> RunState:
        return {
            "step": self.step,
            "rate_factor": self.rate_factor,
            "rollbacks": self.rollbacks,
            "score": self.score,
            "best_scores": list(self.best_scores),
            "stale": self.stale,
            "strikes": self.strikes,
            "window": self.window.tolist(),
            "loss_scale": self.loss_scale.state(),
            "split_limit": self.splitter.limit,
            "split_room": self.splitter.room,
        }

    def load(self, state: RunState) -> None:
        self.step = state["step"]
        self.rate_factor = state["rate_factor"]
        self.rollbacks = state["rollbacks"]
        self.score = state["score"]
        self.best_scores = list(state["best_scores"])
        self.stale = state["stale"]
        self.strikes = state["strikes"]
        self.window.copy_(torch.tensor(state["window"], dtype=torch.float64))
        self.loss_scale.load(state["loss_scale"])
        room = state.get("split_room")
        self.splitter.limit, self.splitter.room = state["split_limit"], None if room is None else (room[0], room[1])
        self.failed_at.fill_(-1)
        self.is_best, self.saved_step = False, self.step
