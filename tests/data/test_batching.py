import dataclasses
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from corpora import corpus_of
from hypothesis import given
from hypothesis import strategies as st
from streams import EOS, PAD, epoch_of, make_corpus, rows_of, same, sentences_of

from deepnmt.data.batching import BatchingConfig, BatchStream, held_out_batches
from deepnmt.data.collate import Batch, PackedBatch
from deepnmt.data.dataset import Corpus, CorpusWriter
from deepnmt.errors import InputError
from deepnmt.settings import from_table

LAYOUTS = ("padded", "packed")
layouts = st.sampled_from(LAYOUTS)
Layout = Literal["padded", "packed"]


def make_stream(corpus: Corpus, layout: str = "padded", *, seed: int = 1, **rest: Any) -> BatchStream:
    names = {field.name for field in dataclasses.fields(BatchingConfig)}
    config = {name: rest.pop(name) for name in list(rest) if name in names}
    config.setdefault("tokens_per_batch", 64)
    return BatchStream({"text": corpus}, BatchingConfig(layout=layout, **config), seed=seed, **rest)  # type: ignore[arg-type]


@given(layout=layouts, size=st.integers(1, 120), seed=st.integers(0, 2**40), budget=st.integers(24, 300))
def test_every_sentence_comes_exactly_once_per_epoch_and_as_it_is(
    layout: str, size: int, seed: int, budget: int
) -> None:
    corpus = make_corpus(size)
    stream = make_stream(corpus, layout, seed=seed, tokens_per_batch=budget, tokens_per_update=2 * budget)
    for number in range(2):
        updates = epoch_of(stream)
        assert sorted(sentences_of(updates)) == list(range(size))
        assert [update.index for update in updates] == list(range(len(updates)))
        assert {update.epoch for update in updates} == {number}
        for batch in (batch for update in updates for batch in update.batches):
            for i, (source, target_input, target_output) in zip(batch.sentences, rows_of(batch), strict=True):
                assert source == [*corpus.source[i], EOS]
                assert target_input == [EOS, *corpus.target[i]]
                assert target_output == [*corpus.target[i], EOS]


