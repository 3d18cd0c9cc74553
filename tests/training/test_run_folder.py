"""A RUN folder: one writer at a time, nothing changed by a refusal, resumable from its first instant on."""

import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from small import ALONE, BATCHING, CONFIG_MODEL, TRAINING, corpus, dataset, open_job, run_to_end

import deepnmt.model.storage
from deepnmt.config import Recipe
from deepnmt.errors import InputError
from deepnmt.training import announcement, assembly
from deepnmt.training.averaging import choose_checkpoints, export_model
from deepnmt.training.curves import read_log
from deepnmt.training.lock import LOCK, hold_lock
from deepnmt.training.trainer import train
from deepnmt.training.validation import TextMetrics, Validation, Validator

SHORT = replace(TRAINING, max_steps=6, save_every=2, validate_every=3, log_every=1)

HOLDER = """
import sys, time
from pathlib import Path
from deepnmt.training.lock import hold_lock
with hold_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of a run."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_run_in_use_is_refused_naming_who_uses_it(tmp_path, unchanged, holder):
    stored = json.loads((tmp_path / LOCK).read_text())
    assert (stored["host"], stored["pid"]) == (socket.gethostname(), holder.pid)
    expected = f"is in use by process {holder.pid} on {socket.gethostname()} .since {stored['since'][:10]}"
    with unchanged(tmp_path), pytest.raises(InputError, match=expected):
        run_to_end(tmp_path, SHORT)


def test_death_releases_a_run(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / LOCK).exists()
    assert run_to_end(tmp_path, SHORT).step == 6
    assert not (tmp_path / LOCK).exists()


def test_a_second_process_may_read_but_not_resume(tmp_path, unchanged):
    run_to_end(tmp_path, replace(SHORT, max_steps=3))
    with open_job(tmp_path, SHORT) as (_, job), unchanged(tmp_path):
        assert choose_checkpoints(tmp_path, best=1) and read_log(tmp_path) and job.checkpoints.newest()
        with pytest.raises(InputError, match=f"is in use by process {os.getpid()}"):
            run_to_end(tmp_path, SHORT)
    run_to_end(tmp_path, SHORT)


def test_the_lock_is_kept_until_the_last_checkpoint_is_written(tmp_path, monkeypatch):
    """An exception leaves the run while a thread still writes: in the same process it can be resumed at once."""
    may_write, write = threading.Event(), deepnmt.model.storage.save_file

    def slow(tensors, path):
        assert (tmp_path / LOCK).exists() and may_write.wait(30)
        write(tensors, path)

    monkeypatch.setattr(deepnmt.model.storage, "save_file", slow)
    with pytest.raises(KeyboardInterrupt), open_job(tmp_path, SHORT) as (run, job):
        job.checkpoints.save(run)
        threading.Timer(0.2, may_write.set).start()
        raise KeyboardInterrupt
    assert [path.name for path in job.checkpoints.all()] == ["step-00000000"]
    assert run_to_end(tmp_path, SHORT).step == 6


def test_without_locks_in_the_file_system_the_file_decides(tmp_path, monkeypatch):
    """As on a Lustre mount without flock: a holder on this host is asked after, one elsewhere is believed."""

    def unsupported(descriptor, operation):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with (
        hold_lock(tmp_path),
        pytest.raises(InputError, match=f"process {os.getpid()}"),
        hold_lock(tmp_path),
    ):
        pass
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    holder = {"host": socket.gethostname(), "pid": dead.pid, "since": "2026-01-01T00:00:00+00:00"}
    (tmp_path / LOCK).write_text(json.dumps(holder))
    with hold_lock(tmp_path):
        pass
    (tmp_path / LOCK).write_text(json.dumps(holder | {"host": "elsewhere"}))
    with pytest.raises(InputError, match=r"on elsewhere .since 2026-01-01"), hold_lock(tmp_path):
        pass


@pytest.mark.parametrize("name", ["copy_tokenizers", "write_json", "write_text"])
def test_a_run_killed_before_its_recipe_was_written_starts_again(tmp_path, monkeypatch, name):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(assembly.folder, name, killed)
        run_to_end(tmp_path, SHORT)
    assert not (tmp_path / "recipe.toml").exists()
    (tmp_path / ".recipe.toml.4711.partial").write_text("[mod")
    assert run_to_end(tmp_path, SHORT).step == 6


def test_a_run_from_before_a_setting_existed_is_resumed(tmp_path, unchanged):
    """A setting that recipe.toml does not have had its default; one that this version does not know is named."""
    run_to_end(tmp_path, replace(SHORT, max_steps=3))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("sampled_softmax = 0\n", ""))
    assert "sampled_softmax" not in recipe.read_text()
    assert run_to_end(tmp_path, SHORT).step == 6
    recipe.write_text(recipe.read_text().replace("sampled_softmax = 0\n", "sample = 0\n"))
    with unchanged(tmp_path), pytest.raises(InputError, match=r"recipe.toml: unknown setting training.sample"):
        run_to_end(tmp_path, SHORT)


def test_resuming_with_changed_data_is_refused(tmp_path, unchanged):
    run_to_end(tmp_path, replace(SHORT, max_steps=3))
    for data in (corpus(119), replace(corpus(), checksum=4711)):  # fewer pairs; others of the same size
        with unchanged(tmp_path), pytest.raises(InputError, match="cannot resume: the training data has changed"):
            run_to_end(tmp_path, SHORT, data=dataset(data))
    other = dataset()
    other.tokenizers.target.subwords.pieces[7] = "other"
    try:
        with (
            unchanged(tmp_path),
            pytest.raises(InputError, match=r"has other subwords than .*; use `deepnmt"),
        ):
            run_to_end(tmp_path, SHORT, data=other)
    finally:
        other.tokenizers.target.subwords.pieces[7] = "d"


def test_damaged_checkpoints_are_refused_unchanged(tmp_path, unchanged):
    run_to_end(tmp_path, replace(SHORT, max_steps=3))
    for path in tmp_path.glob("checkpoints/*/state.json"):
        path.write_text("{}")
    with unchanged(tmp_path), pytest.raises(InputError, match=r"every checkpoint in .* is damaged"):
        run_to_end(tmp_path, SHORT)


def scored(folder, scores, **changes):
    """Train with validations that have these scores."""
    config = replace(SHORT, validate_every=1, save_every=100, **changes)
    with open_job(folder, config, data=with_text(), metrics=TextMetrics(None, None)) as (state, job):
        found = iter(scores)
        job.validate = lambda model: Validation(1.0, 1.0, {"bleu": next(found)})
        train(state, job)
    return state


def with_text(valid=None):
    data = dataset(valid=valid)
    data.valid_text = (["a b"] * 10, ["b a"] * 10)
    return data


def test_scores_that_measure_something_else_are_not_compared(tmp_path, capsys):
    """BLEU of other lines, or the loss instead: after the change the record begins anew."""
    scored(tmp_path, [70.0, 80.0], max_steps=2, validation_lines=2)
    assert choose_checkpoints(tmp_path, best=1)[0].name == "step-00000002"
    capsys.readouterr()
    state = scored(tmp_path, [20.0, 30.0, 25.0], max_steps=5, validation_lines=4, patience=9)
    told = capsys.readouterr().err
    assert re.search("validation has changed from bleu.*lines:2.* to bleu.*lines:4.*: earlier scores no longer", told)
    assert (state.best_scores, state.stale) == ([30.0], 1)
    assert "best checkpoint (step-00000004, bleu 30.00)" in export_model(tmp_path, SHORT)
    best = [line["is_best"] for line in read_log(tmp_path) if line["kind"] == "validation"]
    assert best == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({}, True),
        ({"training": {"keep_best": 3, "patience": 2}}, True),
        ({"training": {"best_by": "loss"}}, False),
        ({"training": {"best_by": "chrf"}}, False),
        ({"training": {"validation_lines": 3}}, False),
        ({"training": {"validation_beam": 2}}, False),
        ({"decoding": {"length_penalty": 1.0}}, False),
        ({"valid": corpus(10, seed=2)}, False),
    ],
)
def test_what_a_score_measures(change, is_same):
    def measure(training=None, decoding=None, valid=None):
        config = replace(TRAINING, **{"validation_lines": None} | (training or {}))
        recipe = Recipe(model=CONFIG_MODEL, training=config)
        recipe = replace(recipe, decoding=replace(recipe.decoding, **decoding or {}))
        return Validator(recipe, with_text(valid), None, ALONE, TextMetrics(None, None)).measure

    assert (measure(**change) == measure()) is is_same


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_pairs_longer_than_learned_positions(tmp_path, layout, capsys, unchanged):
    """In the training data they are refused before anything is written; in the validation set they are left out."""
    learned = replace(CONFIG_MODEL, positions="learned", max_positions=6)
    batching = replace(BATCHING, layout=layout)
    settings = {"model_config": learned, "batching": batching}
    with (
        unchanged(tmp_path),
        pytest.raises(
            InputError, match=r"pairs of up to 9 tokens, but model.max_positions = 6; set batching.max_length = 5"
        ),
    ):
        run_to_end(tmp_path / "run", SHORT, **settings)
    run_to_end(tmp_path / "run", SHORT, **settings | {"batching": replace(batching, max_length=5)})
    assert "validation pairs exceed model.max_positions = 6" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "kept"), [({}, 2), ({"save_epochs": False}, 0), ({"average_last": 2}, None)], ids=str
)
def test_a_run_says_that_fewer_epochs_will_be_averaged_than_asked_for(tmp_path, capsys, changes, kept):
    with open_job(tmp_path, replace(SHORT, **{"export": "average", "average_last": 3, **changes})):
        pass
    message = f"training.average_last = 3, but only {kept} epoch checkpoints are kept"
    assert (message in capsys.readouterr().err) == (kept is not None)


@pytest.mark.parametrize("has_bf16", [True, False])
def test_a_run_says_what_it_trains_and_that_bf16_is_slow_here(tmp_path, capsys, monkeypatch, has_bf16):
    monkeypatch.setattr(announcement, "multiplies_bf16", lambda: has_bf16)
    with open_job(tmp_path, replace(SHORT, precision="bf16")) as (state, _):
        size = sum(parameter.numel() for parameter in state.model.parameters())
    told = capsys.readouterr().err
    assert f"training: {size:,} parameters, 6 steps of {SHORT.tokens_per_update:,} target tokens, on CPU" in told
    assert "an update is at least" not in told
    assert ("this CPU has no bf16 instructions: training.precision=fp32 is faster" in told) != has_bf16


def test_a_run_that_is_far_too_long_is_mentioned(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(announcement, "CPU_FLOPS", 1.0)
    with open_job(tmp_path / "short", SHORT):
        pass
    told = capsys.readouterr().err
    assert "which training would read" not in told
    assert re.search(r"a CPU with 1 TFLOP/s needs [\d,]+ days for this run; `demo` is a preset for CPUs", told)
    monkeypatch.undo()
    for number, limit in enumerate((None, 20)):
        with open_job(tmp_path / str(number), replace(SHORT, max_steps=1_000_000, max_epochs=limit)):
            pass
        told = capsys.readouterr().err
        assert ("which training would read" in told) == (limit is None)
        assert "TFLOP/s" not in told


def test_a_batch_that_is_larger_than_an_update_is_mentioned(tmp_path, capsys):
    with open_job(tmp_path, replace(SHORT, tokens_per_update=32)):
        pass
    told = capsys.readouterr().err
    assert "training.tokens_per_update = 32, but an update is at least one batch of up to 64 target tokens" in told
