"""Which checkpoints are kept, which are refused, and how they are averaged."""

import json
import threading
from dataclasses import replace

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from small import CONFIG_MODEL, TRAINING, open_job, run_to_end

import deepnmt.model.storage
from deepnmt.errors import InputError, RunError
from deepnmt.model.storage import fill, load_model, read_weights
from deepnmt.training.averaging import (
    average_weights,
    choose_checkpoints,
    write_average,
)
from deepnmt.training.checkpoint import find_damage
from deepnmt.training.curves import read_log
from deepnmt.training.optimizer import optimizer_tensors
from deepnmt.training.trainer import train
from deepnmt.training.validation import Validation


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """20 steps, validated every 2 with scores that rise, fall and rise again; an epoch is 8 steps."""
    folder = tmp_path_factory.mktemp("run")
    config = replace(TRAINING, max_steps=20, validate_every=2, save_every=3, keep_last=3, keep_best=2, keep_epochs=5)
    with open_job(folder, config) as (run, job):
        scores = iter([1, 5, 3, 9, 2, 8, 4, 7, 0, 6])
        job.validate = lambda model: Validation(1.0, 1.0, {"bleu": float(next(scores))})
        train(run, job)
    return folder


def names(paths):
    return [path.name for path in paths]


def test_last_best_and_epochs_are_kept_and_nothing_else(finished):
    kept = {path.name for path in (finished / "checkpoints").iterdir()}
    assert kept == {
        *("step-00000015", "step-00000018", "step-00000020"),  # the last three
        *("step-00000008", "step-00000012"),  # scores 9 and 8
        *("epoch-00001", "epoch-00002"),
    }


def test_what_is_saved_is_what_was_there_although_it_is_written_later(tmp_path, monkeypatch):
    """Training continues while a checkpoint is written, and its changes are not in it."""
    with open_job(tmp_path, TRAINING) as (run, job):
        may_write, write = threading.Event(), deepnmt.model.storage.save_file

        def held_up(tensors, path):
            assert may_write.wait(30)
            write(tensors, path)

        monkeypatch.setattr(deepnmt.model.storage, "save_file", held_up)
        expected = {name: p.detach().clone() for name, p in run.model.named_parameters()}
        job.checkpoints.save(run)
        with torch.no_grad():
            for tensor in [*run.model.parameters(), *optimizer_tensors(run.model, run.optimizer).values()]:
                tensor.add_(1.0)
        run.best_scores.append(3.0)
        run.step = 7
        assert not job.checkpoints.all()
        may_write.set()
        job.checkpoints.finish()

    (path,) = job.checkpoints.all()
    assert path.name == "step-00000000" and find_damage(path) is None
    stored = load_file(path / "model.safetensors")
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in expected.items())
    assert not any(tensor.any() for tensor in load_file(path / "optimizer.safetensors").values())
    assert json.loads((path / "state.json").read_text())["run"]["best_scores"] == []


def test_a_checkpoint_that_could_not_be_written_is_reported_at_the_next(tmp_path, monkeypatch):
    with open_job(tmp_path, TRAINING) as (run, job):

        def full(tensors, path):
            raise SafetensorError("No space left on device (os error 28)")

        monkeypatch.setattr(deepnmt.model.storage, "save_file", full)
        job.checkpoints.save(run)
        with pytest.raises(RunError, match="No space left"):
            job.checkpoints.save(run)
        job.checkpoints.finish()  # reported once
    assert not (tmp_path / "checkpoints").exists()


def test_pointers_name_the_best_and_the_last(finished):
    best, last = (json.loads((finished / f"{name}.json").read_text()) for name in ("best", "last"))
    assert best == {"checkpoint": "checkpoints/step-00000008", "score": 9.0}
    assert last == {"checkpoint": "checkpoints/step-00000020"}


