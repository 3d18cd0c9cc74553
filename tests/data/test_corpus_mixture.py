from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from corpora import corpus_of
from hypothesis import given
from hypothesis import strategies as st
from streams import EOS, epoch_of, rows_of

from deepnmt.data.batching import BatchingConfig, BatchStream
from deepnmt.data.corpus_mixture import Mixture
from deepnmt.data.dataset import Corpus, Dataset


def pools(*sizes: int) -> list[np.ndarray]:
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]


@given(size=st.integers(1, 30), weight=st.floats(0.05, 4), epochs=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_counts_of_two_sentences_differ_by_at_most_one(size: int, weight: float, epochs: int, seed: int) -> None:
    mixture = Mixture(pools(size), [weight], 1.0, seed)
    drawn = Counter(dict.fromkeys(range(size), 0))
    for epoch in range(epochs):
        sentences = mixture.draw(epoch).tolist()
        assert len(sentences) == max(1, round(size * weight))
        drawn.update(sentences)
    assert max(drawn.values()) - min(drawn.values()) <= 1


def test_weight_one_is_every_sentence_once_and_two_is_twice() -> None:
    for epoch in range(3):
        drawn = Counter(Mixture(pools(50, 20), [1.0, 2.0], 1.0, 0).draw(epoch).tolist())
        assert drawn == {**dict.fromkeys(range(50), 1), **dict.fromkeys(range(50, 70), 2)}


def test_temperature_moves_shares_towards_equality_and_keeps_the_size_of_the_epoch() -> None:
    sizes = (9000, 1000)
    draws = {t: Mixture(pools(*sizes), [1.0, 1.0], t, 0).draws for t in (1.0, 2.0, 5.0, 1e9)}
    assert draws[1.0] == [9000, 1000]
    assert draws[2.0] == [7500, 2500]  # square roots: 3 to 1
    assert draws[1e9] == [5000, 5000]
    assert 5000 < draws[5.0][0] < 7500
    assert all(abs(sum(draw) - 10_000) <= 1 for draw in draws.values())


def test_epochs_that_do_not_take_all_take_others() -> None:
    mixture = Mixture(pools(100), [0.3], 1.0, 0)
    epochs = [set(mixture.draw(epoch).tolist()) for epoch in range(3)]
    assert not epochs[0] & epochs[1]
    assert not epochs[1] & epochs[2]


def test_weight_zero_leaves_a_corpus_out() -> None:
    assert Mixture(pools(10, 5), [0.0, 1.0], 3.0, 0).draw(4).tolist() == list(range(10, 15))


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_stream_mixes_corpora_by_weight_and_reads_each_from_its_own(layout: str) -> None:
    rng = np.random.default_rng(0)

    def corpus(size: int, first: int) -> Corpus:
        sides = [[rng.integers(first, first + 100, rng.integers(0, 9)).tolist() for _ in range(size)] for _ in range(2)]
        return corpus_of(*sides)

    corpora = {"genuine": corpus(40, 100), "empty": corpus_of([], []), "back": corpus(100, 300)}
    config = BatchingConfig(tokens_per_batch=64, layout=layout, weights={"back": 0.5})  # type: ignore[arg-type]
    meta = {"train": [{"name": "genuine", "weight": 3.0}, {"name": "empty"}, {"name": "back", "weight": 9.0}]}
    stream = BatchStream.of(Dataset(Path(), meta, corpora, None, None), config, seed=0)
    drawn: Counter[str] = Counter()
    for batch in (batch for update in epoch_of(stream) for batch in update.batches):
        for sentence, (source, *_) in zip(batch.sentences.tolist(), rows_of(batch), strict=True):
            name, base = ("genuine", 0) if sentence < 40 else ("back", 40)
            drawn[name] += 1
            assert source == [*corpora[name].source[sentence - base], EOS]
    assert drawn == {"genuine": 120, "back": 50}
