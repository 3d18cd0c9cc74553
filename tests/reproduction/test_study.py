"""A study from end to end: killed in the middle, gone on with, scored later, reported; and what it refuses."""

import errno
import fcntl
import json
import re
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import two_arms
from processes import Process
from pytest import MonkeyPatch, fixture, raises

from deepnmt.cli import main
from deepnmt.errors import InputError, RunError
from deepnmt.files import write_json
from deepnmt.reproduction import steps
from deepnmt.reproduction.processes import _claim, work
from deepnmt.reproduction.runs import PlannedRun
from deepnmt.reproduction.scales import SCALES
from deepnmt.reproduction.steps import Setup, do_run, next_step
from deepnmt.reproduction.study import Study, TestSet, read_step
from deepnmt.training.curves import read_log
from deepnmt.training.diagnosis import TrainingError

ROOT = Path(__file__).parents[2]
SHORT = ["training.max_steps=40", "training.save_every=4", "training.validate_every=20", "training.log_every=2"]


@fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    two_arms.write_corpus(folder / "toy")
    return folder


@fixture(autouse=True)
def one_core(monkeypatch):
    """Scores are computed in this process, which need not import everything again."""
    monkeypatch.setattr("deepnmt.devices.available_cores", lambda: 1)


def arguments(place, out="out", *more):
    data = ["--data", str(place / "toy" / "data"), "--out", str(place / out)]
    return ["reproduce", "two", *SHORT, "--scale", "tiny", "--device", "cpu", *data, *more]


def kill_in_second_run(place):
    """Runs in a process of its own until the second run has been training a while; returns both runs' folders."""
    runs = place / "out" / "runs"
    deadline = time.monotonic() + 240
    with Process(two_arms.deepnmt, arguments(place)) as process:
        while True:
            folders = sorted(runs.glob("*-s1-*"), key=lambda path: path.stat().st_ctime) if runs.is_dir() else []
            second = next((f for f in folders if not (f / "train.json").exists()), None)
            finished = [f for f in folders if (f / "decode.json").exists()]
            if finished and second and len(list((second / "training" / "checkpoints").glob("step-*"))) >= 2:
                break
            assert process.status is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
    return finished[0], second


@fixture(scope="module")
def done(place):
    """A study that was killed in its second run and went on, as on a machine without sacremoses and with one core."""
    first, second = kill_in_second_run(place)
    assert not (second / "train.json").exists()
    assert main(["reproduce", "--report-only", str(place / "out")]) == 0
    early = (place / "out" / "two" / "report.md").read_text()
    before, logged = (first / "train.json").stat().st_mtime_ns, read_log(second / "training")[0]
    with MonkeyPatch.context() as patched:
        patched.setattr("deepnmt.devices.available_cores", lambda: 1)
        patched.setitem(sys.modules, "sacremoses", None)
        patched.delitem(sys.modules, "deepnmt.evaluation.multibleu", raising=False)
        assert main(arguments(place)) == 0
    results, report = ((place / "out" / "two" / name).read_text() for name in ("results.json", "report.md"))
    return SimpleNamespace(
        first=first, second=second, early=early, before=before, logged=logged, results=results, report=report
    )


def test_a_killed_study_goes_on_where_it_was_and_is_reported(done):
    assert "Not run yet: DLCL." in done.early, "what there is can be looked at"
    assert (done.first / "train.json").stat().st_mtime_ns == done.before, "what was done is not done again"
    assert read_log(done.second / "training")[0] == done.logged, "a run that had begun goes on, times included"
    assert read_step(done.second, "train")["steps"] == 40

    results = json.loads(done.results)
    assert [(run["arm"], run["seed"]) for run in results["runs"]] == [
        ("plain", 1),
        ("DLCL", 1),
        ("plain", 2),
        ("DLCL", 2),
    ]
    assert all(run["train"]["status"] == "done" for run in results["runs"])
    assert "compound_bleu" not in results["runs"][3]["scores"]["test"]
    assert "p_values" not in results, "they are about the metric of the table"
    assert "--score-only" in done.report
    assert results["runs"][1]["weights"][0]["kind"] == "dlcl"
    assert not (done.first / "training" / "checkpoints").exists(), "nobody needs them any more"


