"""A batch that does not fit is computed in pieces: the same updates, resumable, on any number of ranks."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from corpora import corpus_of
from ranks import run_ranks
from small import BATCHING, CPU, TRAINING, corpus, flat, losses, open_job, run_to_end, without_dropout

from deepnmt.config import Recipe
from deepnmt.data.batching import BatchStream
from deepnmt.data.collate import PackedBatch, without_loss
from deepnmt.data.dataset import Dataset
from deepnmt.errors import InputError, RunError
from deepnmt.training.assembly import plan_memory
from deepnmt.training.distributed import World, join_world
from deepnmt.training.engine import EagerEngine, Noise, Objective
from deepnmt.training.graph_engine import GraphEngine
from deepnmt.training.memory import Splitter, is_out_of_memory
from deepnmt.training.trainer import train

PACKED = replace(BATCHING, layout="packed", tokens_per_batch=128)
CONFIG = replace(TRAINING, log_every=1, max_steps=8, compile=False, validate_every=8)


def replayed(work, warm_ups, **_):
    """In the place of a CUDA graph: the passes before the recording, and the work itself."""
    for _ in range(warm_ups):
        work()
    return work


ENGINES = {"eager": EagerEngine, "graph": partial(GraphEngine, record=replayed)}
CASES = [(PACKED, EagerEngine), (PACKED, ENGINES["graph"]), (BATCHING, EagerEngine)]


class Device:
    """Has room for a number of cells; counts the passes that did not fit. Fails in the forward or the backward pass."""

    def __init__(self, cells, fails="forward"):
        self.cells, self.fails, self.failures = cells, fails, 0
        self.forward = Objective.forward

    def __call__(self, objective, batch):
        if not torch.is_grad_enabled() or batch.source.numel() + batch.target_input.numel() <= self.cells:
            return self.forward(objective, batch)
        self.failures += 1
        if self.fails == "forward":
            raise torch.OutOfMemoryError("forward")
        loss, nll = self.forward(objective, batch)
        return _Fails.apply(loss), nll


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss):
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise torch.OutOfMemoryError("backward")


def fit_device(monkeypatch, cells, fails="forward"):
    device = Device(cells, fails)
    monkeypatch.setattr(Objective, "forward", lambda self, batch: device(self, batch))
    return device


@pytest.mark.parametrize("fails", ["forward", "backward"])
@pytest.mark.parametrize(("batching", "engine"), CASES, ids=["packed", "recorded", "padded"])
def test_updates_are_the_same_in_pieces_and_the_run_continues(tmp_path, monkeypatch, capsys, batching, engine, fails):
    settings = {"model_config": without_dropout(), "batching": batching, "engine": engine}
    run_to_end(tmp_path / "roomy", CONFIG, **settings)
    device = fit_device(monkeypatch, 100 if batching is PACKED else 40, fails)
    tight = run_to_end(tmp_path / "tight", CONFIG, **settings)
    assert losses(tmp_path / "tight") == pytest.approx(losses(tmp_path / "roomy"), abs=1e-5)
    told = [line for line in capsys.readouterr().err.splitlines() if "out of memory" in line]
    assert len(told) == 1 and "batching.tokens_per_batch" in told[0]
    if batching is PACKED:
        assert device.failures == 2, "256 and 136 cells do not fit, and what fits is remembered"
        assert tight.splitter.room == (36, 36) and "a batch of 256 tokens" in told[0]
    else:
        assert tight.splitter.limit is not None and device.failures < 5, "the size that failed is remembered"


def test_gradient_of_one_update_is_that_of_the_whole_batch(tmp_path, monkeypatch):
    update = next(BatchStream({"train": corpus()}, PACKED, seed=1, tokens_per_update=256))
    gradients = []
    for cells in (10**9, 80):
        with monkeypatch.context() as patch:
            fit_device(patch, cells)
            with open_job(tmp_path / str(cells), CONFIG, model_config=without_dropout(), batching=PACKED) as (run, job):
                pass
            job.engine.accumulate(update, torch.tensor(1.0), Noise(0))
            gradients.append([p.grad.clone() for p in run.model.parameters()])
    assert run.splitter.room is not None
    for whole, pieces in zip(*gradients, strict=True):
        torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_resumed_run_cuts_the_same_pieces_to_the_last_bit(tmp_path, monkeypatch, engine):
    settings = {"batching": PACKED, "engine": ENGINES[engine]}
    device = fit_device(monkeypatch, 100)
    whole = run_to_end(tmp_path / "whole", CONFIG, **settings)
    run_to_end(tmp_path / "parts", replace(CONFIG, max_steps=5), **settings)
    failures = device.failures
    resumed = run_to_end(tmp_path / "parts", CONFIG, **settings)
    assert device.failures == failures, "nothing that did not fit is tried again"
    assert torch.equal(flat(resumed.model), flat(whole.model))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_graph_is_recorded_again_for_the_smaller_shape_alone(tmp_path, monkeypatch):
    fit_device(monkeypatch, 100)
    recorded = []

    def record(work, warm_ups, **options):
        recorded.append("tried" if warm_ups else "the rest of an update")
        replay = replayed(work, warm_ups, **options)
        recorded.append("done")
        return replay

    run_to_end(tmp_path, CONFIG, batching=PACKED, engine=partial(GraphEngine, record=record))
    assert recorded == ["tried", "tried", "tried", "done", "the rest of an update", "done"]


def test_room_grows_for_a_longer_sentence():
    short, long = [4] * 7, [5] * 50
    stream = BatchStream({"train": corpus_of([short] * 30 + [long], [short] * 30 + [long])}, PACKED, seed=1)
    batches = [stream.update(0, index).batches[0] for index in range(stream.updates_per_epoch(0))]
    with_long = [batch for batch in batches if max(batch.lengths()[0]) == 51]
    others = [batch for batch in batches if max(batch.lengths()[0]) == 8]
    assert len(with_long) == 1 and others
    splitter = Splitter(room=(16, 24))
    assert {len(piece.source) for piece in splitter.cut(others)} == {16}
    pieces = splitter.cut([others[0], with_long[0]])
    assert splitter.room == (128, 128)
    assert len({(len(piece.source), len(piece.target_input)) for piece in pieces}) == 1


@pytest.mark.parametrize(("batching", "engine"), CASES, ids=["packed", "recorded", "padded"])
def test_one_sentence_that_does_not_fit_is_the_end_and_is_named(tmp_path, monkeypatch, batching, engine):
    fit_device(monkeypatch, 0)
    lengths = "9 source and 9" if batching is PACKED else r"\d source and \d"
    with pytest.raises(RunError, match=rf"one sentence pair of {lengths} target tokens does not fit; lower batching"):
        run_to_end(tmp_path, CONFIG, batching=batching, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_another_error_is_not_taken_for_it(tmp_path, monkeypatch, engine):
    def broken(self, batch):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Objective, "forward", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run_to_end(tmp_path, CONFIG, batching=PACKED, engine=ENGINES[engine])


def test_it_is_known_under_its_other_names():
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert is_out_of_memory(RuntimeError("[...] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"))
    assert not is_out_of_memory(RuntimeError("device-side assert"))
    try:
        try:
            raise torch.OutOfMemoryError("while recording")
        except RuntimeError:
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
    except RuntimeError as error:
        assert is_out_of_memory(error)


def train_with_one_small_device(folder, small_rank, config, engine):
    """Only one rank's device is too small."""
    with join_world("cpu", 120) as world:
        device, forward = Device(100), Objective.forward
        if world.rank == small_rank:
            Objective.forward = lambda self, batch: device(self, batch)
        try:
            settings = {"model_config": without_dropout(), "batching": PACKED, "engine": ENGINES[engine]}
            with open_job(folder, config, world=world, **settings) as (run, job):
                train(run, job)
        finally:
            Objective.forward = forward
        return run.splitter.room, device.failures


