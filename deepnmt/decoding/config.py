"""The settings of a search and of a translation: pure data, which a recipe may hold too."""

from dataclasses import dataclass, field
from typing import Literal

from deepnmt.settings import check_bounds


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """A recipe's [decoding] section: how the model is decoded unless a user asks for something else."""

    beam: int = 4
    length_penalty: float = 0.6
    keep_placeholders: bool = False  # and URLs and e-mail addresses: put back those that the model loses


@dataclass(frozen=True, kw_only=True)
class LengthPenalty:
    alpha: float = DecodingConfig.length_penalty
    form: Literal["length", "gnmt"] = "length"


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The search ends for a sentence when patience * beam hypotheses have ended (https://arxiv.org/abs/2204.05424; the
    authors' search has patience one), or, with `stop_early`, as soon as no other can enter its n best."""

    beam: int = DecodingConfig.beam
    nbest: int = 1
    penalty: LengthPenalty = field(default_factory=LengthPenalty)
    patience: float = 1.0
    stop_early: bool = True

    def __post_init__(self) -> None:
        check_bounds(self, "beam", least=1)
        check_bounds(self, "patience", above=0)
        if not 1 <= self.nbest <= self.beam:
            raise ValueError(f"nbest must be between 1 and the beam ({self.beam}), not {self.nbest}")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Draw from the `top_k` most probable symbols (0: all), of these from the fewest that hold `top_p` of the mass."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, not {self.temperature} (greedy search is beam 1)")
        check_bounds(self, "top_k", least=0)
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(DecodingConfig):
    """How to search. Lengths are in subwords without the end; a target may be ratio * source + extra long."""

    nbest: int = 1
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
        check_bounds(self, "min_length no_repeat_ngram max_length_ratio max_length_extra", least=0)
        check_bounds(self, "max_length batch_tokens", least=1)
        check_bounds(self, "max_source_length", least=2)
        if self.max_length is not None and self.max_length < self.min_length:
            raise ValueError(f"min_length = {self.min_length} is more than max_length = {self.max_length}")
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