def test_scores_that_were_missing_are_added_later(place, done, capsys):
    shutil.copytree(place / "out", place / "later")
    for model in (place / "later" / "runs").glob("*/model"):
        shutil.rmtree(model)
    assert main(["reproduce", "--score-only", str(place / "later")]) == 0
    results = json.loads((place / "later" / "two" / "results.json").read_text())
    for run in results["runs"]:
        assert "sacremoses" in run["scores"]["test"]["compound_bleu"]["signature"]
    assert results["p_values"].keys() == {"DLCL", "plain is better than DLCL"}
    assert all(0 < value <= 1 for value in results["p_values"].values())
    report = (place / "later" / "two" / "report.md").read_text()
    assert "--score-only" not in report
    assert "| plain |" in report and "weights-dlcl-1.svg" in report

    # What is committed of a study is small: its results alone make the report.
    shutil.rmtree(place / "later" / "runs")
    (place / "later" / "two" / "report.md").unlink()
    assert main(["reproduce", "--report-only", str(place / "later")]) == 0
    assert (place / "later" / "two" / "report.md").read_text() == report
    capsys.readouterr()


def test_a_study_gives_every_arm_the_same_or_refuses(place, done, capsys):
    capsys.readouterr()
    other = [word if word != "training.max_steps=40" else "training.max_steps=50" for word in arguments(place)]
    assert main(other) == 2
    assert "all arms of a study share this" in capsys.readouterr().err


def test_several_processes_share_the_runs_and_their_scores(place, monkeypatch, capsys):
    monkeypatch.setattr("deepnmt.devices.available_cores", lambda: 2)
    words = ["reproduce", "figure5", "training.max_steps=8", "training.log_every=2", "--scale", "tiny"]
    words += ["--device", "cpu"]
    words += ["model.encoder.dim=16", "model.encoder.ffn_dim=16", "model.encoder.num_heads=2"]
    words += ["model.decoder.dim=16", "model.decoder.ffn_dim=16", "model.decoder.num_heads=2"]
    words += ["--data", str(place / "toy" / "data"), "--out", str(place / "shared"), "--parallel", "2"]
    assert main(words) == 0
    runs = json.loads((place / "shared" / "figure5" / "results.json").read_text())["runs"]
    assert len(runs) == 7 and all(run["speed"]["tokens_per_second"] > 0 for run in runs)
    told = [(place / "shared" / "workers" / f"worker-{i}.log").read_text().count("deepnmt: run ") for i in (1, 2)]
    assert sum(told) == 6, "each run is done once; in one width, Base and Big are the same"
    assert "depth.svg" in (place / "shared" / "figure5" / "report.md").read_text()
    capsys.readouterr()


def test_workers_that_are_told_to_stop_save_and_go_on_later(place, capsys):
    endless = {"two": "figure6", "training.max_steps=40": "training.max_steps=100000"}
    words = [endless.get(word, word) for word in arguments(place, "stopped")]
    runs, deadline = place / "stopped" / "runs", time.monotonic() + 240
    with Process(two_arms.deepnmt, [*words, "--parallel", "2", "--seeds", "1"], PYTHONPATH=str(ROOT)) as process:
        while len(list(runs.glob("*/training/checkpoints/step-*"))) < 3:
            assert process.status is None and time.monotonic() < deadline, process.output
            time.sleep(0.05)
        process.send(signal.SIGTERM)
        assert process.wait() == 143
    told = "".join(log.read_text() for log in (place / "stopped" / "workers").glob("*.log"))
    assert "and saved" in told
    assert not list(runs.glob("*/train.json")), "a run that was stopped is not done"


