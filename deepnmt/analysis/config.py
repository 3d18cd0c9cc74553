"""What is measured, and how often: pure data, so that help can show the defaults without loading torch."""

from dataclasses import dataclass

from deepnmt.decoding.config import DecodingConfig


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`workers` batches at a time, each of `batch` sentences, source and target `length` subwords long."""

    batch: int = 32
    beam: int = DecodingConfig.beam
    length: int = 32
    workers: int = 1
    repeats: int = 3
    fused: bool = True  # on a GPU: the fused search, if it knows the model

    def __post_init__(self) -> None:
        _at_least_one(self, "batch", "beam", "length", "workers", "repeats")


@dataclass(frozen=True, kw_only=True)
class TrainingTrial:
    """`steps` updates of one batch of `tokens` tokens, after `warm_ups` that are not timed."""

    tokens: int = 4096
    steps: int = 20
    warm_ups: int = 5
    eager: bool = False  # plain torch on padded batches, also on a GPU

    def __post_init__(self) -> None:
        _at_least_one(self, "tokens", "steps", "warm_ups")


@dataclass(frozen=True, kw_only=True)
class GradientTrial:
    """`steps` updates of `tokens` tokens, by models as deep as the recipe's and `width` wide (0: the recipe's own)."""

    steps: int = 20
    tokens: int = 256
    width: int = 64

    def __post_init__(self) -> None:
        _at_least_one(self, "tokens")
        for name in ("steps", "width"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")


def _at_least_one(trial: object, *names: str) -> None:
    for name in names:
        if getattr(trial, name) < 1:
            raise ValueError(f"{name} must be at least 1, not {getattr(trial, name)}")
