"""The demo from end to end in small: it shows what it made, makes only what is missing, and resumes."""

import json
import shutil
import sys
from dataclasses import replace

import pytest

from deepnmt.cli import main
from deepnmt.config import load_recipe
from deepnmt.demo import course, plan
from deepnmt.demo.course import DemoSettings, run_demo
from deepnmt.demo.plan import Plan, training_seconds
from deepnmt.demo.report import examples, show, write_report
from deepnmt.errors import InputError
from deepnmt.training.schedule import learning_rate

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
[batching]
tokens_per_batch = 256
[training]
max_steps = 100
schedule = "warmup_stable_decay"
tokens_per_update = 256
warmup_steps = 10
decay_steps = 5
log_every = 5
validate_every = 30
save_every = 30
tensorboard = false
"""
NAMES = {"light": "Licht", "door": "Tor", "window": "Fenster", "switch": "Schalter", "sensor": "Sensor"}
PLAN = Plan(
    recipe="demo", device="cpu", minutes=9.0, precision="fp32", processes=1, steps=1200, first=600, decay=600,
    warmup=100, seconds=450.0,
)  # fmt: skip


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """A demo whose corpus is already there, so that nothing is downloaded, and which trains in this process."""
    corpus = tmp_path / "demo" / "corpus-de"
    corpus.mkdir(parents=True)
    for split, numbers in {"train": range(200), "valid": range(300, 310), "test": range(400, 420)}.items():
        lines = [(n, *list(NAMES.items())[n % 5]) for n in numbers]
        english = [f"Turn the {name} number {n} on or off now" for n, name, _ in lines]
        german = [f"Schalte das {name} Nummer {n} jetzt ein oder aus" for n, _, name in lines]
        (corpus / f"{split}.en").write_text("\n".join(english) + "\n", encoding="utf-8")
        (corpus / f"{split}.de").write_text("\n".join(german) + "\n", encoding="utf-8")
    (corpus / "corpus.json").write_text("{}", encoding="utf-8")
    (tmp_path / "tiny.toml").write_text(RECIPE, encoding="utf-8")
    monkeypatch.setattr(course, "launch", train_here)
    monkeypatch.setattr(plan, "launch", train_here)
    monkeypatch.setitem(plan.STEPS, "cpu", (30, 12_000))
    return DemoSettings(
        out=tmp_path / "demo", minutes=0.02, recipe=str(tmp_path / "tiny.toml"), device="cpu", vocab_size=300,
        max_processes=1,
    )  # fmt: skip


def train_here(processes, words, quietly=False):
    assert processes == 1
    return main(["train", *map(str, words)])


def test_the_whole_way_with_its_baseline_and_then_only_what_is_missing(settings, monkeypatch, capsys):
    beside = settings.out.parent / "beside.toml"
    beside.write_text(RECIPE.replace('connection = "dlcl"\n', ""), encoding="utf-8")
    monkeypatch.setitem(course.BASELINES, "cpu", str(beside))
    demo = run_demo(replace(settings, with_baseline=True))
    shown = capsys.readouterr().err
    assert "$ deepnmt prepare" in shown and "$ deepnmt evaluate" in shown
    assert demo.num_lines == 20 and "|tok:13a|" in demo.scores["bleu"]["signature"]
    assert demo.baseline is not None and demo.baseline.steps > 0
    assert not (settings.out / "trial").exists()

    show(demo, 4)
    printed = capsys.readouterr().out
    assert printed.count("\n  > ") == 4 and "updates, trained here for the same time)" in printed
    report = write_report(demo, 4).read_text(encoding="utf-8")
    assert "Learned layer weights" in report and report.count("<svg") == 3
    assert "http://" not in report.replace("http://www.w3.org/2000/svg", "") and "<script src" not in report

    monkeypatch.setattr(course, "launch", lambda *_, **__: pytest.fail("trained again"))
    assert run_demo(settings) == demo
    assert "$ deepnmt" not in capsys.readouterr().err


def test_an_interrupted_demo_resumes_its_plan(settings, capsys):
    run_demo(settings)
    path = settings.out / "plan-de.json"
    before = path.read_text(encoding="utf-8")
    shutil.rmtree(settings.out / "run-de" / "model")  # as if it had been stopped after training
    (settings.out / "run-de" / "scores.json").unlink()
    run_demo(settings)
    assert path.read_text(encoding="utf-8") == before


def test_a_demo_that_is_stopped_ends_there(settings, monkeypatch):
    started = []
    path = settings.out / "plan-de.json"
    replace(PLAN, recipe=settings.recipe, minutes=settings.minutes).write(path)
    monkeypatch.setattr(course, "launch", lambda _, words: started.append(words[1]) or 130)
    with pytest.raises(SystemExit) as stopped:
        run_demo(settings)
    assert stopped.value.code == 130
    assert started == ["training.max_steps=600"], "the second part does not start without the first"


def test_sigterm_ends_the_training_and_then_the_demo(tmp_path, monkeypatch):
    """Also while the demo measures the speed, where a failure alone would be tried again with one process."""
    training = tmp_path / "python"
    training.write_text("#!/bin/sh\nkill -TERM $PPID\nexec sleep 100\n")
    training.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(training))
    with pytest.raises(SystemExit) as stopped:
        plan.try_speed("demo", "fp32", 2, tmp_path / "data", tmp_path / "trial")
    assert stopped.value.code == 143


def test_processes_train_together_and_one_does_where_they_cannot_connect(settings, monkeypatch):
    tried = []

    def launch(processes, words, quietly=False):
        tried.append(processes)
        return 1 if processes > 1 else train_here(processes, words)

    monkeypatch.setattr(plan, "launch", launch)
    monkeypatch.setattr(plan, "available_cores", lambda: 8)
    run_demo(replace(settings, max_processes=2))
    assert tried == [2, 1] and Plan.read(settings.out / "plan-de.json").processes == 1


def test_two_processes_really_train(settings, monkeypatch, capfd):
    monkeypatch.undo()
    data, run = settings.out / "data-de", settings.out / "run-de"
    course._prepare(settings.out / "corpus-de", data, "de", settings.vocab_size)
    overrides = [
        f"training.{name}" for name in ("max_steps=4", "warmup_steps=1", "decay_steps=1", "validation_lines=0")
    ]
    assert plan.launch(2, [settings.recipe, *overrides, "--data", data, "--out", run, "--device", "cpu"]) == 0
    assert "$ torchrun --standalone --nproc-per-node 2 --no-python deepnmt train" in capfd.readouterr().err
    assert (run / "model" / "meta.json").is_file()


@pytest.mark.parametrize("text", ['{"recipe": ', '{"recipe": "demo", "steps": 2020}', "[]"])
def test_a_plan_that_cannot_be_read_is_refused_in_a_sentence(settings, text):
    (settings.out / "plan-de.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"plan-de.json is damaged or was written by another version; remove"):
        run_demo(settings)


@pytest.mark.parametrize(("per_step", "steps"), [(1 / 6, 2568), (1 / 3, 1284), (1 / 2, 900)])
def test_the_second_part_fills_the_time_that_the_first_has_left(per_step, steps):
    found = PLAN.with_rest(per_step)
    assert found.steps == steps and (found.first, found.decay) == (0, steps - 600)
    assert found.seconds == pytest.approx(plan.OVERHEAD * per_step * found.decay)


@pytest.mark.parametrize(("minutes", "device", "seconds"), [(12, "cpu", 630), (2, "cpu", 48), (1, "cuda", 25)])
def test_training_gets_what_the_rest_does_not_need(minutes, device, seconds):
    assert training_seconds(minutes, device) == pytest.approx(seconds)


def test_compiling_at_the_start_does_not_count_as_the_speed(tmp_path):
    def log(*seconds):
        lines = [{"kind": "train", "step": 50 * (number + 1), "tokens": 1000, "tokens_per_second": 1000 / taken}
                 for number, taken in enumerate(seconds)]  # fmt: skip
        text = "".join(json.dumps(line) + "\n" for line in [*lines, {"kind": "validation", "step": 100}])
        (tmp_path / "log.jsonl").write_text(text, encoding="utf-8")
        return plan.seconds_per_step(tmp_path)

    assert log(40.0, 0.5, 1.5) == pytest.approx(0.02)
    assert log(40.0) == pytest.approx(0.8), "all that is known"


def test_a_gpu_is_measured_in_the_first_part_instead_of_a_trial(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "try_speed", lambda *_: pytest.fail("a trial"))
    made = plan.make_plan("demo-gpu", "cuda", 1.0, tmp_path, tmp_path / "trial")
    assert made.first == plan.FIRST_ON_GPU and made.processes == 1
    assert made.with_rest(0.005).steps == 4760


def test_the_learning_rate_stays_in_the_first_part_and_falls_in_the_second():
    first = load_recipe("demo", PLAN.overrides(500, 1)).training
    second = load_recipe("demo", PLAN.overrides(1000, 500)).training
    assert {learning_rate(step, first) for step in range(100, 500)} == {first.lr}
    assert learning_rate(500, second) == second.lr
    assert learning_rate(999, second) == pytest.approx(second.lr / 500)


@pytest.mark.parametrize(("fast", "precision"), [(True, "bf16"), (False, "fp32")])
def test_half_precision_is_avoided_where_it_is_emulated(tmp_path, monkeypatch, fast, precision):
    monkeypatch.setattr(plan, "multiplies_bf16", lambda: fast)
    monkeypatch.setattr(plan, "try_speed", lambda *_: 0.5)
    made = plan.make_plan("demo", "cpu", 12.0, tmp_path, tmp_path / "trial")
    assert made.precision == precision
    assert (made.steps, made.first) == (1200, 600)


def test_other_settings_than_those_of_the_demo_that_is_there_are_refused(settings):
    PLAN.write(settings.out / "plan-de.json")
    with pytest.raises(InputError, match=r"holds a demo with --minutes 9.0, not 0.02; choose another --out"):
        run_demo(settings)


def test_impossible_settings_are_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    for words, message in [
        (["--target", "en"], "--target en"),
        (["--minutes", "0"], "--minutes 0 must be above 0"),
        (["--device", "cuda"], "device cuda: torch sees no GPU"),
        (["--recipe", "nosuch"], "nosuch is neither a recipe file (.toml) nor one of the presets"),
    ]:
        assert main(["demo", *words]) == 2
        assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_examples_are_spread_over_sentences_of_middling_length(settings):
    corpus, run = settings.out / "corpus-de", settings.out / "run-de"
    run.mkdir()
    shutil.copy(corpus / "test.de", run / "test.de")
    demo = course.Demo(target="de", folder=settings.out, scores={}, num_lines=20, baseline=None)
    chosen = examples(demo, 5)
    assert len(chosen) == 5 and chosen[0][1] == chosen[0][2] and len({source for source, _, _ in chosen}) == 5
