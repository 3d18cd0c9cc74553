"""Growing the encoder while training: when, from which weights, with which rate, and refusals."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from small import CONFIG_MODEL, TRAINING, open_job, run_to_end, without_dropout

from deepnmt.config import load_recipe
from deepnmt.errors import InputError
from deepnmt.training.curves import read_log
from deepnmt.training.schedule import encoder_depth, learning_rate
from deepnmt.training.trainer import train

DEEP = replace(CONFIG_MODEL, encoder=replace(CONFIG_MODEL.encoder, num_layers=4))
GROWING = replace(TRAINING, max_steps=12, grow=(1, 2, 4), grow_at=(4, 8), save_every=2, keep_last=9, log_every=1)


def test_depth_and_rate_are_functions_of_the_step():
    """Li et al. 2020: every depth but the first starts with the highest rate, which then decays."""
    config = replace(TRAINING, grow=(6, 12, 18), grow_at=(100, 200), lr=1.0, warmup_steps=25)
    assert [encoder_depth(step, config) for step in (0, 99, 100, 199, 200, 999)] == [6, 6, 12, 12, 18, 18]
    assert encoder_depth(5, TRAINING) is None
    assert [learning_rate(step, config) for step in (100, 200)] == [1.0, 1.0]
    for step in (25, 99):
        assert learning_rate(step, config) == (25 / step) ** 0.5
    for step in (100, 175, 199):
        assert learning_rate(step, config) == pytest.approx((25 / (25 + step - 100)) ** 0.5)


def test_each_checkpoint_says_its_depth_and_the_log_when_it_grew(tmp_path):
    run_to_end(tmp_path, GROWING, model_config=DEEP)
    depths = {
        path.name: json.loads((path / "config.json").read_text())["encoder"]["num_layers"]
        for path in (tmp_path / "checkpoints").glob("step-*")
    }
    assert depths == {f"step-{step:08d}": 1 if step <= 4 else 2 if step <= 8 else 4 for step in range(2, 13, 2)}
    grown = [(line["step"], line["depth"]) for line in read_log(tmp_path) if line["kind"] == "growth"]
    assert grown == [(4, 2), (8, 4)]


def test_the_first_update_after_growth_is_that_of_a_new_optimiser(tmp_path):
    """Adam's first update moves by the rate, whatever the gradient: its moments are those of one gradient."""
    config = replace(GROWING, max_steps=5, save_every=1)
    run_to_end(tmp_path, config, model_config=without_dropout(DEEP))
    optimizer = load_file(tmp_path / "checkpoints/step-00000005/optimizer.safetensors")
    name = "encoder.layers.1.feed_forward.expand.weight"
    assert optimizer[f"step/{name}"] == optimizer["step/decoder.layers.0.attention.input.weight"] == 1
    before = load_file(tmp_path / "checkpoints/step-00000004/model.safetensors")
    after = load_file(tmp_path / "checkpoints/step-00000005/model.safetensors")
    moved = (after[name] - before["encoder.layers.0.feed_forward.expand.weight"]).abs()
    assert moved[optimizer[f"exp_avg/{name}"].abs() > 1e-5].mean() == pytest.approx(config.lr, rel=0.01)


def test_a_run_that_stops_right_before_growth_ends_as_if_it_had_not(tmp_path):
    """The table of soak.py kills runs that grow anywhere; here the checkpoint is the last of its depth."""
    for folder, stops in (("once", (12,)), ("twice", (4, 8, 12))):
        for stop in stops:
            run_to_end(tmp_path / folder, replace(GROWING, max_steps=stop, validate_every=100), model_config=DEEP)
    for name in ("model", "optimizer"):
        once, twice = (
            load_file(tmp_path / folder / f"checkpoints/step-00000012/{name}.safetensors")
            for folder in ("once", "twice")
        )
        assert once.keys() == twice.keys() and all(torch.equal(once[key], twice[key]) for key in once)


def test_the_average_has_one_depth(tmp_path):
    from deepnmt.training.averaging import export_model

    config = replace(GROWING, max_steps=40, grow_at=(4, 25), save_every=100, keep_epochs=9, export="average")
    run_to_end(tmp_path, config, model_config=DEEP)
    depths = [
        json.loads((path / "config.json").read_text())["encoder"]["num_layers"]
        for path in sorted((tmp_path / "checkpoints").glob("epoch-*"))
    ]
    assert set(depths) == {2, 4}
    assert export_model(tmp_path, config) == f"the average of the last {depths.count(4)} epochs"


def test_a_run_that_ends_before_it_has_grown_says_so(tmp_path, capsys):
    with open_job(tmp_path, replace(GROWING, max_steps=8), model_config=DEEP):
        pass
    message = "training.max_steps = 8 ends before training.grow_at, with 2 encoder layers"
    assert message in capsys.readouterr().err


def test_a_model_to_start_from_has_the_first_depth(tmp_path):
    with open_job(tmp_path, GROWING, model_config=DEEP) as (state, job):
        assert len(state.model.encoder.layers) == 1
        train(state, job)
        assert len(state.model.encoder.layers) == len(job.engine.objective.model.encoder.layers) == 4


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.grow=[6,12]"], "training: grow_at = [] must have one step fewer than grow = [6, 12] has depths"),
        (
            ["training.grow=[6,13]", "training.grow_at=[9]"],
            "training: grow = [6, 13]: a depth must be above the one before",
        ),
        (["training.grow=[6,12,20]", "training.grow_at=[9,8]"], "training: grow_at = [9, 8] must be steps above 1"),
        (
            ["training.grow=[10,20]", "training.grow_at=[9]", "training.parallel=fsdp"],
            "training: grow needs whole layers",
        ),
        (
            ["training.grow=[10,20]", "training.grow_at=[9]", "training.schedule=cosine"],
            "training: grow restarts schedule",
        ),
        (
            ["training.grow=[10,19]", "training.grow_at=[9]"],
            "training.grow ends with 19 layers, but model.encoder.num_layers = 20",
        ),
        (
            ["training.r_drop=5.0", "training.parallel=fsdp"],
            'training: r_drop = 5.0 does not work with parallel = "fsdp"',
        ),
        (["training.r_drop=5.0", "training.sampled_softmax=9"], "r_drop = 5.0 does not work with sampled_softmax"),
        (
            ["model.encoder.layer_dropout=0.1", "training.parallel=fsdp"],
            "model.encoder.layer_dropout makes ranks skip different layers, which does not work",
        ),
        (
            ["training.grow=[10,20]", "training.grow_at=[9]", "model.encoder.connection=fusion"],
            "training.grow does not support encoder.connection = 'fusion'; use one of residual",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_refusals(overrides, message):
    with pytest.raises(InputError) as refused:
        load_recipe("en-de-pre-20l", overrides)
    assert message in str(refused.value)
