"""The recipe's [training] section: how the model is optimised and validated, and which checkpoints are kept."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from deepnmt.settings import check_bounds

Schedule = Literal["inverse_sqrt", "cosine", "warmup_stable_decay", "constant"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Metric = Literal["bleu", "chrf", "loss"]


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters of the projections in these parts of the model; all other weights are frozen."""

    rank: int = 16
    alpha: float = 32.0  # the update of a matrix is alpha / rank * B A
    parts: tuple[str, ...] = ("encoder", "decoder")

    def __post_init__(self) -> None:
        check_bounds(self, "lora.rank", least=1)
        check_bounds(self, "lora.alpha", above=0, below=math.inf)
        if not self.parts:
            raise ValueError("lora.parts = [] leaves nothing to train")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """A step is one optimiser update, over `tokens_per_update` tokens; intervals (`_every`) are in steps."""

    seed: int = 1
    max_steps: int
    max_epochs: int | None = None

    # Target tokens per update, over all ranks; gradients of batches of batching.tokens_per_batch are accumulated.
    tokens_per_update: int = 4096
    plan_memory: bool = False

    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.95  # of muon
    matrix_lr: float | None = None  # of the matrices that muon updates, on the schedule of lr; default: lr
    clip_norm: float | None = None
    label_smoothing: float = 0.1
    r_drop: float = 0.0  # weight of the divergence of two passes with different dropout; 0: one pass
    sampled_softmax: int = 0  # symbols besides the batch's own in the softmax; 0: the whole vocabulary

    schedule: Schedule = "inverse_sqrt"
    lr: float = 7e-4
    warmup_steps: int = 4000
    warmup_start_lr: float = 1e-7
    min_lr: float = 0.0
    decay_steps: int | None = None

    # Fine-tuning only some weights.
    freeze: tuple[str, ...] = ()  # parts of the model that are not trained
    lora: LoraConfig | None = None

    # Depths of the encoder, one after the other; the last is model.encoder.num_layers.
    grow: tuple[int, ...] = ()
    grow_at: tuple[int, ...] = ()  # the steps at which the depths after the first begin

    precision: Precision = "auto"
    compile: bool = True  # the layers, for packed batches on a GPU
    activation_checkpointing: bool = False
    ema_decay: float | None = None
    parallel: Literal["ddp", "fsdp"] = "ddp"
    distributed_timeout_seconds: int = 1800

    log_every: int = 100
    validate_every: int = 1000
    save_every: int = 1000
    keep_last: int = 2
    keep_best: int = 1
    keep_epochs: int = 5
    save_epochs: bool = True

    validation_beam: int = 1
    validation_lines: int | None = None  # translate only the first N lines (0: none); the loss is of all
    best_by: Metric = "bleu"
    patience: int | None = None

    export: Literal["best", "last", "average"] = "best"  # what RUN/model contains when training ends
    average_last: int = 5  # epochs

    diagnose: bool = True
    rollbacks: int = 0
    rollback_factor: float = 0.5

    tensorboard: bool = True
    wandb_project: str | None = None

    def __post_init__(self) -> None:
        counts = "max_steps tokens_per_update log_every validate_every save_every keep_last validation_beam"
        check_bounds(
            self, f"{counts} max_epochs patience average_last decay_steps distributed_timeout_seconds", least=1
        )
        check_bounds(self, "warmup_steps keep_best keep_epochs rollbacks sampled_softmax validation_lines", least=0)
        check_bounds(self, "seed", least=0, below=2**63)
        check_bounds(self, "r_drop weight_decay warmup_start_lr min_lr", least=0, below=math.inf)
        check_bounds(self, "label_smoothing betas momentum ema_decay", least=0, below=1)
        check_bounds(self, "rollback_factor", above=0, below=1)
        check_bounds(self, "lr matrix_lr eps", above=0, below=math.inf)
        check_bounds(self, "clip_norm", above=0)
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr = {self.min_lr} must be at most lr = {self.lr}")
        if self.matrix_lr is not None and self.optimizer != "muon":
            raise ValueError(f'matrix_lr = {self.matrix_lr} needs optimizer = "muon", not "{self.optimizer}"')
        if self.optimizer == "muon" and self.parallel == "fsdp":
            raise ValueError('optimizer = "muon" needs whole matrices, which parallel = "fsdp" divides; use "ddp"')
        if self.r_drop and (self.sampled_softmax or self.parallel == "fsdp"):
            other = "sampled_softmax" if self.sampled_softmax else 'parallel = "fsdp"'
            raise ValueError(f"r_drop = {self.r_drop} does not work with {other}")
        if self.schedule == "warmup_stable_decay" and self.decay_steps is None:
            raise ValueError('schedule = "warmup_stable_decay" needs decay_steps, the length of the decay')
        if self.schedule in ("cosine", "warmup_stable_decay") and self.warmup_steps >= self.max_steps:
            raise ValueError(f"warmup_steps = {self.warmup_steps} must be below max_steps = {self.max_steps}")
        if self.grow or self.grow_at:
            self._check_growth()
        if self.freeze or self.lora:
            self._check_frozen()

    def _check_frozen(self) -> None:
        if self.freeze and self.lora:
            raise ValueError("lora freezes all other weights, so freeze must be empty")
        if self.grow:
            raise ValueError(f"grow adds layers to train, and does not work with {'lora' if self.lora else 'freeze'}")
        if self.lora and self.optimizer == "muon":
            raise ValueError('optimizer = "muon" is for whole matrices, not for the factors of lora; use "adamw"')
        if self.lora and self.parallel == "fsdp":
            raise ValueError('lora needs whole matrices, which parallel = "fsdp" divides; use "ddp"')

    def _check_growth(self) -> None:
        grow, grow_at = list(self.grow), list(self.grow_at)
        if len(grow_at) != len(grow) - 1:
            raise ValueError(f"grow_at = {grow_at} must have one step fewer than grow = {grow} has depths")
        if sorted({1, *grow_at}) != [1, *grow_at]:
            raise ValueError(f"grow_at = {grow_at} must be steps above 1 in ascending order")
        for depth, deeper in pairwise(grow):
            if not depth < deeper <= 2 * depth:
                raise ValueError(f"grow = {grow}: a depth must be above the one before it and at most twice as large")
        if self.schedule not in ("inverse_sqrt", "constant"):
            raise ValueError(f'grow restarts schedule = "inverse_sqrt" or "constant", not "{self.schedule}"')
        if self.parallel == "fsdp":
            raise ValueError('grow needs whole layers, which parallel = "fsdp" divides; use "ddp"')
