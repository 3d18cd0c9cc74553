"""Killed anywhere and started again, a run ends as if nothing had happened: to the last bit, curves and files too."""

import json
import random
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from small import CONFIG_MODEL, TRAINING, curves, flat, open_job, run_to_end

import deepnmt.files
import deepnmt.model.storage
import deepnmt.training.checkpoint
import deepnmt.training.trainer
from deepnmt.errors import RunError
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.connections.residual import ResidualConfig
from deepnmt.model.sublayers import SUBLAYERS
from deepnmt.model.sublayers.admin import AdminConfig
from deepnmt.training.curves import JsonLines, read_log
from deepnmt.training.engine import EagerEngine
from deepnmt.training.trainer import train

CONFIG = replace(TRAINING, max_steps=16, ema_decay=0.9, clip_norm=0.5)
SEED = 7


class Killed(BaseException):
    """What the process would not have survived."""


class Killer:
    """Counts the moments at which a kill would hurt, and at a chosen one kills every thread; nothing is cleaned up."""

    def __init__(self, monkeypatch, at=None):
        self.count, self.at, self.dead = 0, at, False
        for owner, name in (
            (EagerEngine, "accumulate"),
            (deepnmt.training.trainer, "apply_update"),
            (deepnmt.model.storage, "save_file"),
            (deepnmt.training.checkpoint, "sha256"),
            (deepnmt.training.checkpoint.shutil, "rmtree"),
            (deepnmt.files.os, "rename"),
            (deepnmt.files.os, "replace"),
            (JsonLines, "write"),
        ):
            monkeypatch.setattr(owner, name, self._watched(getattr(owner, name)))
        clean_up = deepnmt.files._remove
        monkeypatch.setattr(deepnmt.files, "_remove", lambda path: None if self.dead else clean_up(path))

    def _watched(self, function):
        def watched(*arguments, **named):
            self._moment()
            result = function(*arguments, **named)
            self._moment()
            return result

        return watched

    def _moment(self):
        self.count += 1
        self.dead = self.dead or self.count == self.at
        if self.dead:
            raise Killed


def run_with_kills(folder, monkeypatch, moments):
    for moment in moments:
        with monkeypatch.context() as patched:
            Killer(patched, moment)
            with suppress(Killed), open_job(folder, CONFIG) as (run, job):
                try:
                    train(run, job)
                finally:
                    job.checkpoints.wait()
    return run_to_end(folder, CONFIG)


def files(folder):
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in (folder / "checkpoints").rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    with pytest.MonkeyPatch.context() as patched:
        killer = Killer(patched)
        run_to_end(folder, CONFIG)
    return folder, killer.count


def test_same_seed_same_run(tmp_path, uninterrupted):
    run_to_end(tmp_path, CONFIG)
    assert files(tmp_path) == files(uninterrupted[0])
    assert curves(tmp_path) == curves(uninterrupted[0])


def test_a_start_found_in_the_data_is_resumed_to_the_last_bit(tmp_path):
    """Admin: a pass over the first batch tells what the residuals start with."""
    model = replace(CONFIG_MODEL, encoder=replace(CONFIG_MODEL.encoder, sublayer=AdminConfig()))
    with open_job(tmp_path / "a", CONFIG, model_config=model) as (started, _):
        weights = [layer.around_feed_forward.weight[0].item() for layer in started.model.encoder.layers]
        assert 0 < weights[0] < weights[1], "each the root of a sum over the branches below"
        assert started.model.encoder.layers[0].around_attention.weight[0] == 1
    for folder, stops in (("a", (16,)), ("b", (7, 16))):
        for stop in stops:
            ended = run_to_end(tmp_path / folder, replace(CONFIG, max_steps=stop), model_config=model)
    name = "step-00000016/model.safetensors"
    assert files(tmp_path / "a")[name] == files(tmp_path / "b")[name]
    assert ended.model.encoder.layers[1].around_feed_forward.weight[0] != weights[1], "it is learned"


SCHEMES: dict[str, dict[str, object]] = {kind: {"connection": scheme.Config()} for kind, scheme in CONNECTIONS.items()}
SCHEMES |= {kind: {"sublayer": scheme.Config(), "connection": ResidualConfig()} for kind, scheme in SUBLAYERS.items()}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_trains_and_resumes_to_the_last_bit(scheme, tmp_path):
    stacks = {side: replace(getattr(CONFIG_MODEL, side), **SCHEMES[scheme]) for side in ("encoder", "decoder")}
    model, ended = replace(CONFIG_MODEL, **stacks), []
    for folder, stops in (("whole", (6,)), ("parts", (3, 6))):
        for stop in stops:
            config = replace(TRAINING, max_steps=stop, validate_every=6, save_every=3)
            run = run_to_end(tmp_path / folder, config, model_config=model)
        ended.append(flat(run.model))
    assert torch.equal(*ended) and ended[0].isfinite().all()


