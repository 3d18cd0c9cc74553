"""Settings of the measurements: pure data, so that help can show the defaults without loading torch."""

from dataclasses import dataclass

from deepnmt.decoding.config import DecodingConfig
from deepnmt.settings import check_bounds


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`workers` concurrent batches of `batch` sentences, with `length` subwords on both sides."""

    batch: int = 32
    beam: int = DecodingConfig.beam
    length: int = 32
    workers: int = 1
    repeats: int = 3
    fused: bool = True  # on a GPU: the fused search, if it supports the model

    def __post_init__(self) -> None:
        check_bounds(self, "batch beam length workers repeats", least=1)


@dataclass(frozen=True, kw_only=True)
class TrainingTrial:
    """`steps` updates of one batch of `tokens` tokens, after `warm_ups` untimed ones."""

    tokens: int = 4096
    steps: int = 20
    warm_ups: int = 5
    eager: bool = False  # plain torch on padded batches, even on a GPU

    def __post_init__(self) -> None:
        check_bounds(self, "tokens steps warm_ups", least=1)


@dataclass(frozen=True, kw_only=True)
class GradientTrial:
    """`steps` updates of `tokens` tokens, with models of the recipe's depth and this `width` (0: the recipe's)."""

    steps: int = 20
    tokens: int = 256
    width: int = 64

    def __post_init__(self) -> None:
        check_bounds(self, "tokens", least=1)
        check_bounds(self, "steps width", least=0)