def test_the_last_step_is_validated_once_and_saved_with_its_score(tmp_path):
    """Also where it was saved before it was validated."""
    config = replace(TRAINING, max_steps=12, validate_every=5, save_every=4, save_epochs=False, keep_best=1)
    scores = iter([1.0, 2.0, 3.0])
    for _ in range(2):
        with open_job(tmp_path, config) as (run, job):
            job.validate = lambda model: Validation(1.0, 1.0, {"bleu": next(scores)})
            train(run, job)
    assert [line["step"] for line in read_log(tmp_path) if line["kind"] == "validation"] == [5, 10, 12]
    best = json.loads((tmp_path / "best.json").read_text())
    assert best == {"checkpoint": "checkpoints/step-00000012", "score": 3.0}


def test_without_best_checkpoints_to_keep_only_the_regular_ones_are_saved(tmp_path):
    """So that an average of the last five is one over evenly spaced steps."""
    config = replace(
        TRAINING, max_steps=12, validate_every=5, save_every=4, save_epochs=False, keep_best=0, keep_last=9
    )
    scores = iter([1.0, 2.0, 3.0])
    with open_job(tmp_path, config) as (run, job):
        job.validate = lambda model: Validation(1.0, 1.0, {"bleu": next(scores)})
        train(run, job)
    assert names(job.checkpoints.all()) == ["step-00000004", "step-00000008", "step-00000012"]
    assert not (tmp_path / "best.json").exists()


def test_without_epochs_to_keep_the_newest_checkpoint_still_stays(tmp_path):
    """Epochs of 8 steps, and no other checkpoint before the end."""
    run_to_end(tmp_path, replace(TRAINING, max_steps=9, save_every=100, validate_every=100, keep_epochs=0))
    assert names((tmp_path / "checkpoints").iterdir()) == ["step-00000009"]


def test_the_newest_checkpoint_is_never_removed(tmp_path):
    with open_job(tmp_path, replace(TRAINING, keep_epochs=0)) as (run, job):
        job.checkpoints.save(run, epoch=1)
        job.checkpoints.finish()
    assert names(job.checkpoints.all()) == ["epoch-00001"]


def test_of_equal_scores_the_newest_is_the_best(tmp_path):
    with open_job(tmp_path, replace(TRAINING, max_steps=6, validate_every=2, save_every=100)) as (run, job):
        job.validate = lambda model: Validation(1.0, 1.0, {"bleu": 0.0})
        train(run, job)
    assert names(choose_checkpoints(tmp_path, best=1)) == ["step-00000006"]
    assert json.loads((tmp_path / "best.json").read_text())["checkpoint"] == "checkpoints/step-00000006"


def test_checkpoint_is_a_model_folder(finished):
    path = finished / "checkpoints" / "step-00000020"
    model = load_model(path)
    assert model.config == CONFIG_MODEL
    assert torch.equal(model.output_weight, load_file(path / "model.safetensors")["source_embedding.tokens.weight"])


def test_a_checkpoint_with_a_moving_average_translates_with_it(tmp_path):
    """As it was validated, and as RUN/model will."""
    state = run_to_end(tmp_path, replace(TRAINING, max_steps=5, ema_decay=0.5))
    model = load_model(tmp_path / "checkpoints" / "step-00000005")
    assert all(torch.equal(p, state.ema.shadow[name]) for name, p in model.named_parameters())
    assert not torch.equal(model.output_weight, state.model.output_weight)


def test_what_else_is_in_the_folder_is_left_alone(tmp_path):
    run_to_end(tmp_path, replace(TRAINING, max_steps=5))
    others = ["step-00000005-copy", "step-best", "notes-on-epoch-1"]
    for name in others:
        (tmp_path / "checkpoints" / name).mkdir()
    with open_job(tmp_path, TRAINING) as (run, job):
        assert run.step == 5
        train(run, job)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {*others, *names(job.checkpoints.all())}


def test_best_pointer_goes_when_no_best_checkpoint_is_kept(tmp_path):
    for config in (TRAINING, replace(TRAINING, max_steps=30, keep_best=0)):
        run_to_end(tmp_path, config)
    assert not (tmp_path / "best.json").exists()