def test_another_seed_is_another_run(tmp_path, uninterrupted):
    run_to_end(tmp_path, replace(CONFIG, seed=2))
    assert curves(tmp_path) != curves(uninterrupted[0])


@pytest.mark.parametrize("case", range(9))
def test_resumed_equals_uninterrupted_wherever_it_was_killed(case, tmp_path, uninterrupted, monkeypatch):
    folder, moments = uninterrupted
    chosen = random.Random(SEED + case)
    kills = [chosen.randint(1, moments) for _ in range(1 + case % 3)]
    run_with_kills(tmp_path, monkeypatch, kills)
    assert curves(tmp_path) == curves(folder)
    assert files(tmp_path) == files(folder)
    assert not [path for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".")]


def test_resuming_after_the_end_with_more_steps_equals_one_long_run(tmp_path, uninterrupted):
    run_to_end(tmp_path, replace(CONFIG, max_steps=10, validate_every=5))
    run_to_end(tmp_path, CONFIG)
    last = "checkpoints/step-00000016/optimizer.safetensors"
    for name, tensor in load_file(uninterrupted[0] / last).items():
        assert torch.equal(tensor, load_file(tmp_path / last)[name]), name


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json", None])
def test_damaged_newest_checkpoint_is_passed_over_with_a_warning(name, tmp_path, uninterrupted, capsys):
    run_to_end(tmp_path, replace(CONFIG, max_steps=10))
    newest = tmp_path / "checkpoints" / "step-00000010"
    if name is None:
        (newest / "optimizer.safetensors").unlink()
    else:
        damage(newest / name)
    with open_job(tmp_path, CONFIG) as (run, _job):
        assert run.step == 8
        assert f"step-00000010 is damaged ({'' if name else 'it is not complete'}" in capsys.readouterr().err
    run_to_end(tmp_path, CONFIG)
    assert (
        files(tmp_path)["step-00000016/model.safetensors"] == files(uninterrupted[0])["step-00000016/model.safetensors"]
    )


def test_full_disk_ends_the_run_and_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    run_to_end(tmp_path, replace(CONFIG, max_steps=5))

    def full(tensors, path):
        raise SafetensorError("No space left on device (os error 28)")

    with open_job(tmp_path, CONFIG) as (run, job):
        monkeypatch.setattr(deepnmt.model.storage, "save_file", full)
        with pytest.raises(RunError, match=r"cannot write .*model.safetensors: No space left"):
            train(run, job)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000005"]


def test_torn_line_of_the_log_is_dropped(tmp_path):
    run_to_end(tmp_path, replace(CONFIG, max_steps=6))
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 9}\n{"kind": "tra')
    JsonLines(tmp_path, lines=len(read_log(tmp_path)) - 1).close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [3, 6]


def test_lines_of_the_log_end_only_at_a_line_feed(tmp_path):
    """A validation sample may hold any character, those that `str.splitlines` takes for the end of a line too."""
    log = JsonLines(tmp_path, 0)
    log.write({"kind": "validation", "step": 3, "samples": ["one\u2028two\x85three\x1cfour", "é\r"]})
    log.close()
    before = (tmp_path / "log.jsonl").read_bytes()
    JsonLines(tmp_path, 1).close()
    assert (tmp_path / "log.jsonl").read_bytes() == before
    assert [line["step"] for line in read_log(tmp_path)] == [3]


def test_tensorboard_curves_have_no_gaps_and_no_doubles(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from deepnmt.training.curves import TensorBoard

    def record(config, stop=None):
        with open_job(tmp_path, config) as (run, job):
            job.curves.append(TensorBoard(tmp_path, run.step))
            train(run, job)
            job.curves[-1].write(
                {"kind": "train", "step": run.step + 3, "loss": 0.0}
            )  # written after the checkpoint, then killed

    record(replace(CONFIG, max_steps=10))
    with open_job(tmp_path, CONFIG) as (run, job):
        job.curves.append(TensorBoard(tmp_path, run.step))
        train(run, job)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [3, 6, 9, 10, 12, 15, 16]
    assert [event.step for event in events.Scalars("gradient_norm/encoder.layers.0")] == [3, 6, 9, 10, 12, 15, 16]
    assert [event.step for event in events.Images("encoder.connection")] == [8, 10, 16]


def test_tensorboard_has_the_last_validation_once(tmp_path):
    """Also after a kill between that validation and its checkpoint, where the step was already saved without it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = replace(CONFIG, max_steps=10, log_every=5, save_every=5, validate_every=8, tensorboard=True)
    with open_job(tmp_path, config) as (run, job), pytest.raises(KeyboardInterrupt):
        save = job.checkpoints.save

        def killed(state, epoch=None):
            if state.step == 10 and state.score is not None:
                raise KeyboardInterrupt
            save(state, epoch)

        job.checkpoints.save = killed
        train(run, job)
    run_to_end(tmp_path, config)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("validation/loss")] == [8, 10]
    assert [event.step for event in events.Scalars("train/loss")] == [5, 10]
