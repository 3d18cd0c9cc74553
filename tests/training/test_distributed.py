"""Any number of ranks trains like one: same losses, same checkpoints, and one report of a failure."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from processes import SECONDS
from ranks import free_port, run_ranks
from safetensors.torch import load_file
from small import BATCHING, CONFIG_MODEL, TRAINING, logged, open_job, run_to_end, without_dropout
from test_out_of_memory import replayed

import deepnmt
from deepnmt.errors import InputError, RunError
from deepnmt.training.distributed import _fresh_store, join_world
from deepnmt.training.graph_engine import GraphEngine
from deepnmt.training.trainer import train

LONG = replace(TRAINING, max_steps=24, tokens_per_update=256, log_every=1, validate_every=12, save_every=12)
FEW = replace(LONG, max_steps=20, ema_decay=0.9, clip_norm=0.5, validate_every=6, save_every=6)
SHARDED = replace(FEW, max_steps=12, parallel="fsdp")


def train_rank(folder, config, model_config=CONFIG_MODEL, **changes):
    """What every rank does: join, resume from the newest checkpoint, train."""
    with join_world("cpu", 120) as world:
        with open_job(folder, config, world=world, model_config=model_config, **changes) as (run, job):
            train(run, job)
        return run.step


def losses(folder):
    return logged(folder, "loss") + logged(folder, "loss", "validation")


def losses_by_step(folder):
    return dict(zip(logged(folder, "step"), logged(folder, "loss"), strict=True))


def train_ranks(size, folder, config, model_config=CONFIG_MODEL):
    assert run_ranks(size, train_rank, folder, config, model_config) == [config.max_steps] * size


def train_alone(folder, config, model_config=CONFIG_MODEL):
    run_to_end(folder, config, model_config=model_config)


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    train_alone(folder, FEW)
    return folder


def test_two_ranks_give_the_losses_of_one_with_dropout(tmp_path, one_rank):
    """The noise belongs to the batch, whoever computes it (unless ranks must share a batch by rows)."""
    train_ranks(2, tmp_path, FEW)
    assert losses(tmp_path) == pytest.approx(losses(one_rank), abs=1e-5)


def test_ranks_skip_the_layers_that_one_would_and_grow_when_it_would(tmp_path):
    encoder = replace(CONFIG_MODEL.encoder, layer_dropout=0.3, sublayer_dropout=0.5)
    model = replace(CONFIG_MODEL, encoder=encoder)
    config = replace(FEW, max_steps=8, grow=(1, 2), grow_at=(5,), r_drop=5.0)
    train_alone(tmp_path / "1", config, model)
    train_ranks(2, tmp_path / "2", config, model)
    assert losses(tmp_path / "2") == pytest.approx(losses(tmp_path / "1"), abs=3e-5)


RECORDED = {"batching": replace(BATCHING, layout="packed"), "engine": partial(GraphEngine, record=replayed)}
FIVE = replace(FEW, max_steps=5, compile=False)


def train_recorded_rank(folder):
    return train_rank(folder, FIVE, **RECORDED)


def test_ranks_with_recorded_updates_give_the_losses_of_one(tmp_path):
    run_to_end(tmp_path / "1", FIVE, **RECORDED)
    assert run_ranks(2, train_recorded_rank, tmp_path / "2") == [5, 5]
    assert losses(tmp_path / "2") == pytest.approx(losses(tmp_path / "1"), abs=1e-5)


def test_two_and_four_ranks_give_the_losses_of_one(tmp_path):
    assert LONG.tokens_per_update == 4 * BATCHING.tokens_per_batch
    train_alone(tmp_path / "1", LONG, without_dropout())
    for size in (2, 4):
        train_ranks(size, tmp_path / str(size), LONG, without_dropout())
        assert len(losses(tmp_path / "1")) == 26
        assert losses(tmp_path / str(size)) == pytest.approx(losses(tmp_path / "1"), abs=1e-5)


def test_ranks_that_share_the_work_of_muon_give_the_losses_of_one(tmp_path):
    config = replace(FEW, optimizer="muon", max_steps=8)
    train_alone(tmp_path / "1", config)
    train_ranks(2, tmp_path / "2", config)
    assert losses(tmp_path / "2") == pytest.approx(losses(tmp_path / "1"), abs=1e-4)


def test_more_ranks_than_batches_and_uneven_shares(tmp_path):
    """One batch for two ranks (shared by rows), three for two, and an epoch that ends with fewer."""
    config = replace(TRAINING, max_steps=12, log_every=1)
    for tokens_per_update in (64, 192):
        config = replace(config, tokens_per_update=tokens_per_update)
        alone, ranks = tmp_path / f"alone{tokens_per_update}", tmp_path / f"ranks{tokens_per_update}"
        train_alone(alone, config, without_dropout())
        train_ranks(2, ranks, config, without_dropout())
        assert losses(ranks) == pytest.approx(losses(alone), abs=1e-5)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    train_ranks(2, folder, SHARDED)
    return folder


def test_sharded_ranks_give_the_losses_of_one(sharded, one_rank):
    assert logged(sharded, "loss") == pytest.approx(logged(one_rank, "loss")[:12], abs=1e-5)


def test_sharded_run_resumes_with_any_number_of_ranks_sharded_or_not(sharded, tmp_path, one_rank):
    for size, parallel in ((1, "ddp"), (2, "fsdp"), (2, "ddp")):
        folder = tmp_path / f"{size}-{parallel}"
        shutil.copytree(sharded, folder)
        config = replace(FEW, parallel=parallel)
        if size == 1:
            train_alone(folder, config)
        else:
            train_ranks(size, folder, config)
        assert losses_by_step(folder) == pytest.approx(losses_by_step(one_rank), abs=1e-5)


def test_sharded_half_precision_learns_like_full(tmp_path, sharded):
    train_ranks(2, tmp_path, replace(SHARDED, max_steps=8, precision="bf16"))
    assert losses(tmp_path)[:6] == pytest.approx(losses(sharded)[:6], rel=0.02)
    assert losses(tmp_path)[:6] != losses(sharded)[:6]


def test_sharded_checkpoint_is_that_of_one_rank(sharded, one_rank):
    folder, other = sharded / "checkpoints" / "step-00000012", one_rank / "checkpoints" / "step-00000018"
    listed, expected = (json.loads((path / "manifest.json").read_text())["sha256"].keys() for path in (folder, other))
    assert listed == expected
    for name in ("model.safetensors", "optimizer.safetensors"):
        found, wanted = load_file(folder / name), load_file(other / name)
        assert {key: t.shape for key, t in found.items()} == {key: t.shape for key, t in wanted.items()}


def test_run_resumes_with_another_number_of_ranks(tmp_path, one_rank):
    """What an elastic restart does after a lost worker."""
    train_ranks(2, tmp_path, replace(FEW, max_steps=8))
    train_alone(tmp_path, replace(FEW, max_steps=15))
    train_ranks(2, tmp_path, FEW)
    assert losses_by_step(tmp_path) == pytest.approx(losses_by_step(one_rank), abs=1e-5)


def ending(function, *arguments):
    """How a rank ends: with an error for the user, or silently with a status."""
    try:
        function(*arguments)
    except (InputError, RunError) as error:
        return type(error).__name__, str(error)
    except SystemExit as ended:
        return "SystemExit", ended.code


def fail_on(ranks, error):
    """Some ranks fail inside the loop."""
    with join_world("cpu", 60) as world:
        for step in range(5):
            if step == 3 and world.rank in ranks:
                raise error
            world.sum(torch.ones(3))


def test_restarted_ranks_do_not_meet_the_dead():
    """The store still holds what the ranks before wrote, as torchrun leaves it."""
    store = torch.distributed.HashStore()
    for rank in range(3):
        store.set(f"hello/{rank}", "dead")
    for size in (3, 2):
        with ThreadPoolExecutor() as pool:
            late = [pool.submit(_fresh_store, store, rank, size, 20) for rank in reversed(range(size))]
            found = [future.result() for future in late]
        found[0].set("key", f"of {size}")
        assert [one.get("key") for one in found] == [f"of {size}".encode()] * size
        assert not torch.distributed.PrefixStore("dead", store).check(["key"])
    with pytest.raises(RuntimeError, match="timed out waiting for rank 1"):
        _fresh_store(torch.distributed.HashStore(), 0, 2, 0)


def spread_work():
    with join_world("cpu", 60) as world:
        done = []
        results = world.spread(lambda items: [done.append(item) or item * item for item in items], list(range(7)))
        return results, done


def ask_late():
    with join_world("cpu", 60) as world:
        return [world.any_before(world.rank == 1 and step == 2) for step in range(5)]


def test_every_rank_hears_of_another_at_the_same_step():
    assert run_ranks(2, ask_late) == [[False, False, False, True, False]] * 2


# Imports FSDP, as torch's compiler does, once the ranks have met; prints the threads that are left when they part.
PART = """
from pathlib import Path
from deepnmt.training.distributed import join_world
with join_world("cpu", 60) as world:
    import torch.distributed.fsdp
    world.agree(None)
