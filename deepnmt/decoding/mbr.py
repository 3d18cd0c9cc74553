"""Minimum Bayes risk decoding: the sample that the other samples resemble most."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from deepnmt.decoding.pairwise import Matrix
from deepnmt.decoding.search import Found


def by_expected_utility(
    samples: Sequence[Found], texts: Sequence[str], utility: Callable[[Sequence[str]], Matrix]
) -> list[Found]:
    """The samples, each text once, by their mean utility with the others as references, which becomes their score:

        expected(h) = sum over the samples r, other than h itself, of utility(h, r) / (N - 1)

    (Eikema and Aziz 2020, https://arxiv.org/abs/2005.10283). Equal samples are references of each other. Of equal
    texts and of equal utilities, the earlier sample comes first.
    """
    if not samples:
        return []
    counts = Counter(texts)
    # In an order of their own, so that sums are rounded alike whatever the order of the samples.
    unique = sorted(counts)
    utilities = utility(unique)
    totals = (utilities * [counts[text] for text in unique]).sum(1) - utilities.diagonal()
    expected = dict(zip(unique, (totals / max(len(samples) - 1, 1)).tolist(), strict=True))
    first = dict(reversed(list(zip(texts, samples, strict=True))))
    ranked = sorted(counts, key=lambda text: -expected[text])
    return [replace(first[text], score=expected[text]) for text in ranked]
