"""The report: means and spreads, the paper's numbers beside them, claims judged, failures told."""

import re
import xml.etree.ElementTree as ElementTree

import two_arms
from pytest import approx, fixture

from deepnmt.reproduction.document import Bullets, Chart, Paragraph, Table, write_report
from deepnmt.reproduction.report import report
from deepnmt.reproduction.results import Figure


def run_of(arm, seed, bleu=None, status="done", reason="", metrics=("compound_bleu", "bleu")):
    scores = None
    if bleu is not None:
        scores = {"test": {m: {"name": m, "value": bleu, "signature": f"{m}|sig"} for m in metrics}}
    return {
        "arm": arm,
        "run": f"{arm}-{seed}",
        "seed": seed,
        "train": {
            "status": status,
            "reason": reason,
            "parameters": 2_500_000,
            "target_tokens": 1_000_000,
            "train_seconds": 90.0,
            "tokens_per_second": 11_111,
            "memory_gib": None,
            "valid": {"ppl": 8.0 + seed},
            "valid_curve": [[10, 5.0], [20, 4.0]],
            "gradients": [{"step": 10, "norms": [1e-6, 1.0]}, {"step": 20, "norms": [1e-7, 1.0]}],
            "machine": {"device": "H200", "torch": "2.11"},
            "parallel": 2,
        },
        "decode": {"beam": 4, "length_penalty": 0.6, "tests": {}} if bleu is not None else None,
        "scores": scores,
        "speed": None,
        "weights": None,
    }


def content_of(runs, scale="multi30k"):
    fixed = {"scale": scale, "data": "multi30k-data", "tokens": 24_576_000}
    return {"experiment": "two", "fixed": fixed, "seconds": None, "commands": ["deepnmt reproduce two"], "runs": runs}


@fixture
def blocks():
    def build(runs, scale="multi30k"):
        return report(content_of(runs, scale), two_arms.TWO)

    return build


def main_table(blocks):
    return next(block for block in blocks if isinstance(block, Table))


def claims(blocks):
    return next(block.items for block in blocks if isinstance(block, Bullets))


def test_figures_are_means_with_the_spread_over_seeds(blocks):
    built = blocks(
        [run_of("plain", 1, 40.0), run_of("plain", 2, 41.0), run_of("DLCL", 1, 42.0), run_of("DLCL", 2, 43.5)]
    )
    table = main_table(built)
    row = dict(zip(table.head, table.rows[1], strict=True))
    assert row["model"] == "DLCL"
    assert row["compound_bleu"] == "42.75 ± 1.06"
    assert (row["Δ"], row["paper BLEU"], row["paper Δ"]) == ("+2.25", "28.8", "-0.10")
    assert (row["parameters"], row["target tokens"], row["minutes"]) == ("2.50M", "1,000,000", "1.5")
    assert row["valid ppl"] == "9.50 ± 0.71"
    assert Figure((40.0, 41.0)).spread == approx(0.7071, abs=1e-4)


def test_arms_with_unlike_numbers_of_seeds_say_so(blocks):
    even = main_table(blocks([run_of("plain", 1, 40.0), run_of("DLCL", 1, 42.0)]))
    assert "seeds" not in even.head
    built = blocks([run_of("plain", 1, 40.0), run_of("plain", 2, 41.0), run_of("DLCL", 1, 42.0)])
    table = main_table(built)
    assert [row[table.head.index("seeds")] for row in table.rows] == ["2", "1"]
    assert any("1 to 2 seeds" in block.text for block in built if isinstance(block, Paragraph))


def test_a_mean_over_test_sets_is_called_one(blocks):
    runs = [run_of("plain", 1, 40.0), run_of("DLCL", 1, 42.0)]
    said = "Where no test set is named, a score is the mean of test and news."
    assert not any(said[:30] in block.text for block in blocks(runs) if isinstance(block, Paragraph))
    for run in runs:
        run["scores"]["news"] = {m: score | {"value": 20.0} for m, score in run["scores"]["test"].items()}
    built = blocks(runs)
    assert any(said in block.text for block in built if isinstance(block, Paragraph))
    table = main_table(built)
    assert table.rows[1][table.head.index("compound_bleu")] == "31.00"