def test_one_rank_that_runs_out_of_memory_does_not_stop_the_others(tmp_path):
    config = replace(CONFIG, tokens_per_update=512)
    run_to_end(tmp_path / "alone", config, model_config=without_dropout(), batching=PACKED)
    results = run_ranks(2, train_with_one_small_device, tmp_path / "two", 1, config, "graph")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "alone"), abs=1e-5)
    assert results == [((36, 36), 0), ((36, 36), 2)], "a save makes them agree on the pieces"
    saved = json.loads((tmp_path / "two" / "checkpoints" / "step-00000008" / "state.json").read_text())
    assert saved["run"]["split_room"] == [36, 36]


def fail_on_one_rank(folder):
    try:
        with join_world("cpu", 60) as world:
            if world.rank == 1:
                Objective.forward = _never
            with open_job(folder, CONFIG, world=world, batching=PACKED) as (run, job):
                train(run, job)
    except RunError as told:
        return str(told)
    except SystemExit as ended:
        return ended.code


def _never(*_):
    raise torch.OutOfMemoryError


def test_sentence_that_does_not_fit_on_one_rank_ends_all(tmp_path):
    main, other = run_ranks(2, fail_on_one_rank, tmp_path)
    assert main.startswith("rank 1 failed: out of memory: one sentence pair of")
    assert other == 1


def test_padded_limits_of_ranks_agree():
    assert run_ranks(2, agreed_limits) == [(30, None), (30, None)]


def agreed_limits():
    with join_world("cpu", 60) as world:
        splitter = Splitter(limit=30 if world.rank == 1 else None)
        splitter.agree(world)
        return splitter.limit, splitter.room


def test_memory_plan_is_refused_where_ranks_cannot_try_alone(tmp_path):
    dataset = Dataset(tmp_path, {"train": [{"name": "train"}]}, {"train": corpus()}, None, None)
    recipe = Recipe(model=without_dropout(), batching=PACKED, training=replace(CONFIG, parallel="fsdp"))
    with pytest.raises(InputError, match=r"training.plan_memory .* set batching.tokens_per_batch instead"):
        plan_memory(recipe, dataset, World(0, 2, CPU))
    assert plan_memory(recipe, dataset, World(0, 1, CPU)) == 128


def test_batch_without_loss_has_none_in_pieces():
    update = next(BatchStream({"train": corpus()}, PACKED, seed=1))
    pieces = Splitter(room=(32, 32)).cut([without_loss(update.batches[0])])
    assert len(pieces) > 2
    assert all(isinstance(piece, PackedBatch) and piece.num_target_tokens == 0 for piece in pieces)
    assert all((piece.target_output == 1).all() for piece in pieces)
