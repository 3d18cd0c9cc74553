"""The settings of search and translation: pure data, which a recipe may contain."""

import math
from dataclasses import dataclass, fields
from typing import Literal

from deepnmt.settings import check_bounds

MBR_EPSILON = 0.02  # Freitag et al. 2023, https://arxiv.org/abs/2305.09860


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """A recipe's [decoding] section: the model's default decoding settings."""

    beam: int = 4
    length_penalty: float = 0.6
    keep_placeholders: bool = False  # restore placeholders, URLs and e-mail addresses that the model loses

    def __post_init__(self) -> None:
        check_bounds(self, "beam", least=1)
        check_bounds(self, "length_penalty", above=-10, below=10)  # powers of lengths stay finite


@dataclass(frozen=True, kw_only=True)
class SearchConfig(DecodingConfig):
    """The search ends for a sentence when patience * beam hypotheses have ended (https://arxiv.org/abs/2204.05424; the
    authors' search has patience one), or, with `stop_early`, as soon as no other can enter its n best."""

    nbest: int = 1
    sampling: bool = False  # draw `nbest` times instead of searching
    mbr: Literal["chrf", "bleu"] | None = None  # draw `samples` times, and rank by this utility
    samples: int = 64
    penalty_form: Literal["length", "gnmt"] = "length"
    patience: float = 1.0
    stop_early: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self, "patience", above=0)
        check_bounds(self, "nbest", least=1)
        check_bounds(self, "samples", least=2)
        most, name = (self.samples, "number of samples") if self.mbr else (self.beam, "beam")
        if self.nbest > most and (self.mbr or not self.sampling):
            raise ValueError(f"nbest must be between 1 and the {name} ({most}), not {self.nbest}")

    @property
    def draws(self) -> int:
        """The number of samples of each sentence; 0: it is searched."""
        return self.samples if self.mbr else self.nbest if self.sampling else 0


@dataclass(frozen=True)
class SlotShape:
    """The capacity and the settings of a search recorded on a GPU. Lengths include the end."""

    sentences: int
    source_length: int
    target_length: int
    config: SearchConfig
    banned: tuple[int, ...]
    min_length: int


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(SearchConfig):
    """How to translate. Lengths are in subwords without the end; a target may be ratio * source + extra long.

    Sampling draws from the symbols whose probability is at least `epsilon` (or from the most probable one if there is
    none), of these from the `top_k` most probable (0: all), and of these from the fewest that hold `top_p` of the mass.
    Of these three, only the last depends on the temperature.
    """

    min_length: int = 0
    max_length: int | None = None  # instead of ratio and extra
    max_length_ratio: float = 2.0
    max_length_extra: int = 20
    no_repeat_ngram: int = 0
    allow_unknown: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    epsilon: float | None = None  # None: MBR_EPSILON for MBR, else 0
    seed: int = 1
    alignments: bool = False
    max_source_length: int = 256  # a longer line is cut into sentences or clauses
    batch_tokens: int | None = None  # source subwords with padding; None: depends on the device

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self, "min_length no_repeat_ngram max_length_extra top_k", least=0)
        check_bounds(self, "max_length_ratio", least=0, below=math.inf)
        check_bounds(self, "max_length batch_tokens", least=1)
        check_bounds(self, "max_source_length", least=2)
        if self.max_length is not None and self.max_length < self.min_length:
            raise ValueError(f"min_length = {self.min_length} is more than max_length = {self.max_length}")
        if not 1e-6 <= self.temperature < math.inf:
            raise ValueError(
                f"temperature = {self.temperature} must be at least 1e-06 and finite (greedy search is beam 1)"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        check_bounds(self, "epsilon", least=0, below=1)
        if not self.draws:
            self._check_unused("temperature top_k top_p epsilon", "without sampling")
        else:
            self._check_unused("patience", "with sampling")
        if not self.mbr:
            self._check_unused("samples", "without mbr")

    def _check_unused(self, names: str, when: str) -> None:
        for name in names.split():
            if (value := getattr(self, name)) != getattr(type(self), name):  # the default
                raise ValueError(f"{name} = {value} has no effect {when}")

    @property
    def least_probability(self) -> float:
        """Of a symbol that may be drawn."""
        return self.epsilon if self.epsilon is not None else MBR_EPSILON if self.mbr else 0.0

    @property
    def search(self) -> SearchConfig:
        """The settings of the search alone."""
        return SearchConfig(**{field.name: getattr(self, field.name) for field in fields(SearchConfig)})
