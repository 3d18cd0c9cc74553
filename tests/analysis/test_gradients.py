"""How far the gradient comes: the norms are those of autograd, and post-norm's vanish where the others' do not."""

import csv
import json
import re
from dataclasses import replace

import torch
from corpora import corpus_of
from pytest import approx, fixture, mark

from deepnmt.analysis.config import GradientTrial
from deepnmt.analysis.gradients import arms, measure_gradients, narrowed, with_short_warmup
from deepnmt.analysis.training_speed import random_corpus, typical_lengths
from deepnmt.cli import main
from deepnmt.config import load_recipe
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.transformer import Transformer
from deepnmt.training.config import LoraConfig, TrainingConfig
from deepnmt.training.loss import label_smoothed_loss

torch.set_num_threads(1)
STACK = StackConfig(num_layers=3, dim=8, ffn_dim=16, num_heads=2)
MODEL = ModelConfig(source_vocab_size=12, target_vocab_size=12, encoder=STACK, decoder=STACK, dropout=0.0)
TRAINING = TrainingConfig(max_steps=10, lr=1e-2, warmup_steps=1)


@fixture
def corpora():
    return {"train": corpus_of([[5, 6, 7]] * 8, [[8, 9]] * 8)}


def test_the_norms_are_those_of_a_plain_backward_pass(corpora):
    found = measure_gradients("plain", MODEL, TRAINING, corpora, GradientTrial(tokens=32, steps=0))
    torch.manual_seed(TRAINING.seed)
    model = Transformer(MODEL).train()
    source, target = torch.tensor([[5, 6, 7, 2]] * 8), torch.tensor([[2, 8, 9]] * 8)
    outputs = []
    for layer in model.encoder.layers:
        layer.register_forward_hook(lambda module, given, output: outputs.append(output) or output.retain_grad())
    loss, _ = label_smoothed_loss(model(source, target), torch.tensor([[8, 9, 2]] * 8), 0.1, 1)
    (loss / 24).backward()
    assert found.steps[0].loss == approx(float(loss.detach()) / 24, rel=1e-5)
    for depth, layer in enumerate(model.encoder.layers):
        of_layer = torch.cat([p.grad.reshape(-1) for p in layer.parameters()]).norm()
        assert found.steps[0].parameters[depth] == approx(float(of_layer), rel=1e-4)
        assert found.steps[0].outputs[depth + 1] == approx(float(outputs[depth].grad.norm()), rel=1e-4)


@mark.parametrize("frozen", [{"freeze": ("encoder",)}, {"lora": LoraConfig(rank=2)}], ids=["freeze", "lora"])
def test_a_recipe_for_fine_tuning_is_measured_whole(corpora, frozen):
    trial = GradientTrial(tokens=32, steps=1)
    found = measure_gradients("tuned", MODEL, replace(TRAINING, **frozen), corpora, trial)
    assert found.steps == measure_gradients("plain", MODEL, TRAINING, corpora, trial).steps


def test_training_moves_the_model_between_the_steps(corpora):
    found = measure_gradients("moving", MODEL, TRAINING, corpora, GradientTrial(tokens=32, steps=6))
    assert [step.step for step in found.steps] == list(range(7))
    assert found.steps[-1].loss < found.steps[0].loss - 0.1


def test_the_gradient_of_a_deep_post_norm_encoder_vanishes_and_the_others_does_not():
    """The paper's section 5.1, in a few seconds."""
    recipe = load_recipe("en-de-pre-20l", ["model.source_vocab_size=200", "model.target_vocab_size=200"])
    model = narrowed(recipe.model, 32)
    training = with_short_warmup(recipe.training, 16)
    shares = {}
    corpora = {"random": random_corpus(typical_lengths(2000), model)}
    for name, arm in arms(model).items():
        found = measure_gradients(name, arm, training, corpora, GradientTrial(tokens=128, steps=16))
        shares[name] = (found.ratio(0), found.ratio(-1))
    assert shares["post-norm, residual"][0] > 0.1, "at initialisation it still arrives"
    assert shares["post-norm, residual"][1] < 0.03
    assert shares["pre-norm, residual"][1] > 0.5
    assert shares["post-norm, dlcl"][1] > 0.5


