"""Reproducible BPE-dropout: each merge is skipped with probability p.

Provilkov et al. 2020, https://aclanthology.org/2020.acl-main.170. The skipped merges
depend only on the sentence's key, by integer arithmetic: they are the same in every process, rank and resumed run.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from deepnmt.data.vocabulary import UNK

Keys = npt.NDArray[np.uint64]
Merge = Callable[[str, Iterable[int]], tuple[Sequence[int], int]]
"""Segments a word without the merges of these numbers (ascending, in the order in which the merges come up); returns
the ids and the number of merges that came up."""
Resample = Callable[[list[list[int]], Keys], Sequence[Sequence[int]]]
"""From the ids of sentences and a key for each to the ids of a new segmentation of each."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_DRAWS_AT_ONCE = 32
_MAX_GAP = 1 << 16  # no sentence has that many merges
_MAX_CACHED = 300_000
_MAX_CACHED_CHARACTERS = 24  # longer words rarely recur with the same merges skipped


def sentence_keys(key: int, sentences: npt.NDArray[np.integer]) -> Keys:
    """A key for each sentence number under one common key."""
    return _mix(np.uint64(key) + sentences.astype(np.uint64) * _GOLDEN)


def _mix(x: Keys) -> Keys:
    """The finaliser of SplitMix64 (Steele et al. 2014), which scrambles the bits of neighbouring integers."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class BpeDropout:
    """Segments words by `merge`, each merge skipped with probability `p`.

    The number of merges between skips is geometrically distributed, so a word without a skip costs one look-up and one
    comparison.
    """

    def __init__(self, merge: Merge, p: float) -> None:
        self._merge = merge
        self._cached = lru_cache(_MAX_CACHED)(self._segment_word)
        # P(gap > k) = (1 - p)^(k + 1) as thresholds for 64-bit draws, ascending. Plain multiplication, unlike a
        # logarithm, has the same bits on every machine.
        thresholds: list[int] = []
        survival = 2.0**64
        while (survival := survival * (1 - p)) >= 1 and len(thresholds) < _MAX_GAP:
            thresholds.append(min(int(survival), 2**64 - 1))
        self._thresholds = np.array(thresholds[::-1], np.uint64)

    def segment(self, sentences: Sequence[Iterable[str]], keys: Keys) -> list[list[int]]:
        """The ids of each sentence of words, determined by its key."""
        draws = self._gaps(keys, 0).tolist()
        return [
            self._segment(words, self._stream(key, first))
            for words, key, first in zip(sentences, keys, draws, strict=True)
        ]

    def _segment(self, words: Iterable[str], gaps: Iterator[int]) -> list[int]:
        ids: list[int] = []
        gap = next(gaps)

        def upcoming() -> Iterator[int]:
            nonlocal gap
            while True:
                yield gap
                gap += 1 + next(gaps)

        for word in words:
            if len(word) > _MAX_CACHED_CHARACTERS:
                segmented, merges = self._segment_word(word, upcoming())
            else:
                skipped: tuple[int, ...] = ()
                segmented, merges = self._cached(word, skipped)
                while gap < merges:
                    skipped = (*skipped, gap)
                    gap += 1 + next(gaps)
                    segmented, merges = self._cached(word, skipped)
            gap -= merges
            ids += segmented
        return ids

    def _segment_word(self, word: str, skips: Iterable[int]) -> tuple[Sequence[int], int]:
        """The word with these merges skipped, or its usual segmentation if that would need an unknown symbol."""
        segmented, merges = self._merge(word, skips)
        return (self._merge(word, ())[0] if UNK in segmented else segmented), merges

    def _stream(self, key: np.uint64, gaps: list[int]) -> Iterator[int]:
        start = 0
        while True:
            yield from gaps
            start += _DRAWS_AT_ONCE
            gaps = self._gaps(np.array([key]), start)[0].tolist()

    def _gaps(self, keys: Keys, start: int) -> npt.NDArray[np.int64]:
        """Draws from number `start` on for each key: the number of merges made before one is skipped."""
        counters = np.arange(start + 1, start + 1 + _DRAWS_AT_ONCE, dtype=np.uint64) * _GOLDEN
        draws = _mix(keys[:, None] + counters)
        return len(self._thresholds) - np.searchsorted(self._thresholds, draws, "right")
