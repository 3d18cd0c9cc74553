"""The demo from end to end in small: it shows what it made, reuses what is there, and does not start over."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from deepnmt.analysis import demo_report
from deepnmt.cli import main
from deepnmt.commands import demo, demo_plan

RECIPE = """
[model]
source_vocab_size = 10
target_vocab_size = 10
share_embeddings = true
[model.encoder]
num_layers = 3
dim = 16
ffn_dim = 32
num_heads = 2
connection = "dlcl"
[model.decoder]
num_layers = 1
dim = 16
ffn_dim = 32
num_heads = 2
connection = "dlcl"
[batching]
tokens_per_batch = 256
[training]
max_steps = 100
schedule = "warmup_stable_decay"
tokens_per_update = 256
warmup_steps = 30
decay_steps = 15
log_every = 5
validate_every = 30
save_every = 30
tensorboard = false
"""
NAMES = ["light", "door", "window", "switch", "sensor", "heater"]
GERMAN = ["Licht", "Tor", "Fenster", "Schalter", "Sensor", "Heizgerät"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A demo folder whose corpus is already there, so that nothing is downloaded."""
    corpus = tmp_path / "demo" / "corpus-de"
    corpus.mkdir(parents=True)
    for split, numbers in {"train": range(200), "valid": range(300, 310), "test": range(400, 420)}.items():
        lines = [(n, NAMES[n % 6], GERMAN[n % 6]) for n in numbers]
        english = [f"Turn the {name} number {n} on or off now" for n, name, _ in lines]
        german = [f"Schalte das {name} Nummer {n} jetzt ein oder aus" for n, _, name in lines]
        (corpus / f"{split}.en").write_text("\n".join(english) + "\n", encoding="utf-8")
        (corpus / f"{split}.de").write_text("\n".join(german) + "\n", encoding="utf-8")
    (corpus / "corpus.json").write_text("{}", encoding="utf-8")
    (tmp_path / "tiny.toml").write_text(RECIPE, encoding="utf-8")
    monkeypatch.setattr(demo_plan, "STEPS", {"cpu": (28, 28)})
    monkeypatch.setattr(demo, "VOCABULARY", 300)
    monkeypatch.setattr(demo_plan, "MOST_PROCESSES", 1)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_whole_way_and_then_only_what_is_missing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["demo", "--recipe", "tiny.toml", "--device", "cpu"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "$ deepnmt prepare" in shown.err and "$ deepnmt train" in shown.err and "$ deepnmt evaluate" in shown.err
    assert "|tok:13a|" in shown.out and "chrF2|" in shown.out
    assert shown.out.count("\n  > ") == demo.EXAMPLES
    assert "deepnmt translate demo/run-de/model" in shown.out
    report = (folder / "demo" / "report.html").read_text(encoding="utf-8")
    assert "What each layer listens to" in report and report.count("<svg") == 4
    assert "http://" not in report.replace("http://www.w3.org/2000/svg", "") and "<script src" not in report

    assert main(command) == 0
    again = capsys.readouterr()
    assert "$ deepnmt" not in again.err
    assert shown.out.endswith(again.out)


def test_an_interrupted_demo_goes_on_with_its_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["demo", "--recipe", "tiny.toml", "--device", "cpu"]
    assert main(command) == 0
    plan = folder / "demo" / "plan-de.json"
    steps = json.loads(plan.read_text(encoding="utf-8"))["steps"]
    assert steps == 28
    for path in (folder / "demo" / "run-de" / "model").iterdir():
        path.unlink()  # as if it had been stopped after training
    (folder / "demo" / "run-de" / "model").rmdir()
    capsys.readouterr()
    assert main([*command, "--seconds", "1"]) == 0  # the plan that was made counts, not a new one
    assert f"training.max_steps={steps}" in capsys.readouterr().err


def test_a_demo_that_is_told_to_stop_ends_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    monkeypatch.setattr(demo, "_train_to", lambda steps, *_: begun.append(steps))  # stopped, and saved
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "--recipe", "tiny.toml", "--device", "cpu"])
    assert stopped.value.code == 1
    assert begun == [14], "the second part does not begin without the first"


