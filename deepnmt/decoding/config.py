"""The settings of a translation, as a user gives them."""

from dataclasses import dataclass
from typing import Literal

from deepnmt.decoding.penalties import LengthPenalty
from deepnmt.decoding.sampling import SamplingConfig
from deepnmt.decoding.search import SearchConfig


@dataclass(frozen=True, kw_only=True)
class TranslationConfig:
    """How to search. Lengths are in subwords without the end; a target may be ratio * source + extra long."""

    beam: int = 4
    nbest: int = 1
    length_penalty: float = 0.6
    penalty_form: Literal["length", "gnmt"] = "length"
    patience: float = 1.0
    stop_early: bool = True
    min_length: int = 0
    max_length: int | None = None  # instead of ratio and extra
    max_length_ratio: float = 2.0
    max_length_extra: int = 20
    no_repeat_ngram: int = 0
    allow_unknown: bool = False
    sampling: bool = False  # draw `nbest` times instead of searching
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1
    alignments: bool = False
    max_source_length: int = 256  # a longer line is cut into sentences or clauses
    batch_tokens: int | None = None  # source subwords with padding; None: what suits the device

    def __post_init__(self) -> None:
        for name, least in (
            ("min_length", 0),
            ("no_repeat_ngram", 0),
            ("max_length_extra", 0),
            ("max_source_length", 2),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("max_length", "batch_tokens"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_length is not None and self.max_length < self.min_length:
            raise ValueError(f"min_length = {self.min_length} is more than max_length = {self.max_length}")
        if self.max_length_ratio < 0:
            raise ValueError(f"max_length_ratio must be at least 0, not {self.max_length_ratio}")
        self.search, self.draw  # noqa: B018 (their own checks)

    @property
    def search(self) -> SearchConfig:
        penalty = LengthPenalty(alpha=self.length_penalty, form=self.penalty_form)
        beam = max(self.beam, self.nbest) if self.sampling else self.beam
        return SearchConfig(
            beam=beam, nbest=self.nbest, penalty=penalty, patience=self.patience, stop_early=self.stop_early
        )

    @property
    def draw(self) -> SamplingConfig:
        return SamplingConfig(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, seed=self.seed)