def test_a_test_set_that_is_added_later_is_translated_by_every_run(place, done, capsys):
    shutil.copytree(place / "out", place / "more")
    text = [str(place / "toy" / f"valid.{language}") for language in ("en", "de")]
    before = {path: path.stat().st_mtime_ns for path in place.glob("more/runs/*/*/test.txt")}
    assert main([*arguments(place, "more"), "--test", "news", *text]) == 0
    results = json.loads((place / "more" / "two" / "results.json").read_text())
    assert all(run["scores"].keys() == run["decode"]["tests"].keys() == {"test", "news"} for run in results["runs"])
    assert results["p_values"].keys() == {"DLCL", "plain is better than DLCL"}
    assert before and all(path.stat().st_mtime_ns == then for path, then in before.items())
    stored = (place / "more" / "study.json").read_text()
    assert main([*arguments(place, "more"), "--test", "news", *reversed(text)]) == 2
    assert "--test news: another test set of" in capsys.readouterr().err
    assert (place / "more" / "study.json").read_text() == stored


def test_an_error_in_one_run_leaves_a_report_of_the_others(place, monkeypatch, capsys):
    train = steps.train

    def breaks(recipe, *rest, **more):
        if recipe.model.encoder.connection.kind == "dlcl" and recipe.training.seed == 2:
            raise InputError("no room for this one")
        return train(recipe, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(steps, "train", breaks)
        assert main(arguments(place, "broken")) == 1
    said = capsys.readouterr().err
    assert "deepnmt: 1 of 4 runs ended with an error: pre-dlcl-4+1" in said and "Traceback" not in said
    report = (place / "broken" / "two" / "report.md").read_text()
    assert "1 of 4 runs are not finished: DLCL, seed 2." in report
    assert re.search(r"\n\| DLCL \| 1 \| .*\n", report) and "| plain | 2 |" in report
    assert main(arguments(place, "broken")) == 0
    assert "not finished" not in (place / "broken" / "two" / "report.md").read_text()
    capsys.readouterr()


def test_fewer_seeds_later_do_not_drop_the_ones_there_are(place, done, capsys):
    assert main(arguments(place, "out", "--seeds", "1")) == 0
    results = json.loads((place / "out" / "two" / "results.json").read_text())
    assert sorted((run["arm"], run["seed"]) for run in results["runs"])[-1] == ("plain", 2)
    assert all(run["train"] for run in results["runs"])
    capsys.readouterr()


def test_some_arms_are_run_now_and_the_others_later(place, capsys):
    assert main([*arguments(place, "arms", "--seeds", "1"), "--no-scores", "--arms", "DL*"]) == 0
    assert not (place / "arms" / "two" / "report.md").exists()
    assert main(["reproduce", "--score-only", str(place / "arms")]) == 0
    report = (place / "arms" / "two" / "report.md").read_text()
    assert "Not run yet: plain." in report and "--arms 'DL*'" in report
    (first,) = (place / "arms" / "runs").iterdir()
    before = (first / "train.json").stat().st_mtime_ns
    assert main(arguments(place, "arms", "--seeds", "1")) == 0
    assert (first / "train.json").stat().st_mtime_ns == before
    assert "Not run yet" not in (place / "arms" / "two" / "report.md").read_text()
    capsys.readouterr()


OWN = """
title = "Mine"
about = "A preset and a recipe of my own."
arms = [{ label = "preset", recipe = "en-de-pre-20l" }, { label = "mine", recipe = "recipes/mine.toml" }]
claims = [{ better = "mine", worse = "preset" }]
"""


def test_an_experiment_of_ones_own_is_run_reported_and_resumed(place, capsys):
    home = place / "own"
    (home / "recipes").mkdir(parents=True)
    (home / "mine.toml").write_text(OWN)
    (home / "recipes" / "mine.toml").write_text('extends = "en-de-pre-20l"\n[model.encoder]\nnum_layers = 10\n')
    words = ["reproduce", str(home / "mine.toml"), "training.max_steps=8", "--scale", "tiny", "--device", "cpu"]
    words += ["--data", str(place / "toy" / "data"), "--out", str(home / "out")]
    assert main(words) == 0

    # The study folder is enough to report it anywhere.
    report = (home / "out" / "mine" / "report.md").read_text()
    (home / "out" / "mine" / "report.md").unlink()
    (home / "mine.toml").rename(home / "elsewhere")
    assert main(["reproduce", "--report-only", str(home / "out")]) == 0
    assert (home / "out" / "mine" / "report.md").read_text() == report
    for said in ("# Mine\n", "\n| preset | ", "\n## Claims\n", "- mine: `mine.toml`", "deepnmt reproduce mine.toml "):
        assert said in report
    (home / "elsewhere").rename(home / "mine.toml")

    # A changed recipe is another model: its runs of before do not count, not even the seeds that are not run again.
    times = {path.parent.name: path.stat().st_mtime_ns for path in home.glob("out/runs/*/train.json")}
    (home / "recipes" / "mine.toml").write_text('extends = "en-de-pre-20l"\n[model.encoder]\nnum_layers = 15\n')
    assert main([*words, "--seeds", "1"]) == 0
    runs = json.loads((home / "out" / "mine" / "results.json").read_text())["runs"]
    assert [(run["arm"], run["seed"], run["run"] in times) for run in runs] == [
        ("preset", 1, True),
        ("mine", 1, False),
        ("preset", 2, True),
    ]
    assert all((home / f"out/runs/{name}/train.json").stat().st_mtime_ns == then for name, then in times.items())
    capsys.readouterr()


def test_refusals_of_an_experiment_of_ones_own(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = ["--scale", "tiny", "--data", str(place / "toy" / "data"), "--out", "out"]
    for old, new, message in [
        ("title", "titel", "deepnmt: mine.toml: unknown setting titel; did you mean title?"),
        ("title", "= title", "mine.toml is not TOML"),
        (', recipe = "en-de-pre-20l"', "", "mine.toml: missing setting arms[0].recipe"),
        ('label = "mine"', 'label = "preset"', "mine.toml: two arms have the label 'preset'"),
        ('worse = "preset"', 'worse = "pre"', "mine.toml: a claim is about 'pre', which is not an arm; did you mean"),
        (', worse = "preset"', "", "mine.toml: claims[0]: a claim has `better` and `worse`, or `fails`"),
        ("arms = [", "arms = []\nalso = [] #", "mine.toml: arms is empty"),
        ("claims", "trains = false\nclaims", 'mine.toml: trains = false measures speed only: set measures = ["speed"]'),
        ('"preset", recipe', '"a\\nb", recipe', "mine.toml: the label 'a\\nb' must be one line of text"),
        ('"preset", recipe', '"preset", line = "x", recipe', "arm 'preset' has a line in a plot over depth; set its"),
        ("claims", "metric = 'ter'\nclaims", "mine: metric = 'ter' is not one of bleu, bleu_lower"),
        ("recipes/mine", "none", "mine, arm 'mine': none.toml is neither a recipe file (.toml) nor one of the presets"),
        ("claims", "overrides = ['model.lr=1']\nclaims", "mine, arm 'preset': unknown setting model.lr"),
    ]:
        changed = OWN.replace("recipes/mine.toml", "en-de-pre-base") if old == "claims" else OWN
        assert old in changed
        (tmp_path / "mine.toml").write_text(changed.replace(old, new, 1))
        assert main(["reproduce", "mine.toml", *data]) == 2, new
        assert message in capsys.readouterr().err, new
    for name, message in [
        ("mine", "unknown experiment 'mine'; did you mean mine.toml?"),
        ("absent.toml", "absent.toml does not exist"),
        ("table1.toml", "table1.toml: 'table1' cannot be the name of an experiment: it is taken"),
        ("my experiment.toml", "'my experiment' cannot be the name of an experiment"),
    ]:
        assert main(["reproduce", name, *data]) == 2, name
        assert message in capsys.readouterr().err, name
    assert not (tmp_path / "out").exists()


def test_test_sets_come_back_as_they_were(tmp_path):
    study, many = Study(tmp_path), TestSet("many", ["a"], [[f"reference {n}"] for n in range(12)])
    study.keep_tests([many, TestSet("news", ["b", ""], [["c", ""]])])
    (tmp_path / "tests" / ".more.123.partial").mkdir()
    assert study.tests() == [many, TestSet("news", ["b", ""], [["c", ""]])]


def test_a_dry_run_prints_the_runs_and_writes_nothing(place, capsys):
    assert main([*arguments(place, "dry"), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.count("pre-dlcl-4+1-d16-s") == 2
    assert "4 runs, about" in out
    assert not (place / "dry").exists()


def test_refusals(place, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    write_json(tmp_path / "bad" / "study.json", {})
    data = ["--data", str(place / "toy" / "data")]
    for words, message in [
        ([], "name at least one experiment"),
        (["two", "--out", str(tmp_path / "x")], "--data is missing"),
        (["two", *data], "--out is missing"),
        (["two", *data, "--out", str(tmp_path / "x"), "--scale", "tny"], "unknown scale 'tny'; did you mean tiny?"),
        (["tabel1", *data, "--out", str(tmp_path / "x")], "unknown experiment 'tabel1'; did you mean table1?"),
        (["two", *data, "--out", str(tmp_path / "full"), "--scale", "tiny"], "exists and is not a study"),
        (["two", *data, "--out", str(tmp_path / "x"), "--test", "news", "a"], "a test set is NAME SOURCE REFERENCE"),
        (
            ["two", *data, "--out", str(tmp_path / "x"), "--scale", "tiny", "--test", "../a", "b", "c"],
            "a name has letters",
        ),
        (["--report-only", str(tmp_path / "bad")], "bad/study.json has no 'fixed': it is damaged"),
        (["two", *data, "--out", str(tmp_path / "bad" / "study.json"), "--scale", "tiny"], "exists and is not a study"),
        (["two", *data, "--out", str(tmp_path / "x"), "--minutes", "-3"], "--minutes -3.0 must be above 0"),
        (
            ["two", *data, "--out", str(tmp_path / "x"), "--arms", "dlcl"],
            "--arms 'dlcl' matches none of 'plain', 'DLCL'",
        ),
        (["two", *data, "--out", str(tmp_path / "x"), "training.lrr=3"], "unknown setting training.lrr"),
        (["--report-only", str(tmp_path)], "study.json does not exist; give the --out folder of an earlier"),
        (["two", "--data", str(tmp_path), "--out", str(tmp_path / "x")], "is not a dataset"),
    ]:
        assert main(["reproduce", *words]) == 2, words
        assert message in capsys.readouterr().err, words
    assert not (tmp_path / "x").exists()


def test_the_list_names_everything(capsys):
    assert main(["reproduce", "--list"]) == 0
    out = capsys.readouterr().out
    for name in ("table1", "table7", "figure6", "headline", "multi30k-tiny", "full", "europarl"):
        assert f"  {name} " in out
    assert "(1 arm)" in out and "(1 arms)" not in out


@fixture
def fake_setup(tmp_path, monkeypatch):
    """A place where training is this function of the recipe and the folder, and nothing is decoded or measured."""

    def make(train):
        monkeypatch.setattr(steps, "train", lambda recipe, dataset, out, **_: train(recipe, out))
        study = Study(tmp_path)
        study.keep_tests([TestSet("test", ["a"], [["b"]])])
        return Setup(study, SCALES["tiny"], None, "cpu")

    return make


def run_of_recipe():
    from deepnmt.config import load_recipe

    return PlannedRun("run", "en-de-pre-base", [], 1, load_recipe("en-de-pre-base"), True, None, [], {"scores"})


def test_a_run_that_diverges_is_done_and_failed(tmp_path, fake_setup):
    def diverges(recipe, out):
        raise TrainingError("diverged at step 7")

    place, run = fake_setup(diverges), run_of_recipe()
    do_run(run, place)
    found = read_step(tmp_path / "runs" / "run", "train")
    assert (found["status"], found["reason"]) == ("failed", "diverged at step 7")
    assert next_step(run, place.study) is None


def test_an_error_in_one_run_does_not_cost_the_others(tmp_path, fake_setup, capsys):
    tried = []

    def breaks(recipe, out):
        tried.append(recipe.training.seed)
        raise (ValueError("no kernel") if len(tried) == 1 else TrainingError("diverged"))

    first, second = (replace(run_of_recipe(), name=name) for name in ("first", "second"))
    with raises(RunError, match="1 of 2 runs ended with an error: first: ValueError: no kernel"):
        work([first, second], fake_setup(breaks))
    assert next_step(first, Study(tmp_path)) == "train"
    assert read_step(tmp_path / "runs" / "second", "train")["status"] == "failed"
    assert "Traceback" in capsys.readouterr().err


def test_a_run_that_another_process_has_claimed_is_left_to_it(tmp_path, fake_setup, capsys):
    run, setup = run_of_recipe(), fake_setup(None)
    with _claim(setup.study.runs / run.name):
        work([run], setup)
    assert "left to other processes: 1 of 1 runs" in capsys.readouterr().err


def test_runs_are_claimed_where_the_file_system_has_no_locks(tmp_path, monkeypatch):
    def unsupported(descriptor, operation):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with _claim(tmp_path) as mine, _claim(tmp_path) as another:
        assert (mine, another) == (True, False)
    with _claim(tmp_path) as again:
        assert again


def test_a_run_of_which_only_small_files_were_copied_is_done_if_it_was_decoded(tmp_path):
    study, run = Study(tmp_path), run_of_recipe()
    folder = study.runs / run.name
    write_json(folder / "train.json", {"status": "done"})
    assert next_step(run, study) == "train", "there is nothing to decode with"
    (folder / "model").mkdir()
    assert next_step(run, study) == "decode"
    (folder / "model").rmdir()
    write_json(folder / "decode.json", {"tests": {"test": {}}})
    assert next_step(run, study) is None
    study.keep_tests([TestSet(name, ["a"], [["b"]]) for name in ("test", "news")])
    assert next_step(run, study) == "train"


def test_a_run_that_is_trained_again_and_killed_is_not_done(tmp_path, fake_setup):
    """Of a copied study without weights; what it had translated was by another model."""

    def killed(recipe, out):
        (out / "checkpoints").mkdir(parents=True)
        raise KeyboardInterrupt

    place, run = fake_setup(killed), run_of_recipe()
    folder = place.study.runs / run.name
    write_json(folder / "train.json", {"status": "done"})
    write_json(folder / "scores.json", {"test": {}})
    with raises(KeyboardInterrupt):
        do_run(run, place)
    assert next_step(run, place.study) == "train" and not (folder / "scores.json").exists()


def test_a_run_that_was_told_to_stop_is_not_done(tmp_path, fake_setup):
    def stops(recipe, out):
        (out / "checkpoints").mkdir(parents=True)
        return SimpleNamespace(is_finished=False, step=3)

    place, run = fake_setup(stops), run_of_recipe()
    with raises(SystemExit):
        do_run(run, place)
    assert next_step(run, place.study) == "train"
    assert (tmp_path / "runs" / "run" / "training" / "checkpoints").is_dir()


def test_equal_time_becomes_updates_by_a_measured_speed_and_the_warm_up_keeps_its_share(tmp_path, fake_setup):
    from deepnmt.config import load_recipe
    from deepnmt.reproduction.steps import CALIBRATION_STEPS, _timed_recipe

    settings = ["training.max_steps=1000", "training.warmup_steps=250", "training.save_every=50"]
    tried = []

    def train(recipe, out):
        """Two updates a second, after a slow start."""
        tried.append(recipe.training.max_steps)
        out.mkdir(parents=True)
        every = recipe.training.log_every
        speeds = [10.0] * 3 + [2000.0] * 5
        lines = [
            {"kind": "train", "step": every * n, "tokens": 1000 * every, "tokens_per_second": speed}
            for n, speed in enumerate(speeds, start=1)
        ]
        (out / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    place = fake_setup(train)
    run = PlannedRun("run", "en-de-pre-base", settings, 1, load_recipe("en-de-pre-base", settings), True, 600.0)
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    timed = _timed_recipe(run, folder, place).training
    assert (timed.max_steps, timed.warmup_steps, timed.save_every) == (1200, 300, 60)
    assert not (folder / "calibration").exists()
    assert _timed_recipe(run, folder, place).training.max_steps == 1200
    assert tried == [CALIBRATION_STEPS], "once measured, the number of updates stays"