def test_every_row_has_as_many_cells_as_the_head(blocks):
    failed = run_of("DLCL", 1, status="failed", reason="diverged at step 5")
    for block in blocks([run_of("plain", 1, 40.0), run_of("plain", 2, 40.0), failed]):
        if isinstance(block, Table):
            assert {len(row) for row in block.rows} == {len(block.head)}


def test_claims_are_judged_and_doubt_is_told(blocks):
    apart = [run_of("plain", 1, 45.0), run_of("plain", 2, 45.2), run_of("DLCL", 1, 40.0), run_of("DLCL", 2, 40.1)]
    assert claims(blocks(apart))[0] == "plain is better than DLCL: **holds** (45.10 against 40.05)"
    near = [run_of("plain", 1, 40.0), run_of("plain", 2, 41.0), run_of("DLCL", 1, 40.2), run_of("DLCL", 2, 41.1)]
    assert claims(blocks(near))[0].endswith(
        "**does not hold** (40.50 against 40.65, within two standard errors: not settled)"
    )
    alone = claims(blocks([run_of("plain", 1, 40.0), run_of("DLCL", 1, 39.0)]))
    assert alone[0].endswith("one seed: no spread known)")
    assert alone[1] == "DLCL fails to train: **does not hold** (0 of 1 seeds failed)"


def test_a_run_that_diverged_is_a_result(blocks):
    runs = [run_of("plain", 1, 40.0), run_of("DLCL", 1, status="failed", reason="diverged at step 5: try less")]
    built = blocks(runs)
    table = main_table(built)
    assert dict(zip(table.head, table.rows[1], strict=True))["compound_bleu"] == "failed"
    assert "DLCL fails to train: **holds** (1 of 1 seeds failed)" in claims(built)
    assert claims(built)[0].endswith("**holds**, the other failed to train")
    assert any(isinstance(b, Bullets) and b.items == ["DLCL: diverged at step 5: try less"] for b in built)


def test_a_score_of_nothing_is_a_failure(blocks):
    built = blocks([run_of("plain", 1, 40.0), run_of("DLCL", 1, 0.3)])
    assert main_table(built).rows[1][3] == "failed"
    assert any(isinstance(b, Bullets) and b.items == ["DLCL: BLEU 0.30"] for b in built)


def test_a_seed_that_failed_is_counted_beside_the_others(blocks):
    seeds = [run_of("DLCL", 1, 40.0), run_of("DLCL", 2, 42.0), run_of("DLCL", 3, status="failed", reason="diverged")]
    table = main_table(blocks(seeds))
    row = dict(zip(table.head, table.rows[1], strict=True))
    assert row["compound_bleu"] == "41.00 ± 1.41 (1 of 3 failed)"


def test_what_is_missing_is_said(blocks):
    built = blocks([run_of("plain", 1, 40.0, metrics=("bleu",))])
    notes = " ".join(block.text for block in built if isinstance(block, Paragraph))
    assert "Not run yet: DLCL." in notes
    assert "--score-only DIR" in notes


def test_gradients_and_curves_are_drawn(blocks):
    names = {block.name for block in blocks([run_of("plain", 1, 40.0)]) if isinstance(block, Chart)}
    assert names == {"gradients", "gradient-share", "validation"}


def test_where_it_comes_from_is_told(blocks, tmp_path):
    write_report(tmp_path, "Two <arms>", blocks([run_of("plain", 1, 40.0)]))
    for text in ((tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()):
        for needed in ("deepnmt reproduce two", "compound_bleu|sig", "device H200", "beam 4", "shared use"):
            assert needed in text


def test_the_page_is_whole_and_loads_nothing(blocks, tmp_path):
    write_report(tmp_path, "Two <arms>", blocks([run_of("plain", 1, 40.0)]))
    text = (tmp_path / "report.html").read_text()
    assert "Two &lt;arms&gt;" in text
    assert not re.search(r"(src|href)\s*=|@import|url\(", text)
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(picture)
    for name in re.findall(r"\]\((\S+\.svg)\)", (tmp_path / "report.md").read_text()):
        ElementTree.parse(tmp_path / name)