print(*(task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not list the threads of a process")
def test_ranks_that_have_parted_leave_no_thread_that_could_abort_the_end_of_the_process():
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}

    def start(rank):  # a new interpreter, in which nothing has imported FSDP
        environment = {**os.environ, **world, "RANK": str(rank)}
        return subprocess.Popen([sys.executable, "-c", PART], env=environment, stdout=subprocess.PIPE, text=True)

    for rank in [start(rank) for rank in range(2)]:
        left, _ = rank.communicate(timeout=SECONDS)
        assert rank.returncode == 0 and "gloo_runloop" not in left


def spread_rows(count):
    with join_world("cpu", 60) as world:
        done = []
        rows = world.spread_rows(
            lambda part: done.append(len(part)) or part * part, torch.arange(2 * count).view(-1, 2)
        )
        return rows.flatten().tolist(), done


@pytest.mark.parametrize("count, shares", [(5, ([3], [2])), (1, ([1], []))])
def test_rows_are_spread_over_ranks_and_come_back_in_order(count, shares):
    squares = [i * i for i in range(2 * count)]
    assert run_ranks(2, spread_rows, count) == [(squares, share) for share in shares]


def test_work_is_spread_over_ranks_and_comes_back_in_order():
    squares = [0, 1, 4, 9, 16, 25, 36]
    assert run_ranks(2, spread_work) == [(squares, [0, 2, 4, 6]), (squares, [1, 3, 5])]


@pytest.mark.parametrize(
    "ranks, error, message", [((1,), RunError, "rank 1 failed: it is full"), ((0, 1), InputError, "it is full")]
)
def test_an_error_ends_all_ranks_and_the_main_one_reports_it(ranks, error, message):
    results = run_ranks(2, ending, fail_on, ranks, error("it is full"))
    assert results == [(error.__name__, message), ("SystemExit", error.status)]


def test_settings_that_no_rank_can_use_are_reported_once(tmp_path):
    results = run_ranks(2, ending, deepnmt.train, "demo", None, tmp_path / "run")
    message = f"`data` is missing, and {tmp_path / 'run'} contains no run to resume"
    assert results == [("InputError", message), ("SystemExit", 2)]
    assert not (tmp_path / "run").exists()
