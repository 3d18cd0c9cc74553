"""A paired bootstrap between two systems that were trained with several seeds each."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from deepnmt.evaluation.metrics import Languages, build

Lines = Sequence[str]
SAMPLES = 1_000


class SeedScores:
    """The sentence statistics of a system's translations of one test set, a list of lines for each seed."""

    def __init__(self, seeds: Sequence[Lines], references: Sequence[Lines], languages: Languages, metric: str) -> None:
        self.metric: Any = build([metric], languages)[metric]
        found = [self.metric._extract_corpus_statistics(lines, references) for lines in seeds]
        self.statistics = [np.array(statistics, np.float64) for statistics in found]

    def resampled(self, counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The mean over seeds of the corpus score of each resample. counts: (resamples, sentences)"""
        return np.mean([self._scores(counts @ statistics) for statistics in self.statistics], axis=0)

    def _scores(self, sums: npt.NDArray[np.float64]) -> list[float]:
        return [self.metric._compute_score_from_stats([int(x) for x in row]).score for row in sums]


def seeds_p_value(pairs: Sequence[tuple[SeedScores, SeedScores]], samples: int = SAMPLES) -> float:
    """How likely the difference between two systems is by the choice of sentences; a pair for each test set.

    A resample draws sentences from each test set and scores every seed of both systems on them; the difference is that
    of the means over seeds and test sets. The rest is sacreBLEU's paired bootstrap, whose p-value it is with one seed.
    """
    random = np.random.default_rng(12_345)
    observed, drawn = 0.0, np.zeros(samples)
    for baseline, system in pairs:
        size = len(baseline.statistics[0])
        counts = random.multinomial(size, np.full(size, 1 / size), samples).astype(np.float64)
        whole = np.ones((1, size))
        observed += float((system.resampled(whole) - baseline.resampled(whole))[0])
        drawn += system.resampled(counts) - baseline.resampled(counts)
    if observed == 0:
        return 1.0
    apart = np.abs(drawn)
    return float((np.sum(apart - apart.mean() > abs(observed)) + 1) / (samples + 1))
