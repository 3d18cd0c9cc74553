"""Learning curves of runs, read from their logs: points, names, tables, charts; and what is refused."""

import json
import re
import xml.etree.ElementTree as ElementTree

from pytest import fixture, mark, raises

import deepnmt
from deepnmt.analysis.learning_curves import Point, draw, read_points
from deepnmt.cli import main
from deepnmt.errors import InputError


def write_run(folder, losses, bleu=(), rate=100.0):
    """Every 10 steps a line of 1,000 tokens; a validation every 15."""
    lines = []
    for step in range(5, 15 * len(losses) + 1, 5):
        if step % 10 == 0:
            lines.append({"kind": "train", "step": step, "tokens": 1000, "tokens_per_second": rate})
        if step % 15 == 0:
            scores = {"bleu": bleu[step // 15 - 1]} if bleu else {}
            lines.append({"kind": "validation", "step": step, "nll": losses[step // 15 - 1], **scores})
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@fixture
def runs(tmp_path):
    slow = write_run(tmp_path / "slow" / "training", [5.0, 3.0, 2.5, 2.6], [1.0, 20.0, 31.5, 30.0], rate=50.0)
    return [write_run(tmp_path / "fast" / "training", [5.0, 2.0]), slow]


def test_a_point_has_what_training_had_taken_until_then(runs):
    points = read_points(runs[1])
    assert points[0] == Point(15, 1500, 30.0, 5.0, 1.0), "between two lines of the log"
    assert points[-1] == Point(60, 6000, 120.0, 2.6, 30.0)


def test_a_validation_after_the_last_line_about_training_is_counted_too(tmp_path):
    folder = write_run(tmp_path / "run", [5.0, 3.0, 2.5])
    assert read_points(folder)[-1] == Point(45, 4500, 45.0, 2.5, None), "the log has a line at step 40, not at 45"


def test_what_training_took_is_unknown_before_the_first_line_about_it(tmp_path, capsys):
    folder = write_run(tmp_path / "run", [5.0])
    validation = (folder / "log.jsonl").read_text().splitlines()[-1]
    (folder / "log.jsonl").write_text(validation + "\n")
    assert read_points(folder) == [Point(15, None, None, 5.0, None)]
    assert main(["inspect", "curves", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["run", "15", "?", "?"]
    assert main(["inspect", "curves", str(folder), "--out", str(tmp_path / "c.csv")]) == 0
    assert (tmp_path / "c.csv").read_text().splitlines()[1] == "run,15,,,5.0,"
    assert main(["inspect", "curves", str(folder), "--out", str(tmp_path / "c.svg")]) == 0


def test_runs_are_named_by_what_differs_in_their_paths(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "slow")
    assert list(deepnmt.inspect_curves(*runs).runs) == ["fast", "slow"]
    assert list(deepnmt.inspect_curves("training", runs[0]).runs) == ["slow", "fast"]
    assert list(deepnmt.inspect_curves("training").runs) == ["training"]
    other = write_run(tmp_path / "slow" / "other", [1.0])
    assert list(deepnmt.inspect_curves("training", other).runs) == ["training", "other"]


def test_the_tables_show_the_end_the_best_and_the_way(runs, capsys):
    assert main(["inspect", "curves", *map(str, runs)]) == 0
    summary, losses, bleu = (part.splitlines() for part in capsys.readouterr().out.strip().split("\n\n"))
    assert summary[1].split() == ["fast", "30", "3,000", "30", "2.000", "2.000", "30"]
    assert summary[2].split() == ["slow", "60", "6,000", "120", "2.600", "2.500", "45", "31.50", "45"]
    assert [line.split() for line in losses[1:4]] == [
        ["update", "fast", "slow"],
        ["15", "5.000", "5.000"],
        ["30", "2.000", "3.000"],
    ]
    assert bleu[0] == "Validation BLEU:" and bleu[-1].split() == ["60", "30.00"]


def test_the_table_of_a_long_run_keeps_its_last_row(tmp_path):
    told = str(deepnmt.inspect_curves(write_run(tmp_path / "long", [9 - 0.05 * i for i in range(101)])))
    rows = told.split("Validation loss:\n")[1].splitlines()[1:]
    assert 10 < len(rows) <= 20 and rows[-1].split()[0] == "1,515"
    assert "BLEU" not in told


def test_charts_leave_out_the_beginning_but_no_run(runs):
    drawn = draw(deepnmt.inspect_curves(*runs))
    for picture, label in zip(drawn, 2 * ["updates", "target tokens", "minutes of training"], strict=True):
        assert f">{label}</text>" in picture
    assert "Validation loss below 3.10" in drawn[2]
    points = [re.findall(r"<title>(.+?)</title>", picture) for picture in drawn]
    assert points[2] == ["fast: 2 at 0.5", "slow: 3 at 1", "slow: 2.5 at 1.5", "slow: 2.6 at 2"]
    assert len(points[3]) == 4 and all(point.startswith("slow") for point in points[3])


@mark.parametrize("suffix", [".svg", ".html", ".png", ".csv", ".json"])
def test_a_file_is_written_in_each_format(runs, tmp_path, capsys, suffix):
    out = tmp_path / f"curves{suffix}"
    assert main(["inspect", "curves", *map(str, runs), "--out", str(out), *["--json"] * (suffix == ".json")]) == 0
    assert capsys.readouterr() == ("", "")
    if suffix == ".svg":
        root = ElementTree.parse(out).getroot()
        assert len(root.findall(".//{*}polyline[@stroke-width='2']")) == 12
        assert (root.get("width"), root.get("height")) == ("1920", "804")
    elif suffix == ".json":
        assert json.loads(out.read_text())["runs"]["fast"][-1]["nll"] == 2.0
    elif suffix == ".csv":
        assert out.read_text().splitlines()[:2] == ["run,step,tokens,seconds,nll,bleu", "fast,15,1500,15.0,5.0,"]
    else:
        assert out.stat().st_size > 1000


def test_runs_without_a_validation_are_left_out(runs, tmp_path, capsys):
    """As in a study with a run that diverged, or has just begun."""
    new = write_run(tmp_path / "new" / "training", [])
    assert list(deepnmt.inspect_curves(runs[0], new, runs[1]).runs) == ["fast", "slow"]
    assert "left out, for lack of a validation in the log: new" in capsys.readouterr().err


def test_refusals(runs, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "log.jsonl").touch()
    for given, message in [
        ([runs[0], tmp_path], "is not a RUN folder: it has no log.jsonl"),
        ([tmp_path / "new"], "no validation in the log of new"),
        ([runs[0], runs[1], runs[0]], "is given twice"),
    ]:
        with raises(InputError, match=message):
            deepnmt.inspect_curves(*given)
