from typing import Any

import numpy as np
import pytest
from corpora import corpus_of
from streams import PAD, epoch_of, rows_of

from deepnmt.data.batching import BatchingConfig, BatchStream, Update
from deepnmt.data.bpe_dropout import Keys
from deepnmt.data.dataset import Corpus


def split_symbols(rows: list[list[int]], keys: Keys) -> list[list[int]]:
    """As BPE-dropout does: a symbol 2k is now and then written as k k, which decodes to the same."""
    draws = [np.random.default_rng(int(key)).random(len(row)) for row, key in zip(rows, keys, strict=True)]
    return [
        [j for i, draw in zip(row, drawn, strict=True) for j in ([i // 2, i // 2] if draw < 0.3 else [i])]
        for row, drawn in zip(rows, draws, strict=True)
    ]


def undo(ids: list[int]) -> list[int]:
    whole, waiting = [], None
    for i in ids:
        if i >= 1000:
            whole.append(i)
        elif waiting is None:
            waiting = i
        else:
            whole.append(2 * i)
            waiting = None
    return whole


def make_stream(layout: str, **rest: Any) -> tuple[Corpus, BatchStream]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 30, 300)
    sides = [[(2 * rng.integers(500, 999, n)).tolist() for n in lengths] for _ in range(2)]
    corpus = corpus_of(*sides)
    config = BatchingConfig(tokens_per_batch=128, layout=layout, bpe_dropout=0.1)  # type: ignore[arg-type]
    functions = (split_symbols, split_symbols)
    return corpus, BatchStream({"a": corpus}, config, seed=1, resample=functions, tokens_per_update=256, **rest)


def sources(update: Update) -> list[tuple[int, list[int]]]:
    """The number of each sentence, and its source without eos."""
    return [
        (sentence, source[:-1])
        for batch in update.batches
        for sentence, (source, *_) in zip(batch.sentences.tolist(), rows_of(batch), strict=False)
    ]


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_the_text_stays_and_most_segmentations_change_within_the_budget(layout: str) -> None:
    corpus, stream = make_stream(layout)
    updates = epoch_of(stream)
    rows = [row for update in updates for row in sources(update)]
    assert sorted(sentence for sentence, _ in rows) == list(range(300))
    assert all(undo(ids) == corpus.source[sentence].tolist() for sentence, ids in rows)
    changed = [ids != corpus.source[sentence].tolist() for sentence, ids in rows if len(corpus.source[sentence]) > 8]
    assert np.mean(changed) > 0.75
    for update in updates:
        assert update.num_target_tokens == sum(int((b.target_output != PAD).sum()) for b in update.batches)
        assert all(max(batch.source.numel(), batch.target_input.numel()) <= 128 for batch in update.batches)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_segmentations_are_the_same_after_resuming_and_on_any_ranks_but_not_in_the_next_epoch(layout: str) -> None:
    _, stream = make_stream(layout)
    first = epoch_of(stream)
    second = dict(row for update in epoch_of(stream) for row in sources(update))
    assert sum(ids != second[sentence] for update in first for sentence, ids in sources(update)) > 150
    _, resumed = make_stream(layout, state={**stream.state(), "epoch": 0, "position": 3})
    assert sources(next(resumed)) == sources(first[3])
    ranks = [next(make_stream(layout, rank=rank, world_size=5)[1]) for rank in range(5)]
    assert sorted(row for update in ranks for row in sources(update)) == sorted(sources(first[0]))
    assert {update.num_target_tokens for update in ranks} == {first[0].num_target_tokens}


def test_every_sentence_batch_side_and_epoch_has_a_key_of_its_own() -> None:
    keys: list[int] = []

    def record(rows: list[list[int]], given: Keys) -> list[list[int]]:
        keys.extend(given.tolist())
        return rows

    corpus = corpus_of([[5]] * 500, [[5]] * 500)
    stream = BatchStream(
        {"a": corpus}, BatchingConfig(tokens_per_batch=32, bpe_dropout=0.1), seed=1, resample=(record, record)
    )
    epoch_of(stream)
    epoch_of(stream)
    assert len(keys) == len(set(keys)) == 3 * 2 * 500  # measuring growth, and two epochs


def test_dropout_without_a_way_to_segment_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="bpe_dropout needs"):
        BatchStream({"a": corpus_of([[5]], [[5]])}, BatchingConfig(bpe_dropout=0.1), seed=0)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_no_segmentation_is_longer_than_the_stream_says(layout: str) -> None:
    """So that a model with learned positions can be checked before it trains."""
    _, stream = make_stream(layout)
    found = [len(row) for _ in range(3) for update in epoch_of(stream) for _, row in sources(update)]
    assert max(found) < stream.longest[0], "eos is not among them"
