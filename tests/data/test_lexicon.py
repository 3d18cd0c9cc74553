"""IBM model 1 against a plain twin, and on a corpus whose lexicon is known."""

import random
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest
from corpora import corpus_of

from deepnmt.data import lexicon
from deepnmt.data.dataset import Corpus
from deepnmt.data.lexicon import ITERATIONS, learn_lexicon

SIZES = (20, 30)
STOP = 29


def known_corpus(pairs: int, seed: int = 1) -> Corpus:
    """Source symbol n is translated by n + 5; a full stop ends every target."""
    rng = random.Random(seed)
    sources = [[rng.randrange(4, 20) for _ in range(rng.randint(1, 6))] for _ in range(pairs)]
    return corpus_of(sources, [[*(n + 5 for n in reversed(source)), STOP] for source in sources])


def plain_counts(corpus: Corpus) -> dict[tuple[int, int], float]:
    sentences = [(corpus.source[i].tolist(), corpus.target[i].tolist()) for i in range(len(corpus))]
    counts: dict[tuple[int, int], float] = Counter((s, t) for xs, ys in sentences for t in ys for s in xs)
    for _ in range(ITERATIONS):
        totals: dict[int, float] = defaultdict(float)
        for (s, _), count in counts.items():
            totals[s] += count
        found: dict[tuple[int, int], float] = defaultdict(float)
        for xs, ys in sentences:
            for t in ys:
                all_of_them = sum(counts[s, t] / totals[s] for s in xs)
                for s in xs:
                    found[s, t] += counts[s, t] / totals[s] / all_of_them
        counts = found
    return counts


def test_the_most_probable_translation_is_found_and_frequencies_are_counted():
    corpus = known_corpus(200)
    table, frequencies = learn_lexicon([corpus], SIZES, best=3, pairs=1000)
    assert table[4:, 0].tolist() == list(range(9, 25))
    assert (table[:4] == -1).all()
    assert frequencies[STOP] == len(corpus) and frequencies.sum() == corpus.target.lengths.sum()


def test_lists_are_those_of_a_plain_twin():
    corpus = known_corpus(40)
    counts = plain_counts(corpus)
    table, _ = learn_lexicon([corpus], SIZES, best=30, pairs=1000)
    for source in range(SIZES[0]):
        listed = [target for target in table[source].tolist() if target >= 0]
        assert set(listed) == {t for s, t in counts if s == source}
        values = [counts[source, target] for target in listed]
        assert all(a >= b - 1e-9 for a, b in pairwise(values))


def test_a_corpus_in_parts_or_empty_sentences_change_little(monkeypatch):
    corpus = known_corpus(200)
    odd = corpus_of([[], [4], []], [[9], [], []])
    whole, frequencies = learn_lexicon([corpus], SIZES, best=1, pairs=1000)
    monkeypatch.setattr(lexicon, "SYMBOL_PAIRS", 1000)
    parts, again = learn_lexicon([corpus, odd, corpus_of([], [])], SIZES, best=1, pairs=1000)
    assert np.array_equal(parts, whole) and np.array_equal(again, frequencies)


@pytest.mark.parametrize("pairs", [2, 50])
def test_no_more_pairs_are_used_than_asked_for(pairs):
    _, frequencies = learn_lexicon([known_corpus(100), known_corpus(100, seed=2)], SIZES, best=1, pairs=pairs)
    assert 0 < frequencies[STOP] <= pairs