def test_average_of_one_is_the_identity(finished, tmp_path):
    (path,) = choose_checkpoints(finished, last=1, kind="step")
    write_average(finished, [path], tmp_path / "model")
    stored, averaged = load_file(path / "model.safetensors"), load_file(tmp_path / "model" / "model.safetensors")
    assert stored.keys() == averaged.keys()
    assert all(torch.equal(stored[name], averaged[name]) for name in stored)


@pytest.mark.parametrize("count", [2, 3, 5, 7])
def test_average_of_equal_checkpoints_is_that_checkpoint_to_the_last_bit(finished, count):
    path = finished / "checkpoints" / "step-00000020"
    stored, averaged = load_file(path / "model.safetensors"), average_weights([path] * count)
    assert all(torch.equal(stored[name], averaged[name]) for name in stored)


def test_average_is_the_mean(finished):
    paths = choose_checkpoints(finished, last=3, kind="step")
    stored = [load_file(path / "model.safetensors") for path in paths]
    for name, averaged in average_weights(paths).items():
        mean = torch.stack([weights[name].double() for weights in stored]).mean(0)
        torch.testing.assert_close(averaged.double(), mean, rtol=1e-6, atol=1e-7)


def test_average_is_of_the_moving_average_where_there_is_one(tmp_path):
    run = run_to_end(tmp_path, replace(TRAINING, max_steps=5, ema_decay=0.5))
    weights = read_weights(tmp_path / "checkpoints" / "step-00000005")
    assert all(torch.equal(weights[name], tensor) for name, tensor in run.ema.shadow.items())


def test_model_says_where_it_comes_from(finished, tmp_path):
    write_average(finished, choose_checkpoints(finished, last=2), tmp_path / "model", {"valid_bleu": 30.0})
    meta = json.loads((tmp_path / "model" / "meta.json").read_text())
    assert meta["averaged"] == ["epoch-00001", "epoch-00002"]
    assert (meta["step"], meta["valid_bleu"]) == (16, 30.0)
    load_model(tmp_path / "model")


def test_choices_of_checkpoints(finished):
    assert names(choose_checkpoints(finished, last=2)) == ["epoch-00001", "epoch-00002"]
    assert names(choose_checkpoints(finished, last=2, kind="step")) == ["step-00000018", "step-00000020"]
    assert names(choose_checkpoints(finished, best=2)) == ["step-00000012", "step-00000008"]
    assert names(choose_checkpoints(finished, steps=[20, 12])) == ["step-00000020", "step-00000012"]


@pytest.mark.parametrize(
    "choose, message",
    [
        (lambda run: choose_checkpoints(run, last=5), r"has only 2 of 5 epoch checkpoints; .*training\.keep_epochs"),
        (
            lambda run: choose_checkpoints(run, last=9, kind="step"),
            r"has only 5 of 9 step checkpoints; .*training\.keep_last",
        ),
        (lambda run: choose_checkpoints(run, best=9), r"of 9 validated checkpoints; .*training\.keep_best"),
        (lambda run: choose_checkpoints(run, steps=[7]), r"has no checkpoint of step 7; there are .*16, 18, 20"),
        (lambda run: choose_checkpoints(run / "nowhere", last=1), "contains no checkpoint"),
    ],
)
def test_impossible_choices_are_refused(choose, message, finished):
    with pytest.raises(InputError, match=message):
        choose(finished)


def test_damaged_checkpoint_is_not_averaged(tmp_path):
    run_to_end(tmp_path, replace(TRAINING, max_steps=5))
    (path,) = choose_checkpoints(tmp_path, last=1, kind="step")
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match=r"step-00000005 is damaged \(the checksum of model.safetensors differs\)"):
        average_weights([path])


def test_tensors_of_another_model_are_refused(tmp_path):
    with pytest.raises(InputError, match="here lacks tensor b"):
        fill({"a": torch.zeros(1), "b": torch.zeros(1)}, {"a": torch.zeros(1)}, tmp_path / "here")
    with pytest.raises(InputError, match=r"a has shape \(2,\) instead of \(1,\)"):
        fill({"a": torch.zeros(1)}, {"a": torch.zeros(2)}, tmp_path)
