"""The report on the arms of results/europarl/equal-tokens, from small folders of the same kind."""

import json
import lzma
import re
import runpy
import shutil
from pathlib import Path

from pytest import fixture, raises

from deepnmt.errors import InputError

HOME = Path(__file__).parents[2] / "results" / "europarl"
write = runpy.run_path(str(HOME / "equal-tokens-report.py"))["main"]
LINES = [f"Der {word} ist heute nicht hier , sondern dort ." for word in ("Hund", "Mann", "Baum", "Tisch", "Wald")]


@fixture
def arms(tmp_path):
    for name, kept, speed in (("base", 3, 500.0), ("dlcl-30l", 5, 250.0)):
        folder = tmp_path / "arms" / name
        folder.mkdir(parents=True)
        shutil.copy(HOME / "equal-tokens" / name / "recipe.toml", folder)
        lines = [{"kind": "train", "step": s, "tokens": 1000, "tokens_per_second": speed} for s in (50, 100)]
        lines += [{"kind": "validation", "step": 100, "nll": 2.5}]
        (folder / "command.txt").write_text(f"bash equal-tokens.sh {name}\n")
        (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for test in ("newstest2014", "test"):
            translated = LINES[:kept] + ["Nein ."] * (len(LINES) - kept)
            (folder / f"{test}.de").write_text("".join(f"{line}\n" for line in translated))
    shutil.copy(HOME / "equal-tokens" / "dlcl-30l" / "weights.csv", tmp_path / "arms" / "dlcl-30l")
    (tmp_path / "arms" / "dlcl-30l" / "speed.json").write_text('{"speeds": [{"tokens_per_second": 73800.4}]}')
    for test in ("newstest2014", "test"):
        (tmp_path / f"{test}.de.xz").write_bytes(lzma.compress("".join(f"{line}\n" for line in LINES).encode()))
    return tmp_path / "arms"


def test_arms_are_measured_and_compared_with_each_other(arms):
    write(["--arms", str(arms), "--text", str(arms / "nowhere"), str(arms.parent), "--samples", "20"])
    report = (arms / "report.md").read_text()
    assert re.search(r"\| base \| 60\.1M \| 100 \| 2,000 \| 4 \| 500 \| not measured \| 2\.500 \| \d", report)
    assert re.search(r"\| dlcl-30l \| 135\.8M \| 100 \| 2,000 \| 8 \| 250 \| 73,800 \| 2\.500 \| 100\.00 \[", report)
    assert report.count("| dlcl-30l against base | +") == 2
    assert "| model.encoder.num_layers | 6 | 30 |" in report and "training.lr" not in report
    assert "BLEU|nrefs:1|bs:20|" in report
    assert (arms / "curves.svg").read_text().count("stroke-width='2'") == 2 * 3
    assert "30-layer encoder, dlcl" in (arms / "weights-dlcl-30l-1.svg").read_text()


def test_arms_are_compared_with_one_of_them_alone(arms):
    shutil.copytree(arms / "base", arms / "beyond-hyper-30l")
    words = ["--arms", str(arms), "--text", str(arms.parent), "--samples", "20"]
    write([*words, "--against", "dlcl-30l"])
    report = (arms / "report.md").read_text()
    assert report.count("| base against dlcl-30l | -") == report.count("| beyond-hyper-30l against dlcl-30l | -") == 2
    assert "against base" not in report
    with raises(InputError, match=r"--against dlcl-31l: .* has no such arm"):
        write([*words, "--against", "dlcl-31l"])


def test_one_arm_is_reported_without_comparisons(arms):
    shutil.rmtree(arms / "base")
    write(["--arms", str(arms), "--text", str(arms.parent), "--samples", "20"])
    assert "against" not in (arms / "report.md").read_text()


def test_a_missing_reference_is_named(arms):
    with raises(InputError, match=r"--text: none of .* has newstest2014\.de\.xz"):
        write(["--arms", str(arms), "--text", str(arms)])
    assert not (arms / "report.md").exists()
