"""A paired bootstrap between systems that were trained with several seeds and translated several test sets."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from deepnmt.evaluation.metrics import Languages, build

Lines = Sequence[str]
Values = npt.NDArray[np.float64]
SAMPLES = 10_000


def bootstrap_bleu(
    lines: Lines, references: Sequence[Lines], languages: Languages, test: int = 0, samples: int = SAMPLES
) -> Values:
    """The BLEU of a test set, and then of each resample of its sentences.

    The resamples of a test set, named by a number, are the same for every system and seed.
    """
    bleu: Any = build(["bleu"], languages)["bleu"]
    statistics = np.array(bleu._extract_corpus_statistics(lines, references), np.float64)
    sums = np.concatenate([statistics.sum(axis=0, keepdims=True), _counts(test, len(lines), samples) @ statistics])
    if np.any(sums[:, 2:6] == 0):  # no n-gram of some length is right: smoothed
        return np.array([bleu._compute_score_from_stats([int(x) for x in row]).score for row in sums])
    length, reference_length, right, all_of_them = sums[:, 0], sums[:, 1], sums[:, 2:6], sums[:, 6:]
    brevity = np.exp(np.minimum(1 - reference_length / length, 0))
    return np.asarray(100 * brevity * np.exp(np.log(right / all_of_them).mean(axis=1)))


@cache
def _counts(test: int, sentences: int, samples: int) -> Values:
    """How often each resample has each sentence: (samples, sentences)"""
    random = np.random.default_rng([12_345, test])
    return random.multinomial(sentences, np.full(sentences, 1 / sentences), samples).astype(np.float64)


def p_value(differences: Values) -> float:
    """How likely a difference between two systems is by the choice of sentences: sacreBLEU's paired bootstrap.

    differences: those of `bootstrap_bleu` of the two, averaged over seeds and test sets.
    """
    observed, drawn = abs(differences[0]), np.abs(differences[1:])
    if observed == 0:
        return 1.0
    return float((np.sum(drawn - drawn.mean() > observed) + 1) / (len(drawn) + 1))


def surviving(p_values: dict[str, float], level: float = 0.05) -> set[str]:
    """The comparisons that are significant at this level by Holm-Bonferroni: all of them together, not each."""
    kept: set[str] = set()
    for number, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        if p_values[name] > level / (len(p_values) - number):
            break
        kept.add(name)
    return kept
