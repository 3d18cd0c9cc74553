"""`deepnmt inspect` as its user meets it."""

import json

import torch
from pytest import fixture, mark

from deepnmt.analysis.size import measure
from deepnmt.cli import main
from deepnmt.config import load_recipe, preset_names
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.storage import save_model
from deepnmt.model.transformer import Transformer


@fixture
def inspect(capsys):
    def call(*arguments):
        status = main(["inspect", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def tiny(**changes):
    stack = StackConfig(num_layers=2, dim=8, ffn_dim=16, num_heads=2)
    return ModelConfig(source_vocab_size=20, target_vocab_size=30, encoder=stack, decoder=stack, **changes)


def test_size_prints_every_part_and_fits_eighty_columns(inspect):
    status, out, err = inspect("size", "en-de-pre-dlcl-30l")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    table = {" ".join(line.split()[:-1]): line for line in out.splitlines()}
    for line in (
        "embedding source and target 17,408,000",
        "encoder self-attention 31,518,720 23.0%",
        "feed-forward 62,991,360 45.9%",
        "cross-attention 6,303,744 4.6%",
        "output projection (tied) 0",
        "total 137,243,634 100.0%",
    ):
        assert line in table, out


@mark.parametrize("name", preset_names())
def test_parts_sum_to_the_parameters_of_the_model_for_every_preset(name):
    config = load_recipe(name).model
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in Transformer(config).parameters())
    assert sum(part.parameters for part in measure(config)) == parameters


@mark.parametrize("kind", CONNECTIONS)
def test_parts_tell_the_connection_from_the_rest(kind):
    stack = StackConfig(num_layers=2, dim=8, ffn_dim=16, num_heads=2, connection=CONNECTIONS[kind].Config())
    config = tiny()
    config = ModelConfig(**{**vars(config), "encoder": stack})
    expected = sum(parameter.numel() for parameter in Transformer(config).encoder.connection.parameters())
    parts = {(part.stack, part.name): part.parameters for part in measure(config)}
    assert parts.get(("encoder", "connection"), 0) == expected


def test_size_by_hand():
    parts = {
        (part.stack, part.name): (part.parameters, part.flops)
        for part in measure(tiny(positions="learned", max_positions=10, tie_output=False))
    }
    assert parts == {
        ("embedding", "source"): (160, 0),
        ("embedding", "target"): (240, 0),
        ("embedding", "positions, source"): (96, 0),
        ("embedding", "positions, target"): (96, 0),
        ("encoder", "self-attention"): (2 * (4 * 64 + 32), 2 * 2 * 4 * 64),
        ("encoder", "feed-forward"): (2 * (2 * 128 + 24), 2 * 2 * 2 * 128),
        ("encoder", "norms"): (5 * 16, 0),
        ("decoder", "self-attention"): (2 * (4 * 64 + 32), 2 * 2 * 4 * 64),
        ("decoder", "cross-attention"): (2 * (4 * 64 + 32), 2 * 2 * 4 * 64),
        ("decoder", "feed-forward"): (2 * (2 * 128 + 24), 2 * 2 * 2 * 128),
        ("decoder", "norms"): (7 * 16, 0),
        ("output", "projection"): (240, 480),
    }


def test_json_has_the_same_numbers_and_overrides_may_come_last(inspect):
    status, out, _ = inspect("size", "en-de-pre-base", "--json", "model.encoder.num_layers=30")
    report = json.loads(out)
    assert status == 0
    assert report["parameters"] == sum(part["parameters"] for part in report["parts"])
    assert report["flops_per_token"] == sum(part["flops"] for part in report["parts"])
    assert 136e6 < report["parameters"] < 138e6


def test_a_model_folder_has_a_size_and_takes_no_overrides(inspect, tmp_path):
    save_model(tmp_path, Transformer(tiny()))
    status, out, _ = inspect("size", tmp_path)
    assert status == 0
    assert "encoder  2 layers, residual, width 8, ffn 16, 2 heads" in out
    status, out, err = inspect("size", tmp_path, "model.norm=post")
    assert (status, out) == (2, "")
    expected = f"model.norm=post: {tmp_path} is a MODEL folder; only a recipe's settings can be overridden"
    assert err == f"deepnmt: {expected}\n"


def test_size_names_the_scheme_around_sublayers(inspect):
    assert inspect("size", "beyond-deepnorm")[1].startswith("beyond-deepnorm: deepnorm\nencoder  18 layers, residual,")
    assert inspect("size", "en-de-pre-base")[1].startswith("en-de-pre-base: pre-norm\nencoder  6 layers, residual,")
    mixed = inspect("size", "en-de-pre-base", "model.decoder.sublayer.kind=peri")[1]
    assert mixed.startswith("en-de-pre-base: pre-norm encoder, peri decoder\nencoder  6 layers, residual, width")


def test_size_with_the_vocabulary_of_a_dataset(inspect, tmp_path):
    text = tmp_path / "text"
    text.write_text("".join(f"a few words and number {i}\n" for i in range(50)))
    data = tmp_path / "data"
    assert main(["prepare", "--source", str(text), "--target", str(text), "--keep", "identical", "--source-lang", "en",
                 "--target-lang", "de", "--joint", "--vocab-size", "300", "--out", str(data)]) == 0  # fmt: skip
    symbols = json.loads((data / "dataset.json").read_text())["source_vocab_size"]
    inspect("size", "en-de-pre-base")  # what prepare printed is read away
    _, out, _ = inspect("size", "en-de-pre-base", "--data", data, "--json")
    _, expected, _ = inspect("size", "en-de-pre-base", "--json", *(
        f"model.{side}_vocab_size={symbols}" for side in ("source", "target")))  # fmt: skip
    assert json.loads(out)["parameters"] == json.loads(expected)["parameters"]
    save_model(tmp_path / "model", Transformer(tiny()))
    status, _, err = inspect("size", tmp_path / "model", "--data", data)
    assert status == 2
    assert "is a MODEL folder and has its own vocabulary" in err


def test_out_is_a_file(inspect, tmp_path):
    status, out, _ = inspect("size", "en-de-pre-base", "--out", tmp_path / "size.txt")
    assert (status, out) == (0, "")
    assert "total" in (tmp_path / "size.txt").read_text()


def test_refusals(inspect, tmp_path):
    for arguments, message in [
        (
            ["size", "en-de-pre-bas"],
            "en-de-pre-bas is neither a recipe file (.toml) nor one of the presets (`deepnmt presets`); "
            "did you mean en-de-pre-base?",
        ),
        (["size", tmp_path], f"{tmp_path} is not a MODEL folder: it has no meta.json"),
        (
            ["size", "en-de-pre-base", "model.encoder.num_layer=3"],
            "unknown setting model.encoder.num_layer; did you mean num_layers?",
        ),
        (["size"], "the following arguments are required: MODEL_OR_RECIPE"),
        (["sizes", "x"], "argument WHAT: invalid choice: 'sizes'"),
    ]:
        status, out, err = inspect(*arguments)
        assert (status, out) == (2, "")
        assert err.startswith(f"deepnmt: {message}"), err
        assert err.count("\n") == 1


def test_a_figure_that_cannot_be_drawn_is_refused_before_anything_is_measured(inspect, tmp_path, monkeypatch):
    monkeypatch.setattr("deepnmt.analysis.figures.find_spec", lambda name: None)
    status, _, err = inspect("gradients", "en-de-pre-20l", "--out", tmp_path / "gradients.png")
    assert status == 2 and "gradients.png needs matplotlib: pip install 'deepnmt[plot]'" in err