def test_several_processes_are_used_where_they_can_meet(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_plan, "MOST_PROCESSES", 2)
    monkeypatch.setattr("deepnmt.devices.available_cores", lambda: 8)
    assert main(["demo", "--recipe", "tiny.toml", "--device", "cpu"]) == 0
    plan = json.loads((folder / "demo" / "plan-de.json").read_text(encoding="utf-8"))
    assert plan["processes"] == 2 and plan["seconds"] > 0
    assert "$ torchrun --standalone --nproc-per-node 2 --no-python deepnmt train tiny.toml" in capfd.readouterr().err
    assert (folder / "demo" / "run-de" / "model" / "meta.json").is_file()
    assert not (folder / "demo" / "trial").exists()


def test_one_process_is_used_where_several_cannot_meet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_plan, "MOST_PROCESSES", 2)
    monkeypatch.setattr("deepnmt.devices.available_cores", lambda: 8)
    monkeypatch.setattr(demo_plan, "launch", lambda *_, **__: 1)
    assert main(["demo", "--recipe", "tiny.toml", "--device", "cpu"]) == 0
    assert json.loads((folder / "demo" / "plan-de.json").read_text(encoding="utf-8"))["processes"] == 1


PLAN = demo_plan.Plan(
    recipe="demo", device="cpu", precision="fp32", processes=1, budget=400.0, steps=1200, first=600, decay=600,
    warmup=100, seconds=400.0,
)  # fmt: skip