@given(layout=layouts, size=st.integers(1, 200), budget=st.integers(24, 400))
def test_budgets_hold_on_both_sides_and_counts_are_right(layout: str, size: int, budget: int) -> None:
    for update in epoch_of(make_stream(make_corpus(size), layout, tokens_per_batch=budget)):
        (batch,) = update.batches
        assert max(batch.source.numel(), batch.target_input.numel()) <= budget
        assert update.num_source_tokens == batch.num_source_tokens == int((batch.source != PAD).sum())
        assert update.num_target_tokens == batch.num_target_tokens == int((batch.target_output != PAD).sum())
        assert int((batch.target_input != PAD).sum()) == batch.num_target_tokens


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("batches_per_update", [1, 2, 3, 8])
def test_the_global_updates_are_the_same_for_any_number_of_ranks(
    layout: str, world_size: int, batches_per_update: int
) -> None:
    corpus = make_corpus(150)
    alone = epoch_of(make_stream(corpus, layout, tokens_per_update=64 * batches_per_update))
    ranks = [
        epoch_of(
            make_stream(corpus, layout, tokens_per_update=64 * batches_per_update, rank=rank, world_size=world_size)
        )
        for rank in range(world_size)
    ]
    for whole, *parts in zip(alone, *ranks, strict=True):
        assert sorted(sentences_of([whole])) == sorted(sentences_of(parts))
        assert Counter(map(str, (row for batch in whole.batches for row in rows_of(batch)))) == Counter(
            str(row) for part in parts for batch in part.batches for row in rows_of(batch) if batch.num_target_tokens
        )
        assert {part.num_target_tokens for part in parts} == {whole.num_target_tokens}
        assert sum(batch.num_target_tokens for part in parts for batch in part.batches) == whole.num_target_tokens
        assert sum(batch.num_source_tokens for part in parts for batch in part.batches) == whole.num_source_tokens
        assert len({len(part.batches) for part in parts}) == 1, (
            "a rank with fewer batches would leave the others waiting"
        )
        assert {part.is_last_of_epoch for part in parts} == {whole.is_last_of_epoch}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_without_a_batch_keeps_step_without_loss(layout: str) -> None:
    streams = [make_stream(make_corpus(3), layout, rank=rank, world_size=8) for rank in range(8)]
    batches = [batch for stream in streams for update in epoch_of(stream) for batch in update.batches]
    idle = [batch for batch in batches if batch.num_target_tokens == 0]
    assert len(idle) == 8 * (len(batches) // 8) - 3
    for batch in idle:
        assert bool((batch.target_output == PAD).all())
        assert bool((batch.source != PAD).any()), "attention over nothing is not a number"
        assert len(batch.sentences) == 0


@given(layout=layouts, stop=st.integers(0, 70), rank=st.integers(0, 1))
def test_resuming_anywhere_equals_going_on(layout: str, stop: int, rank: int) -> None:
    corpus = make_corpus(100)
    options: dict[str, Any] = {"tokens_per_update": 128, "rank": rank, "world_size": 2}
    stream = make_stream(corpus, layout, **options)
    for _ in range(stop):
        next(stream)
    resumed = make_stream(corpus, layout, state=json.loads(json.dumps(stream.state())), **options)
    for _ in range(12):
        assert same(next(stream), next(resumed))
    assert stream.state() == resumed.state()


def test_resuming_with_another_number_of_ranks_keeps_the_global_updates() -> None:
    corpus = make_corpus(100)
    alone = make_stream(corpus, tokens_per_update=256)
    for _ in range(5):
        next(alone)
    state = alone.state()
    pair = [make_stream(corpus, tokens_per_update=256, rank=rank, world_size=2, state=state) for rank in range(2)]
    assert sorted(sentences_of([next(alone)])) == sorted(sentences_of([next(stream) for stream in pair]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_seeds_and_epochs_differ_and_repeat(layout: str) -> None:
    corpus = make_corpus(200)
    stream = make_stream(corpus, layout)
    first, second = sentences_of(epoch_of(stream)), sentences_of(epoch_of(stream))
    assert first != second
    assert first == sentences_of(epoch_of(make_stream(corpus, layout)))
    assert first != sentences_of(epoch_of(make_stream(corpus, layout, seed=2)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_are_made_of_other_sentences_each_epoch(layout: str) -> None:
    stream = make_stream(make_corpus(2000), layout, tokens_per_batch=256)
    epochs = [{frozenset(batch.sentences.tolist()) for u in epoch_of(stream) for batch in u.batches} for _ in range(2)]
    assert len(epochs[0] & epochs[1]) < 0.1 * len(epochs[0])


def test_batches_come_in_another_order_of_lengths_each_epoch() -> None:
    stream = make_stream(make_corpus(2000), tokens_per_batch=256)
    orders = [[batch.source.shape for update in epoch_of(stream) for batch in update.batches] for _ in range(2)]
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])


def test_packed_shapes_are_static_and_the_tail_is_padding() -> None:
    stream = make_stream(make_corpus(300), "packed", tokens_per_batch=200)
    (shape,) = stream.shapes
    batches = [batch for update in epoch_of(stream) for batch in update.batches]
    for batch in batches:
        assert isinstance(batch, PackedBatch)
        assert batch.source.shape == (shape.source,)
        assert batch.target_input.shape == batch.target_output.shape == (shape.target,)
        for side, offsets in (("source", batch.source_offsets), ("target_output", batch.target_offsets)):
            assert offsets.shape == (shape.rows + 1,)
            assert offsets.dtype == torch.int32
            used = int(offsets[-1])
            assert bool((offsets[len(batch.sentences) :] == used).all())
            assert bool((getattr(batch, side)[used:] == PAD).all())
        assert bool((batch.target_input[int(batch.target_offsets[-1]) :] == PAD).all())
    assert max(len(batch.sentences) for batch in batches) < shape.rows, "the number of slots should not bind"


def test_packed_shape_follows_the_ratio_of_the_sides() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 40, 500)
    corpus = corpus_of([[5] * n for n in lengths], [[5] * (n // 2) for n in lengths])
    (shape,) = make_stream(corpus, "packed", tokens_per_batch=4096).shapes
    assert shape.source == 4096
    assert shape.target % 128 == 0
    assert shape.target < 0.6 * 4096


def test_a_batch_with_more_sentences_than_slots_just_closes() -> None:
    corpus = corpus_of([[]] * 500 + [[5] * 63] * 500, [[]] * 500 + [[5] * 63] * 500)
    stream = make_stream(corpus, "packed")
    stream._planner.shapes[0] = dataclasses.replace(stream.shapes[0], rows=3)
    updates = epoch_of(stream)
    assert sorted(sentences_of(updates)) == list(range(1000))
    assert max(len(batch.sentences) for update in updates for batch in update.batches) == 3


def test_padded_shapes_are_few_and_the_same_in_every_epoch() -> None:
    stream = make_stream(make_corpus(3000), tokens_per_batch=512, max_shapes=20)
    epochs = [Counter(tuple(b.source.shape) + tuple(b.target_input.shape) for u in epoch_of(stream) for b in u.batches)]
    epochs.append(
        Counter(tuple(b.source.shape) + tuple(b.target_input.shape) for u in epoch_of(stream) for b in u.batches)
    )
    assert epochs[0] == epochs[1]
    assert len(stream.shapes) <= 20
    assert len(epochs[0]) <= 21, "one more than there are buckets: the last batch of the epoch"
    assert sum(rows % 8 != 0 for rows, *_ in epochs[0].elements()) <= 1


def test_more_shapes_mean_less_padding() -> None:
    corpus = make_corpus(20_000, longest=60)
    few, many = (sum(make_stream(corpus, tokens_per_batch=2048, max_shapes=n).padding()) for n in (8, 128))
    assert many < 0.5 * few
    assert many < 0.12


@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_is_what_the_batches_really_have(layout: str) -> None:
    stream = make_stream(make_corpus(400), layout, tokens_per_batch=256)
    expected = stream.padding()
    batches = [batch for update in epoch_of(stream) for batch in update.batches]
    for share, side in zip(expected, ("source", "target_output"), strict=True):
        tensors = [getattr(batch, side) for batch in batches]
        pads = sum(int((tensor == PAD).sum()) for tensor in tensors)
        assert share == pytest.approx(pads / sum(tensor.numel() for tensor in tensors))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_too_long_sentences_are_skipped_and_counted(layout: str) -> None:
    corpus = corpus_of([[5] * n for n in (3, 64, 10, 63)], [[5] * n for n in (3, 4, 11, 63)])
    stream = make_stream(corpus, layout)
    assert sorted(sentences_of(epoch_of(stream))) == [0, 2, 3]
    assert (
        stream.pairs.report() == "pairs longer than 63 tokens are skipped (batching.tokens_per_batch): 1 of 4 in text"
    )
    stream = make_stream(corpus, layout, max_length=10)
    assert sorted(sentences_of(epoch_of(stream))) == [0]
    assert stream.pairs.report() == "pairs longer than 10 tokens are skipped (batching.max_length): 3 of 4 in text"
    assert make_stream(corpus, layout, tokens_per_batch=65).pairs.report() is None


def test_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(InputError, match=r"nothing to train on: pairs longer than 63 tokens .* 1 of 1 in text"):
        make_stream(corpus_of([[5] * 100], [[5]]))
    with pytest.raises(InputError, match="no training pairs"):
        make_stream(corpus_of([], []))
    with pytest.raises(InputError, match="no training pairs"):
        BatchStream({}, BatchingConfig(), seed=1)
    with pytest.raises(InputError, match="weight zero"):
        make_stream(make_corpus(5), weights={"text": 0.0})


@pytest.mark.parametrize(
    ("change", "name"),
    [({"seed": 2}, "seed"), ({"tokens_per_batch": 72}, "tokens_per_batch"), ({"layout": "packed"}, "layout")],
)
def test_resuming_with_other_settings_is_refused(change: dict[str, Any], name: str) -> None:
    corpus = make_corpus(50)
    with pytest.raises(InputError, match=f"{name} was .*, now"):
        make_stream(corpus, **{"state": make_stream(corpus).state(), **change})


def test_resuming_with_other_data_is_refused() -> None:
    with pytest.raises(InputError, match="corpora was"):
        make_stream(make_corpus(51), state=make_stream(make_corpus(50)).state())
    corpora, config = {"one": make_corpus(20), "two": make_corpus(30)}, BatchingConfig(tokens_per_batch=64)
    state = BatchStream(corpora, config, seed=1).state()
    with pytest.raises(
        InputError, match="other sentences, or another order"
    ):  # sentences are numbered in the order of the corpora
        BatchStream(dict(reversed(corpora.items())), config, seed=1, state=state)


def test_resuming_with_the_same_text_in_another_order_is_refused(tmp_path: Path) -> None:
    states = []
    for order in (slice(None), slice(None, None, -1)):
        with CorpusWriter(tmp_path, "text", (60_000, 60_000)) as writer:
            writer.append(*(side.take(order) for side in make_corpus(50).sides))
        states.append(make_stream(Corpus.open(tmp_path, "text")).state())
    with pytest.raises(InputError, match="the training data has changed"):
        make_stream(Corpus.open(tmp_path, "text"), state=states[0])
    make_stream(Corpus.open(tmp_path, "text"), state=states[1])


def test_a_position_outside_the_epoch_is_refused() -> None:
    stream = make_stream(make_corpus(50))
    with pytest.raises(InputError, match="there is no such update"):
        make_stream(make_corpus(50), state={**stream.state(), "position": stream.updates_per_epoch()})


@given(size=st.integers(0, 40), budget=st.integers(1, 100))
def test_held_out_sentences_are_never_skipped(size: int, budget: int) -> None:
    corpus = make_corpus(size)
    batches = held_out_batches(corpus, budget)
    assert sorted(int(i) for batch in batches for i in batch.sentences) == list(range(size))
    for batch in batches:
        assert len(batch.sentences) == 1 or max(batch.source.numel(), batch.target_input.numel()) <= budget
        for i, (source, _, target_output) in zip(batch.sentences, rows_of(batch), strict=True):
            assert source == [*corpus.source[i], EOS]
            assert target_output == [*corpus.target[i], EOS]


def test_the_halves_of_a_batch_are_the_batch() -> None:
    batch = next(make_stream(make_corpus(500), tokens_per_batch=512)).batches[0]
    assert isinstance(batch, Batch)
    halves = batch.split()
    assert torch.equal(torch.cat([half.source for half in halves]), batch.source)
    assert sum(half.num_target_tokens for half in halves) == batch.num_target_tokens
    assert [*halves[0].sentences, *halves[1].sentences] == list(batch.sentences)
    single = held_out_batches(make_corpus(1), 10)[0]
    with pytest.raises(ValueError, match="cannot be split"):
        single.split()


@given(st.integers(1, 60), st.integers(21, 80), st.integers(21, 80), st.integers(0, 5))
def test_the_pieces_of_a_packed_batch_are_the_batch(size: int, source: int, target: int, seed: int) -> None:
    """Of one shape, as few as fit in order, and each as if its sentences had been packed alone."""
    batch = next(make_stream(make_corpus(size, seed=seed), "packed", tokens_per_batch=300)).batches[0]
    assert isinstance(batch, PackedBatch)
    pieces = batch.cut(source, target)
    assert [row for piece in pieces for row in rows_of(piece)] == rows_of(batch)
    assert np.concatenate([piece.sentences for piece in pieces]).tolist() == batch.sentences.tolist()
    assert sum(piece.num_target_tokens for piece in pieces) == batch.num_target_tokens
    assert sum(piece.num_source_tokens for piece in pieces) == batch.num_source_tokens
    for piece in pieces:
        assert (len(piece.source), len(piece.target_input), len(piece.target_output)) == (source, target, target)
        assert len(piece.source_offsets) == len(piece.target_offsets) == len(batch.source_offsets)
        assert (piece.source[piece.num_source_tokens :] == 1).all()
        assert (piece.target_output[piece.num_target_tokens :] == 1).all()
        assert int(piece.source_offsets[-1]) == piece.num_source_tokens
    for one, following in itertools.pairwise(pieces):
        sources, targets = following.lengths()
        assert one.num_source_tokens + sources[0] > source or one.num_target_tokens + targets[0] > target
    with pytest.raises(ValueError, match="is longer than"):
        batch.cut(0, 0)


def test_settings_are_read_from_a_recipe_and_nonsense_is_refused() -> None:
    config = from_table(BatchingConfig, {"layout": "packed", "weights": {"genuine": 2}}, "batching")
    assert config.weights == {"genuine": 2.0}
    with pytest.raises(InputError, match=r"batching: weights\.genuine must be zero or more"):
        from_table(BatchingConfig, {"weights": {"genuine": -1.0}}, "batching")
    with pytest.raises(InputError, match=r"batching\.weights is a section"):
        from_table(BatchingConfig, {"weights": 2}, "batching")
    with pytest.raises(InputError, match=r"weights names corpus 'genuin'; the dataset has text"):
        make_stream(make_corpus(5), weights={"genuin": 1.0})
    for name, value in (("tokens_per_batch", 0), ("max_length", 0), ("temperature", 0.0), ("bpe_dropout", 1.0)):
        with pytest.raises(InputError, match=name):
            from_table(BatchingConfig, {name: value}, "batching")
