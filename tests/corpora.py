"""Corpora in memory."""

from collections.abc import Iterable, Sequence

from deepnmt.data.dataset import Corpus, Side


def corpus_of(source: Iterable[Sequence[int]], target: Iterable[Sequence[int]]) -> Corpus:
    """From lists of ids."""
    return Corpus(Side.of(source), Side.of(target))