@pytest.mark.parametrize("text", ['{"recipe": ', '{"recipe": "demo", "steps": 2020}', "[]"])
def test_a_plan_that_cannot_be_read_is_refused_in_a_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (folder / "demo" / "plan-de.json").write_text(text, encoding="utf-8")
    assert main(["demo", "--recipe", "tiny.toml", "--device", "cpu"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("deepnmt: demo/plan-de.json is damaged or of another version; remove it and demo/run-de")


@pytest.mark.parametrize(("per_step", "steps"), [(1 / 6, 2284), (1 / 3, 1140), (1 / 2, 900)])
def test_the_second_part_fills_the_time_that_the_first_has_left(per_step: float, steps: int) -> None:
    plan = PLAN.with_second(per_step)
    assert plan.steps == steps
    assert (plan.first, plan.decay) == (0, steps - 600)
    assert plan.seconds == pytest.approx(demo_plan.OVER_TRIAL * per_step * plan.decay)
    assert plan.steps >= 900, "the rate needs time to fall"


def test_what_is_compiled_at_the_start_does_not_count_as_the_speed(tmp_path: Path) -> None:
    def log(*seconds: float) -> float:
        lines = [{"kind": "train", "step": 50 * (number + 1), "tokens": 1000, "tokens_per_second": 1000 / taken}
                 for number, taken in enumerate(seconds)]  # fmt: skip
        text = "\n".join(map(json.dumps, [*lines, {"kind": "validation", "step": 100}]))
        (tmp_path / "log.jsonl").write_text(text, encoding="utf-8")
        return demo_plan.seconds_per_step(tmp_path)

    assert log(40.0, 0.5, 1.5) == pytest.approx(0.02)
    assert log(40.0) == pytest.approx(0.8), "all that is known"


def test_a_gpu_is_not_tried_beforehand_but_measured_in_the_first_part(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []
    monkeypatch.setattr(demo_plan, "STEPS", {"cuda": (20, 60)})
    monkeypatch.setattr(demo_plan, "FIRST_ON_GPU", 16)
    monkeypatch.setattr(demo_plan, "_try_on_cpu", lambda *_: pytest.fail("a trial"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    train_to = demo._train_to

    def on_the_cpu(steps: int, decay: int, plan: demo_plan.Plan, data: Path, run: Path) -> None:
        begun.append((steps, decay))
        train_to(steps, decay, replace(plan, device="cpu"), data, run)

    monkeypatch.setattr(demo, "_train_to", on_the_cpu)
    monkeypatch.setattr(demo, "_evaluate", lambda made, _: pytest.fail("as far as it goes here"))
    with pytest.raises(pytest.fail.Exception, match="as far"):
        main(["demo", "--recipe", "tiny.toml", "--device", "cuda", "--seconds", "600"])
    assert begun == [(16, 1), (60, 44)], "as many as the time has room for, and no more than needed"


def test_the_rate_stays_in_the_first_part_and_falls_in_the_second() -> None:
    from deepnmt.config import load_recipe
    from deepnmt.training.schedule import learning_rate

    first = load_recipe("demo", PLAN.schedule(500, 1)).training
    second = load_recipe("demo", PLAN.schedule(1000, 500)).training
    assert {learning_rate(step, first) for step in range(100, 500)} == {first.lr}
    assert learning_rate(500, second) == second.lr
    assert learning_rate(999, second) == pytest.approx(second.lr / 500)


def test_half_precision_is_left_alone_where_it_is_emulated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = RECIPE.replace("[training]", '[training]\nprecision = "bf16"')
    (folder / "tiny.toml").write_text(half, encoding="utf-8")
    for name, fast, expected in (("fast", True, "bf16"), ("slow", False, "fp32")):
        monkeypatch.setattr(demo_plan, "_multiplies_bf16", lambda fast=fast: fast)
        (folder / name).mkdir()
        (folder / name / "corpus-de").symlink_to(folder / "demo" / "corpus-de")
        assert main(["demo", "--recipe", "tiny.toml", "--device", "cpu", "--out", name]) == 0
        assert json.loads((folder / name / "plan-de.json").read_text(encoding="utf-8"))["precision"] == expected
        assert f'precision = "{expected}"' in (folder / name / "run-de" / "recipe.toml").read_text(encoding="utf-8")


def _longer(plan: demo_plan.Plan) -> demo_plan.Plan:
    return replace(plan, steps=plan.steps + 4, decay=plan.decay + 4)


def test_the_baselines_figure_is_kept_and_then_shown_for_its_language_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The baseline's run, which learns no connection weights, writes the file that the demo reads."""
    monkeypatch.setattr(demo_report, "BASELINES", folder)
    stored = demo_report.baseline_file("cpu")
    monkeypatch.setattr(demo, "BASELINES", {"cpu": "tiny.toml"})
    second = demo_plan.Plan.with_second
    monkeypatch.setattr(demo_plan.Plan, "with_second", lambda plan, per_step: _longer(second(plan, per_step)))
    (folder / "tiny.toml").write_text(RECIPE.replace('connection = "dlcl"\n', ""), encoding="utf-8")
    command = ["demo", "--recipe", "tiny.toml", "--device", "cpu"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "6-layer" not in shown.out and "baseline.json is the figure" in shown.err
    assert "What each layer listens to" not in (folder / "demo" / "report.html").read_text(encoding="utf-8")
    kept = json.loads((folder / "demo" / "baseline.json").read_text(encoding="utf-8"))
    plan = demo_plan.Plan.read(folder / "demo" / "plan-de.json")
    assert kept["steps"] == plan.steps, "those that it was trained for, which the first part decides"

    (folder / "demo" / "baseline.json").rename(stored)
    monkeypatch.setattr(demo, "RECIPES", {"cpu": "tiny.toml"})
    monkeypatch.setattr(demo, "BASELINES", {"cpu": "demo-baseline"})
    assert main(command) == 0
    figures = json.loads(stored.read_text(encoding="utf-8"))
    line = f"6-layer post-norm Transformer in the same time: BLEU {figures['bleu']:.1f}, chrF2 {figures['chrf']:.1f}"
    report = (folder / "demo" / "report.html").read_text(encoding="utf-8")
    assert line in capsys.readouterr().out
    assert line in report and figures["signatures"]["bleu"] in report and figures["command"] in report
    assert demo_report.Baseline.stored("de", "cpu") is not None
    assert demo_report.Baseline.stored("fr", "cpu") is None and demo_report.Baseline.stored("de", "cuda") is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_stored_figures_are_what_the_demo_can_read(device: str) -> None:
    found = demo_report.Baseline.stored("de", device)
    assert found is not None and (found.device, found.recipe) == (device, demo.BASELINES[device])


def test_what_cannot_be_done_is_refused_before_anything_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    before = sorted(folder.rglob("*"))
    for words, message in [
        (["--target", "en"], "--target en"),
        (["--seconds", "0"], "--seconds is 0: it must be at least 1"),
        (["--device", "cuda"], "device cuda: torch sees no GPU"),
    ]:
        assert main(["demo", *words]) == 2
        assert message in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before
