"""The state of training: everything a restart must bring back, in one object.

The learning rate and the noise of dropout are functions of the step, so they need no state.
"""

from dataclasses import dataclass, field
from typing import TypedDict

import torch
from torch import Tensor, nn

from deepnmt.data.batching import StreamState
from deepnmt.training.config import TrainingConfig
from deepnmt.training.distributed import World
from deepnmt.training.memory import Splitter
from deepnmt.training.optimizer import Ema, build_optimizer
from deepnmt.training.precision import LossScale


class StoredState(TypedDict):
    """The part of the state that is neither tensors of the model's size nor the position in the data: state.json."""

    step: int
    rate_factor: float
    rollbacks: int
    score: float | None
    measure: str
    best_scores: list[float]
    stale: int
    strikes: int
    window: list[float]
    log_lines: int | None
    loss_scale: dict[str, float]
    split_limit: int | None
    split_room: tuple[int, int] | None


@dataclass
class TrainingState:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_scale: LossScale
    ema: Ema | None
    window: Tensor  # sums since the last log line: loss, nll, target tokens, skipped updates
    failed_at: Tensor  # the update whose loss or gradient was not finite, or -1; on the device, read when needed
    measure: str = ""  # what a score measures: only scores of the same measure can be compared
    data: StreamState | None = None  # the position in the training data; None at the start
    step: int = 0
    rate_factor: float = 1.0
    rollbacks: int = 0
    score: float | None = None  # of the validation at this step
    saved_step: int = -1
    best_scores: list[float] = field(default_factory=list)  # as many as checkpoints are kept for their score
    stale: int = 0  # validations since the best one
    strikes: int = 0  # consecutive signs that the model does not learn
    log_lines: int | None = 0  # of log.jsonl when this was saved; None in checkpoints from before that was stored
    splitter: Splitter = field(default_factory=Splitter)  # how batches are cut since one did not fit

    @classmethod
    def start(
        cls, model: nn.Module, config: TrainingConfig, fp16: bool, world: World, measure: str = ""
    ) -> "TrainingState":
        return cls(
            model=model,
            optimizer=build_optimizer(model, config, world),
            loss_scale=LossScale(dynamic=fp16, device=world.device),
            ema=None if config.ema_decay is None else Ema(model, config.ema_decay),
            window=torch.zeros(4, dtype=torch.float64, device=world.device),
            failed_at=torch.tensor(-1, device=world.device),
            measure=measure,
        )

    @property
    def is_best(self) -> bool:
        """Whether the score of this step is among the best; of equal scores the newest counts."""
        return self.score is not None and self.score >= self.best_scores[-1]

    def stored(self) -> StoredState:
        return {
            "step": self.step,
            "rate_factor": self.rate_factor,
            "rollbacks": self.rollbacks,
            "score": self.score,
            "measure": self.measure,
            "best_scores": list(self.best_scores),
            "stale": self.stale,
            "strikes": self.strikes,
            "window": self.window.tolist(),
            "log_lines": self.log_lines,
            "loss_scale": self.loss_scale.state(),
            "split_limit": self.splitter.limit,
            "split_room": self.splitter.room,
        }

    def restore(self, stored: StoredState, data: StreamState | None) -> None:
        self.data = data
        self.step = stored["step"]
        self.rate_factor = stored["rate_factor"]
        self.rollbacks = stored["rollbacks"]
        self.strikes = stored["strikes"]
        self.window.copy_(torch.tensor(stored["window"], dtype=torch.float64))
        self.loss_scale.load(stored["loss_scale"])
        room = stored.get("split_room")
        self.splitter.limit, self.splitter.room = stored["split_limit"], None if room is None else (room[0], room[1])
        self.failed_at.fill_(-1)
        self.saved_step = self.step
        self.log_lines = stored.get("log_lines")
        # Checkpoints from before scores had a measure count as being of this one.
        is_comparable = stored.get("measure", self.measure) == self.measure
        self.score = stored["score"] if is_comparable else None
        self.best_scores = list(stored["best_scores"]) if is_comparable else []
        self.stale = stored["stale"] if is_comparable else 0
