"""Which target symbols translate a source symbol, learned from parallel ids by IBM model 1 (Brown et al. 1993,
https://aclanthology.org/J93-2003): expectation maximisation over all pairs of symbols in a pair of sentences."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from deepnmt.data.dataset import Corpus, Ids, Offsets, Side

Floats = npt.NDArray[np.float64]

ITERATIONS = 4
SYMBOL_PAIRS = 1 << 24  # in memory at once; a larger corpus is learned in parts, whose expected counts are added up


def learn_lexicon(corpora: Iterable[Corpus], sizes: tuple[int, int], best: int, pairs: int) -> tuple[Ids, Ids]:
    """The `best` most probable translations of each source symbol, most probable first, as (source size, best) ids with
    -1 where there are fewer, and how often each target symbol occurs.

    sizes: of the vocabularies. At most `pairs` sentence pairs are used, evenly spaced over the corpora.
    """
    source_size, target_size = sizes
    corpora = list(corpora)
    share = min(1.0, pairs / max(sum(map(len, corpora)), 1))
    keys: Ids = np.empty(0, np.int64)
    counts: Floats = np.empty(0)
    frequencies = np.zeros(target_size, np.int64)
    for corpus in corpora:
        for chosen in _parts(corpus, share):
            source, target = corpus.source.take(chosen), corpus.target.take(chosen)
            frequencies += np.bincount(target.ids, minlength=target_size)
            found = _expected_counts(source, target, target_size)
            keys, place = np.unique(np.concatenate([keys, found[0]]), return_inverse=True)
            counts = np.bincount(place, np.concatenate([counts, found[1]]), minlength=len(keys)).astype(float)
    sources = keys // target_size
    order = np.lexsort((-counts, sources))
    first = np.searchsorted(sources, np.arange(source_size))
    rank = np.arange(len(order)) - first[sources[order]]
    kept = rank < best
    table = np.full((source_size, best), -1, np.int64)
    table[sources[order][kept], rank[kept]] = keys[order][kept] % target_size
    return table, frequencies


def _parts(corpus: Corpus, share: float) -> Iterator[Offsets]:
    """The numbers of the sentence pairs to learn from, as many at a time as fit in memory."""
    numbers = np.unique(np.linspace(0, len(corpus) - 1, round(share * len(corpus))).astype(np.int64))
    sizes = corpus.source.lengths[numbers].astype(np.int64) * corpus.target.lengths[numbers]
    numbers, sizes = numbers[sizes > 0], sizes[sizes > 0]
    if len(numbers):
        yield from np.split(numbers, np.flatnonzero(np.diff(np.cumsum(sizes) // SYMBOL_PAIRS)) + 1)


def _expected_counts(source: Side, target: Side, target_size: int) -> tuple[Ids, Floats]:
    """How often a source symbol is translated by a target symbol: keys source * target_size + target, and counts."""
    partners = source.take(np.repeat(np.arange(len(source)), target.lengths))  # the source of each target symbol
    lengths, begins = partners.lengths, partners.offsets[:-1]
    joint = partners.ids.astype(np.int64) * target_size + np.repeat(target.ids.astype(np.int64), lengths)
    keys, place = np.unique(joint, return_inverse=True)
    sources = keys // target_size
    counts = np.bincount(place).astype(float)
    for _ in range(ITERATIONS):
        probability = counts / np.bincount(sources, counts)[sources]
        weights = probability[place]
        weights /= np.repeat(np.add.reduceat(weights, begins), lengths)
        counts = np.bincount(place, weights)
    return keys, counts
