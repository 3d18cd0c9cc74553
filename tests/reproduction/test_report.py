"""The report: means and spreads, the paper's numbers beside them, claims judged, failures told."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, replace

import two_arms
from pytest import approx, fixture

from deepnmt.files import write_json, write_text
from deepnmt.reproduction.blocks import chart, write_report
from deepnmt.reproduction.experiment import at_rates
from deepnmt.reproduction.report import report
from deepnmt.reproduction.results import Figure, read_results, refresh
from deepnmt.reproduction.scoring import add_p_values
from deepnmt.reproduction.study import Study, TestSet


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


def tables(blocks):
    """Each as the cells of its head and of its rows."""
    found = [block.markdown.split("\n") for block in blocks if block.markdown.startswith("| ")]
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])] for lines in found
    ]


def main_table(blocks):
    """Every row by the titles of its columns."""
    head, *rows = tables(blocks)[0]
    return [dict(zip(head, row, strict=True)) for row in rows]


def lists(blocks):
    return [block.markdown.removeprefix("- ").split("\n- ") for block in blocks if block.markdown.startswith("- ")]


def claims(blocks):
    return lists(blocks)[0]


def text(blocks):
    return "\n".join(block.markdown for block in blocks)


def test_figures_are_means_with_the_spread_over_seeds(blocks):
    built = blocks(
        [run_of("plain", 1, 40.0), run_of("plain", 2, 41.0), run_of("DLCL", 1, 42.0), run_of("DLCL", 2, 43.5)]
    )
    row = main_table(built)[1]
    assert row["model"] == "DLCL"
    assert row["compound_bleu"] == "42.75 ± 1.06"
    assert (row["Δ"], row["paper BLEU"], row["paper Δ"]) == ("+2.25", "28.8", "-0.10")
    assert (row["parameters"], row["target tokens"], row["minutes"]) == ("2.50M", "1,000,000", "1.5")
    assert row["valid ppl"] == "9.50 ± 0.71"
    assert Figure((40.0, 41.0)).spread == approx(0.7071, abs=1e-4)


def test_costs_and_significance_stand_beside_the_scores(tmp_path):
    rows = [("plain", 10.0, 2.0), ("DLCL", 13.2, 3.0), ("plain", 12.0, 2.4)]
    measured = [{"arm": arm, "milliseconds_per_step": ms, "memory_gib": gib} for arm, ms, gib in rows]
    study = Study(tmp_path)
    write_json(tmp_path / "two" / "cost.json", {"reference": "plain", "rows": [*measured, {"arm": "x", "error": "no"}]})
    content = content_of([run_of("plain", 1, 40.0), run_of("DLCL", 1, 42.0)]) | {"p_values": {"DLCL": 0.0123}}
    write_json(tmp_path / "two" / "results.json", content)
    refresh(study, "two")
    plain, dlcl = main_table(report(read_results(study, "two"), two_arms.TWO))
    assert (plain["p"], dlcl["p"]) == ("", "0.0123 *")
    assert (plain["ms a step alone"], plain["ms over pre"]) == ("11.00", "1.00")
    assert (dlcl["ms over pre"], dlcl["GiB alone"], dlcl["GiB over pre"]) == ("1.20", "3.00", "1.50")


def test_an_experiment_of_many_arms_has_charts_of_each_group():
    arms = tuple(replace(arm, group=f"group {arm.label}") for arm in two_arms.TWO.arms)
    experiment = replace(two_arms.TWO, arms=arms, charts_by_group=True)
    blocks = report(content_of([run_of("plain", 1, 40.0), run_of("DLCL", 1, 42.0)]), experiment)
    files = {name: svg for block in blocks for name, svg in block.files.items()}
    drawn = files["gradients-group-plain.svg"]
    assert ">plain<" in drawn and ">DLCL<" not in drawn
    assert "gradients-group-DLCL.svg" in files and "validation.svg" not in files


def test_a_sweep_names_the_best_rate_of_each_arm():
    depths = replace(two_arms.TWO, arms=tuple(replace(arm, depth=18) for arm in two_arms.TWO.arms))
    sweep = at_rates(depths, 18, (5e-4, 1e-3))
    runs = [run_of(arm.label, 1) for arm in sweep.arms]
    for run, loss in zip(runs, (2.0, 1.9, 2.0, 2.1), strict=True):
        run["train"]["valid"]["nll"] = loss
    runs[2] = run_of(sweep.arms[2].label, 1, status="failed", reason="diverged")
    built = report(content_of(runs), sweep)
    assert lists(built)[0] == ["plain: 0.001", "DLCL: 0.001"]
    assert main_table(built)[-2]["valid ppl"] == "failed" and not any(block.files for block in built)


def test_a_chart_over_depth_has_one_metric_and_its_name():
    arms = tuple(replace(arm, depth=depth, line="ours") for arm, depth in zip(two_arms.TWO.arms, (6, 12), strict=True))
    experiment = replace(two_arms.TWO, arms=arms, plot="score", metric="chrf")
    runs = [run_of(arm.label, 1, 40.0, metrics=("bleu", "chrf")) for arm in arms]
    assert "![chrF2 against depth, ours](depth.svg)" in text(report(content_of(runs), experiment))
    runs[1]["scores"]["test"].pop("chrf")
    assert "![BLEU against depth, ours](depth.svg)" in text(report(content_of(runs), experiment))


def test_families_have_charts_of_their_own_relative_to_the_reference():
    first = replace(two_arms.TWO.arms[0], group="g")
    families = {"a": "x", "b": "y", "far": "y", "short": "y"}
    others = [replace(first, label=label, family=family) for label, family in families.items()]
    runs = [run_of(arm.label, 1, 40.0) for arm in (first, *others)]
    runs[2]["train"]["valid_curve"] = [[10, 5.5], [20, 4.1]]
    runs[3]["train"]["valid_curve"] = [[10, 5.0], [20, 4.5]]
    runs[4]["train"]["valid_curve"] = [[10, 5.0]]
    experiment = replace(two_arms.TWO, arms=(first, *others), claims=(), charts_by_group=True)
    blocks = report(content_of(runs), experiment)
    files = {name: svg for block in blocks for name, svg in block.files.items()}
    drawn = files["validation-g-y.svg"]
    assert ">plain (+0.000)<" in drawn and ">b (+0.100)<" in drawn and ">far" not in drawn
    assert ">a (+0.000)<" in files["validation-g-x.svg"]
    assert "ended early, or behind by more than 0.4: short, far" in text(blocks)


def test_arms_with_unlike_numbers_of_seeds_say_so(blocks):
    even = main_table(blocks([run_of("plain", 1, 40.0), run_of("DLCL", 1, 42.0)]))
    assert "seeds" not in even[0]
    built = blocks([run_of("plain", 1, 40.0), run_of("plain", 2, 41.0), run_of("DLCL", 1, 42.0)])
    assert [row["seeds"] for row in main_table(built)] == ["2", "1"]
    assert "1 to 2 seeds" in text(built)


def test_arms_are_compared_on_the_seeds_that_both_have(blocks):
    built = blocks([run_of("plain", 1, 40.0), run_of("plain", 2, 44.0), run_of("DLCL", 1, 41.0)])
    plain, dlcl = main_table(built)
    assert plain["compound_bleu"] == "42.00 ± 2.83"
    assert (dlcl["Δ"], dlcl["ahead"]) == ("+1.00", "1 of 1")
    assert claims(built)[0].startswith("plain is better than DLCL: **does not hold** (40.00 against 41.00")
    apart = blocks([run_of("plain", 1, 40.0), run_of("DLCL", 2, 41.0)])
    assert main_table(apart)[1]["Δ"] == "" and claims(apart)[0].endswith("not run")


def test_p_values_decide_claims_and_are_corrected_for_their_number():
    runs = [run_of(arm, seed, bleu) for arm, bleu in (("plain", 42.0), ("DLCL", 41.0)) for seed in (1, 2)]
    said = {}
    for p in (0.03, 0.2):
        content = content_of(runs) | {"p_values": {"DLCL": p, "plain is better than DLCL": p}}
        said[p] = report(content, two_arms.TWO)
    assert claims(said[0.03])[0] == "plain is better than DLCL: **holds** (42.00 against 41.00, 2 seeds, p 0.0300)"
    assert claims(said[0.2])[0].endswith("**not settled** (42.00 against 41.00, 2 seeds, p 0.2000)")
    assert [main_table(said[p])[1]["p"] for p in (0.03, 0.2)] == ["0.0300 *", "0.2000"]
    assert "A star marks p below 0.05." in text(said[0.2])


def test_a_mean_over_test_sets_is_called_one(blocks):
    runs = [run_of("plain", 1, 40.0), run_of("DLCL", 1, 42.0)]
    said = "Where no test set is named, a score is the mean of test and news."
    assert said[:30] not in text(blocks(runs))
    for run in runs:
        run["scores"]["news"] = {m: score | {"value": 20.0} for m, score in run["scores"]["test"].items()}
    built = blocks(runs)
    assert said in text(built)
    assert main_table(built)[1]["compound_bleu"] == "31.00"


def test_the_budget_is_that_of_the_experiment():
    """A study may have experiments of equal tokens and of equal time, and settings of its own."""
    content = content_of([run_of("plain", 1, 40.0)]) | {"seconds": 120.0}
    equal_tokens = "Every arm trains on the same number of tokens: 24,576,000, counting full batches."
    assert equal_tokens in text(report(content, two_arms.TWO))
    timed = text(report(content, replace(two_arms.TWO, equal="time")))
    assert "Every arm trains for the same time: 2.0 minutes." in timed and equal_tokens not in timed
    content["fixed"]["settings"] = ["training.max_steps=9"]
    assert "Every arm" not in text(report(content, two_arms.TWO))


def test_runs_of_an_arm_that_was_never_started_are_not_counted_as_unfinished(blocks):
    waiting = [run_of("DLCL", seed) | {"train": None} for seed in (1, 2)]
    built = text(blocks([run_of("plain", 1, 40.0), run_of("plain", 2) | {"train": None}, *waiting]))
    assert "Not run yet: DLCL." in built and "1 of 2 runs are not finished: plain, seed 2." in built


def test_a_mean_is_over_every_test_set_or_not_there(blocks):
    """As when a test set was added and the study stopped before every run had translated it."""
    runs = [run_of("plain", 1, 40.0), run_of("plain", 2, 40.0), run_of("DLCL", 1, 42.0)]
    runs[0]["scores"]["news"] = {m: score | {"value": 20.0} for m, score in runs[0]["scores"]["test"].items()}
    built = blocks(runs)
    assert [row["compound_bleu"] for row in main_table(built)] == ["30.00", ""]
    assert "2 of 3 runs are not finished: plain, seed 2; DLCL, seed 1." in text(built)


def test_every_row_has_as_many_cells_as_the_head(blocks):
    failed = run_of("DLCL", 1, status="failed", reason="diverged at step 5")
    for head, *rows in tables(blocks([run_of("plain", 1, 40.0), run_of("plain", 2, 40.0), failed])):
        assert {len(row) for row in rows} == {len(head)}


def test_claims_are_judged_and_doubt_is_told(blocks):
    apart = [run_of("plain", 1, 45.0), run_of("plain", 2, 45.2), run_of("DLCL", 1, 40.0), run_of("DLCL", 2, 40.1)]
    assert claims(blocks(apart))[0] == "plain is better than DLCL: **holds** (45.10 against 40.05)"
    near = [run_of("plain", 1, 40.0), run_of("plain", 2, 41.0), run_of("DLCL", 1, 40.2), run_of("DLCL", 2, 41.1)]
    assert claims(blocks(near))[0].endswith("**not settled** (40.50 against 40.65, within two standard errors)")
    alone = claims(blocks([run_of("plain", 1, 40.0), run_of("DLCL", 1, 39.0)]))
    assert alone[0].endswith("one seed: no spread known)")
    assert alone[1] == "DLCL fails to train: **does not hold** (0 of 1 seeds failed)"


def test_a_run_that_diverged_is_a_result(blocks):
    runs = [run_of("plain", 1, 40.0), run_of("DLCL", 1, status="failed", reason="diverged at step 5; try less")]
    built = blocks(runs)
    assert main_table(built)[1]["compound_bleu"] == "failed"
    assert "DLCL fails to train: **holds** (1 of 1 seeds failed)" in claims(built)
    assert claims(built)[0].endswith("**holds**: DLCL failed to train")
    other = blocks([run_of("plain", 1, status="failed", reason="diverged"), run_of("DLCL", 1, 40.0)])
    assert claims(other)[0].endswith("**does not hold**: plain failed to train")
    assert ["DLCL (1 of 1 seeds): diverged at step 5"] in lists(built)
    assert claims(blocks(runs[1:]))[0].endswith(": not run")


def test_a_score_of_nothing_is_a_failure(blocks):
    built = blocks([run_of("plain", 1, 40.0), run_of("DLCL", 1, 0.3)])
    assert main_table(built)[1]["compound_bleu"] == "failed"
    assert ["DLCL (1 of 1 seeds): BLEU 0.30"] in lists(built)


def test_a_seed_that_failed_is_counted_beside_the_others(blocks):
    seeds = [run_of("DLCL", 1, 40.0), run_of("DLCL", 2, 42.0), run_of("DLCL", 3, status="failed", reason="diverged")]
    row = main_table(blocks(seeds))[1]
    assert row["compound_bleu"] == "41.00 ± 1.41 (1 of 3 failed)"
    assert row["valid ppl"] == "9.50 ± 0.71", "of the seeds that trained"


def test_a_seed_that_is_not_trained_yet_is_not_counted(blocks):
    waiting = run_of("DLCL", 3) | {"train": None}
    seeds = [run_of("DLCL", 1, 40.0), run_of("DLCL", 2, status="failed", reason="diverged"), waiting]
    row = main_table(blocks([run_of("plain", 1, 40.0), *seeds]))[1]
    assert (row["seeds"], row["compound_bleu"]) == ("2", "40.00 (1 of 2 failed)")
    row = main_table(blocks([run_of("plain", 1, 40.0), seeds[1], waiting]))[1]
    assert (row["compound_bleu"], row["parameters"]) == ("failed", "2.50M")


def test_what_is_missing_is_said(blocks):
    built = blocks([run_of("plain", 1, 40.0, metrics=("bleu",))])
    assert "Not run yet: DLCL." in text(built)
    assert "--score-only DIR" in text(built)


def test_gradients_and_curves_are_drawn(blocks):
    names = {name for block in blocks([run_of("plain", 1, 40.0)]) for name in block.files}
    assert names == {"gradients.svg", "gradient-share.svg", "validation.svg"}


def test_where_it_comes_from_is_told(blocks, tmp_path):
    write_report(tmp_path, "Two <arms>", blocks([run_of("plain", 1, 40.0)]))
    for text in ((tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()):
        for needed in ("deepnmt reproduce two", "compound_bleu|sig", "machine: H200", "beam 4", "concurrent runs"):
            assert needed in text


def test_scores_that_cannot_be_compared_are_told(blocks):
    runs = [run_of("plain", 1, 40.0), run_of("DLCL", 1, 41.0)]
    assert "cannot be compared" not in text(blocks(runs))
    runs[1]["scores"]["test"]["bleu"]["signature"] = "bleu|another version"
    built = text(blocks(runs))
    assert "**they cannot be compared**" in built and "`bleu|another version`" in built and "`bleu|sig`" in built


def test_a_report_of_speed_tells_the_machine_and_the_work():
    work = {"batch": 4, "beam": 2, "length": 8, "workers": 1, "repeats": 1, "fused": True}
    speed = {"workload": work, "precision": "fp32", "machine": {"device": "x86"}, "tokens_per_second": 9.0}
    run = run_of("plain", 1) | {"train": None, "speed": speed}
    built = text(report(content_of([run]), replace(two_arms.TWO, trains=False, measures=("speed",))))
    assert "- machine: x86" in built and "batches of 4 sentences, 8 subwords each, beam 2" in built


def test_the_command_can_be_repeated_elsewhere():
    content = content_of([run_of("plain", 1, 40.0)])
    for machine in ("/dev/shm/a", "/tmp/b"):
        tests = f"--test news {machine}/news.en.xz {machine}/news.de.xz"
        content["commands"].append(f"deepnmt reproduce two --data {machine}/d --out {machine}/o {tests} --arms '* 30L'")
    shown = [block.markdown for block in report(content, two_arms.TWO) if block.markdown.startswith("```")]
    repeatable = "--data DATASET --out STUDY --test news TEXT/news.en.xz TEXT/news.de.xz --arms '* 30L'"
    assert shown == [f"```\ndeepnmt reproduce two\ndeepnmt reproduce two {repeatable}\n```"]


def test_the_page_is_whole_and_loads_nothing(blocks, tmp_path):
    write_report(tmp_path, "Two <arms>", blocks([run_of("plain", 1, 40.0)]))
    text = (tmp_path / "report.html").read_text()
    assert "Two &lt;arms&gt;" in text
    assert not re.search(r"(src|href)\s*=|@import|url\(", text)
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(picture)
    for name in re.findall(r"\]\((\S+\.svg)\)", (tmp_path / "report.md").read_text()):
        ElementTree.parse(tmp_path / name)


def test_a_group_that_comes_again_is_named_again():
    arms = [replace(two_arms.TWO.arms[0], label=f"{group} {depth}", group=group) for depth in (6, 30) for group in "ab"]
    runs = [run_of(arm.label, 1, 40.0) for arm in arms]
    built = report(content_of(runs), replace(two_arms.TWO, arms=tuple(arms), claims=()))
    assert [row["model"] for row in main_table(built)] == [
        "**a**",
        "a 6",
        "**b**",
        "b 6",
        "**a**",
        "a 30",
        "**b**",
        "b 30",
    ]
    assert [row["Δ"] for row in main_table(built)][1::2] == ["reference", "reference", "+0.00", "+0.00"]


def test_p_values_are_about_the_metric_of_the_table(tmp_path):
    """Here BLEU finds no difference: no four words in a row are right."""
    reference, study = [f"w{i} aaaaaa" for i in range(40)], Study(tmp_path)
    study.keep_tests([TestSet("test", reference, [reference])])
    experiment = replace(two_arms.TWO, metric="chrf", measures=("scores",))
    runs = [run_of(arm, 1, 40.0, metrics=("bleu", "chrf")) for arm in ("plain", "DLCL")]
    definition = {"definition": asdict(experiment), "languages": ["en", "de"]}
    write_json(tmp_path / "two" / "results.json", content_of(runs) | definition)
    for run, word in (("plain-1", "bbbbbb"), ("DLCL-1", "aaabbb")):
        write_text(study.translations(run, "test"), f"{word}\n" * len(reference))
    add_p_values(study, "two")
    assert read_results(study, "two")["p_values"]["DLCL"] < 0.01


def test_p_values_of_scores_do_not_judge_claims_about_perplexity():
    arms = tuple(replace(arm, paper={"ppl": 5.0}) for arm in two_arms.TWO.arms)
    content = content_of([run_of("plain", 2, 40.0), run_of("DLCL", 1, 42.0)])
    content |= {"p_values": {"plain is better than DLCL": 0.0001}}
    judged = claims(report(content, replace(two_arms.TWO, arms=arms)))[0]
    assert judged.endswith("**does not hold** (10.00 against 9.00, one seed: no spread known)")


def test_charts_of_labels_that_make_one_file_name_are_two_files(tmp_path):
    drawn = [chart("weights-a", f"<svg>{n}</svg>", f"a{sign}") for n, sign in enumerate("+-+")]
    write_report(tmp_path, "Charts", [*drawn, drawn[0]])
    names = re.findall(r"\((\S+)\)", (tmp_path / "report.md").read_text())
    assert names == ["weights-a.svg", "weights-a-.svg", "weights-a--.svg", "weights-a.svg"]
    assert [(tmp_path / name).read_text() for name in names] == [f"<svg>{n}</svg>\n" for n in (0, 1, 2, 0)]


def test_a_learning_rate_of_an_arms_own_is_told():
    arms = (two_arms.TWO.arms[0], replace(two_arms.TWO.arms[1], lr=3e-4))
    built = report(content_of([run_of("plain", 1, 40.0)]), replace(two_arms.TWO, arms=arms))
    assert "- DLCL: `en-de-pre-dlcl-20l`, with its own learning rate, 0.0003" in text(built)
