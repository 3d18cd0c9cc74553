"""`deepnmt bench generate`: it measures what it says; how fast that is, is no business of a test."""

import importlib
import json
from pathlib import Path

import pytest

from deepnmt.analysis.config import Workload
from deepnmt.analysis.generation_speed import depth_variants
from deepnmt.api.bench import bench_generation
from deepnmt.cli import main
from deepnmt.config import load_recipe
from deepnmt.errors import InputError

TINY = [
    *(
        f"model.{side}.{name}={value}"
        for side in ("encoder", "decoder")
        for name, value in (("dim", 16), ("ffn_dim", 32))
    ),
    *(f"model.{side}.num_heads=2" for side in ("encoder", "decoder")),
    *(f"model.{side}_vocab_size=300" for side in ("source", "target")),
]
QUICK = ["--batch", "2", "--length", "3", "--repeats", "1", "--threads", "1"]


@pytest.mark.parametrize("options", [["--beam", "1"], ["--precision", "int8"], ["--workers", "2", "--beam", "2"]])
def test_every_depth_is_measured(capsys, options):
    depths = ["--encoder-layers", "1", "3", "--decoder-layers", "2"]
    command = ["bench", "generate", "en-de-pre-dlcl-30l", *TINY, *QUICK, *depths, *options, "--device", "cpu", "--json"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(s["encoder_layers"], s["decoder_layers"]) for s in report["speeds"]] == [(1, 6), (3, 6), (30, 2)]
    assert all(speed["tokens_per_second"] > 0 for speed in report["speeds"])
    assert report["batch"] == 2


def test_the_table_has_a_line_for_the_preset(capsys):
    assert main(["bench", "generate", "en-de-pre-base", *TINY, *QUICK, "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[2].split()[:2] == ["6", "6"]


def test_depths_change_one_side_at_a_time():
    config = load_recipe("en-de-pre-base").model
    assert depth_variants(config, [], []) == [config]
    variants = depth_variants(config, [16, 30], [4])
    assert [(v.encoder.num_layers, v.decoder.num_layers) for v in variants] == [(16, 6), (30, 6), (6, 4)]


def test_training_speed_is_json_without_nan(capsys):
    command = ["bench", "train", "en-de-pre-base", *TINY, "--tokens", "64", "--steps", "1", "--device", "cpu"]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("64 tokens per step, plain torch")
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert report["tokens_per_second"] > 0 and report["memory_gib"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "en-de-pre-bas"], "did you mean en-de-pre-base"),
        (["train", "en-de-pre-base", "--precision", "int8"], "training.precision is 'int8', not one of"),
        (["generate", "en-de-pre-base", "--beam", "0"], "--beam 0 must be at least 1"),
        *(
            ([mode, "en-de-pre-base", "model.share_embeddings=false", "model.source_vocab_size=4"], "leaves no symbols")
            for mode in ("train", "generate")
        ),
        (["generate", "en-de-pre-base", "--encoder-layers", "0"], "num_layers = 0 must be at least 1"),
        (["generat", "en-de-pre-base"], "argument mode: invalid choice: 'generat'"),
    ],
)
def test_refusals_are_one_sentence(capsys, arguments, message):
    assert main(["bench", *arguments, "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_workers_are_refused_on_a_gpu(monkeypatch):
    """They are forked, which CUDA does not survive."""
    monkeypatch.setattr("deepnmt.api.bench.choose_device", lambda asked: asked)
    with pytest.raises(InputError, match="workers = 2 is for the CPU, where each worker has a core; use one on cuda"):
        bench_generation("en-de-pre-base", TINY, workload=Workload(workers=2), device="cuda")


def test_the_benchmark_of_a_whole_file_still_runs(capsys, monkeypatch):
    """Its tokeniser of numbers stands in for a real one, so it must have whatever a translation asks of one."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    monkeypatch.setattr("deepnmt.devices.tune_for_translation", lambda: None)  # it would tune the other tests too
    options = ["--lines", "3", "--rounds", "1", "--threads", "1", "--presets", "en-de-pre-base", "--peers"]
    monkeypatch.setattr("sys.argv", ["translate_file.py", *options, "--precisions", "fp32", "--overrides", *TINY])
    importlib.import_module("translate_file").main()
    assert capsys.readouterr().out.startswith("1: deepnmt en-de-pre-base fp32, beam 4")
