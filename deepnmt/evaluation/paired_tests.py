"""Resamples of the sentences of a test set: intervals, paired tests, and p-values over several seeds and test sets.

All work on statistics that sacreBLEU extracts from each sentence and adds up, with the seed that sacreBLEU has.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

Lines = Sequence[str]
Values = npt.NDArray[np.float64]
SEED = 12_345
SAMPLES = 10_000  # over several seeds and test sets
ROUNDING = 1e-9  # two ways to the same score may differ by less


def bootstrap(metric: "Metric", statistics: Any, samples: int) -> Values:
    """The score of each resample, as sacreBLEU draws and computes them; all systems have the same resamples."""
    chosen = np.random.default_rng(SEED).choice(len(statistics), size=(samples, len(statistics)), replace=True)
    of_sentences = np.array(statistics, np.float32)
    return _scores(metric, (of_sentences[sentences].sum(0) for sentences in chosen))


def interval(drawn: Values) -> tuple[float, float]:
    """Their mean, plus and minus half the distance between their 2.5 % and 97.5 % quantiles, as in sacreBLEU."""
    ordered, outside = np.sort(drawn), len(drawn) // 40
    half = (ordered[-1 - outside] - ordered[outside]) / 2
    return float(ordered.mean() - half), float(ordered.mean() + half)


def bootstrap_p(observed: float, differences: Values) -> float:
    """The p-value of a difference by sacreBLEU's paired bootstrap (Koehn 2004, https://aclanthology.org/W04-3250/).

    But 1 for equal scores, for which sacreBLEU reports the smallest possible value.
    """
    if observed == 0:
        return 1.0
    sizes = np.abs(differences)
    return float((np.sum(sizes - sizes.mean() > abs(observed)) + 1) / (len(sizes) + 1))


def randomisation_p(metric: "Metric", baseline: Any, system: Any, trials: int) -> float:
    """The share of exchanges of sentences between two systems that leave at least as large a difference.

    Riezler and Maxwell 2005, https://aclanthology.org/W05-0908/. sacreBLEU draws the same exchanges but does not count
    equal differences, so that for systems that differ in one sentence it reports the smallest possible p-value.
    """
    first, second = np.array(baseline), np.array(system)
    kept = np.random.default_rng(SEED).integers(2, size=(trials, len(first)), dtype=bool)
    observed = abs(np.subtract(*_scores(metric, [first.sum(0), second.sum(0)])))
    apart = kept @ (first - second)
    differences = _scores(metric, second.sum(0) + apart) - _scores(metric, first.sum(0) - apart)
    return float((np.sum(np.abs(differences) >= observed - ROUNDING) + 1) / (trials + 1))


def resample(metric: "Metric", lines: Lines, references: Sequence[Lines], test: int, samples: int = SAMPLES) -> Values:
    """The score of a test set, and then of each resample of its sentences, for `bootstrap_p` of means over seeds.

    The resamples of a test set, named by a number, are the same for every system and seed.
    """
    statistics = np.array(metric._extract_corpus_statistics(lines, references), np.float64)
    drawn = _counts(test, len(lines), samples) @ statistics
    return _scores(metric, np.concatenate([statistics.sum(axis=0, keepdims=True), drawn]))


def _scores(metric: "Metric", sums: Any) -> Values:
    return np.array([metric._compute_score_from_stats(row).score for row in sums], np.float64)


@cache
def _counts(test: int, sentences: int, samples: int) -> Values:
    """How often each resample has each sentence: (samples, sentences)"""
    random = np.random.default_rng([SEED, test])
    return random.multinomial(sentences, np.full(sentences, 1 / sentences), samples).astype(np.float64)


def surviving(p_values: dict[str, float], level: float = 0.05) -> set[str]:
    """The comparisons that are significant at this level by Holm-Bonferroni: all of them together, not each."""
    kept: set[str] = set()
    for number, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        if p_values[name] > level / (len(p_values) - number):
            break
        kept.add(name)
    return kept