def test_arms_are_both_norms_and_both_connections_of_post_norm():
    residual = arms(MODEL)
    assert list(residual) == ["pre-norm, residual", "post-norm, residual", "post-norm, dlcl"]
    assert residual["post-norm, dlcl"].decoder.connection.kind == "dlcl"
    dlcl = replace(MODEL, encoder=replace(STACK, connection=residual["post-norm, dlcl"].encoder.connection))
    assert list(arms(dlcl)) == ["pre-norm, dlcl", "post-norm, dlcl", "post-norm, residual"]


def test_a_recipe_with_another_scheme_is_an_arm_beside_pre_norm_and_post_norm():
    model = load_recipe("beyond-peri").model
    kinds = {name: arm.sublayer_of(arm.encoder).kind for name, arm in arms(model).items()}
    assert kinds == {
        "peri, residual": "peri",
        "pre-norm, residual": "pre",
        "post-norm, residual": "post",
        "post-norm, dlcl": "post",
    }


def test_a_narrow_model_keeps_its_depth_and_its_ratios():
    narrow = narrowed(load_recipe("en-de-pre-base-big-encoder").model, 32)
    assert (narrow.encoder.dim, narrow.encoder.ffn_dim, narrow.decoder.dim, narrow.decoder.ffn_dim) == (
        64,
        256,
        32,
        128,
    )
    assert narrow.encoder.num_layers == 6


SMALL = ["en-de-pre-base", "model.encoder.num_layers=2", "model.decoder.num_layers=1", "--width", "16", "--steps", "2"]


def call(*arguments):
    return main(["inspect", "gradients", *map(str, arguments)])


def test_the_table_has_every_layer_of_every_model(capsys):
    assert call(*SMALL) == 0
    out = capsys.readouterr().out
    assert "encoder  2 layers, residual, width 16" in out
    assert re.search(r"^2( +\d\.\d\de[+-]\d\d){6}$", out, re.MULTILINE)
    assert "bottom/top" in out


@mark.parametrize("name", ["g.png", "g.html", "g.csv"])
def test_the_plot_and_the_page_are_written(name, tmp_path, capsys):
    assert call(*SMALL, "--out", tmp_path / name) == 0
    content = (tmp_path / name).read_bytes()
    if name == "g.png":
        assert content.startswith(b"\x89PNG")
    elif name == "g.html":
        assert content.count(b"<svg") == 3 and b"post-norm, dlcl" in content
    else:
        rows = list(csv.DictReader((tmp_path / name).read_text().splitlines()))
        assert len(rows) == 3 * 3 * 3
        assert {row["parameter_gradient_norm"] == "" for row in rows if row["layer"] == "0"} == {True}
    capsys.readouterr()


def test_json_holds_every_norm(capsys):
    assert call(*SMALL, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(one["steps"]) for one in found] == [3, 3, 3]
    assert len(found[0]["steps"][0]["outputs"]) == 3


def test_refusals(tmp_path, capsys):
    for arguments, message in [
        (["en-de-pre-base", "--out", tmp_path / "g.txt"], "the file name must end in"),
        (["en-de-pre-base", "--data", tmp_path], f"{tmp_path} is not a dataset"),
        (["en-de-pre-base", "--steps", "-1"], "--steps -1 must be at least 0"),
        (["en-de-pre-base", "--width", "15"], "--width 15: dim = 15 must be even"),
        (["en-de-pre-bose"], "did you mean en-de-pre-base?"),
    ]:
        assert call(*arguments) == 2, arguments
        assert message in capsys.readouterr().err
