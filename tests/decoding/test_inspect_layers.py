"""`deepnmt inspect layers`: its loss is that of `deepnmt likelihood`, in every form; what does not fit is refused."""

import csv
import json
import re

import pytest
from digits import reversed_digits

import deepnmt
from deepnmt.cli import main
from deepnmt.model.storage import load_model, save_model

SOURCES, TARGETS = zip(*reversed_digits(20, seed=7), strict=True)


@pytest.fixture
def files(tmp_path):
    for name, lines in (("source", SOURCES), ("reference", TARGETS)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return ["--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference")]


def call(model, *arguments):
    return main(["inspect", "layers", str(model), *map(str, arguments), "--device", "cpu", "--threads", "1"])


def test_the_loss_is_the_likelihoods(digits_model, files, capsys):
    _, source, _, reference = files
    report = deepnmt.inspect_layers(digits_model, source, reference, lines=10, device="cpu")
    found = deepnmt.likelihood(digits_model, source, reference, device="cpu")[::2]
    subwords = sum(len(one.pieces) for one in found)
    assert (report.sentences, report.target_subwords) == (10, subwords)
    assert report.loss == pytest.approx(-sum(one.log_prob for one in found) / subwords, abs=1e-6)
    assert report.loss < 0.5
    encoder, decoder = report.stacks
    assert min(layer.importance for use in report.stacks for layer in use.layers[1:]) > 0, "every layer helps"
    assert min(use.layers[1].exit_loss for use in (encoder, decoder)) > report.loss
    assert deepnmt.inspect_layers(digits_model, source, reference, lines=10, device="cpu") == report


def test_every_form(digits_model, files, tmp_path, capsys):
    assert call(digits_model, *files) == 0
    text = capsys.readouterr().out
    assert "2 layers, dlcl" in text and "20 pairs" in text and "2-layer decoder, similarity of outputs" in text
    table = re.findall(r"^ +([012])((?: +-?\d+\.\d+)+)$", text, re.MULTILINE)
    assert [int(layer) for layer, _ in table] == [0, 1, 2] * 2

    assert call(digits_model, *files, "--json", "--lines", 0) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["stacks"][0]["layers"]) == len(report["stacks"][0]["similarity"]) == 3
    out = tmp_path / "new" / "layers.csv"
    assert call(digits_model, *files, "--out", out) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    expected = report["stacks"][1]["layers"][1]
    assert float(rows[4]["importance"]) == pytest.approx(expected["importance"], rel=1e-4)
    for name in ("layers.svg", "layers.html"):
        assert call(digits_model, *files, "--out", tmp_path / name) == 0
        assert "Encoder: loss without the layer" in (tmp_path / name).read_text()
    assert not capsys.readouterr().out


def test_refusals(digits_model, files, tmp_path, capsys):
    empty, short, latin = (tmp_path / name for name in ("empty", "short", "latin"))
    empty.write_text("")
    short.write_text("eins\n")
    latin.write_bytes(b"eins\nf\xfcnf\n")
    for arguments, message in [
        ([digits_model], "inspect layers needs --source"),
        ([digits_model, *files[:2]], "inspect layers needs --reference"),
        ([digits_model, *files[:2], "--reference", short], "has 20 lines and"),
        ([digits_model, *files[:2], "--reference", latin], "latin, line 2: not valid UTF-8 at byte 2"),
        ([digits_model, "--source", empty, "--reference", empty], "is empty"),
        ([digits_model, *files, "--lines", -1], "--lines -1 must be at least 0"),
        ([digits_model, *files, "--target-lang", "fr"], "the model has no target language 'fr'"),
        ([digits_model, *files, "--out", tmp_path / "x.txt"], "the file name must end in"),
        ([digits_model, "model.norm=pre", *files], "inspect layers takes a MODEL folder and no overrides"),
        (["en-de-pre-base", *files], "the model folder en-de-pre-base does not exist"),
    ]:
        assert call(*arguments) == 2
        assert message in capsys.readouterr().err


def test_a_model_that_diverged_is_refused(digits_model, files, tmp_path, capsys):
    model = load_model(digits_model)
    model.encoder.layers[0].feed_forward.expand.weight.data[0, 0] = float("nan")
    save_model(tmp_path / "model", model)
    for side in ("source", "target"):
        name = f"tokenizer.{side}.json"
        (tmp_path / "model" / name).write_text((digits_model / name).read_text())
    assert call(tmp_path / "model", *files) == 2
    assert "not all weights of encoder.layers.0.feed_forward.expand.weight are numbers (NaN)" in capsys.readouterr().err
