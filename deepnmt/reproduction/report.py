"""The report of one experiment: our results and the paper's in tables, claims and charts."""

import math
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deepnmt.evaluation.paired_tests import SAMPLES, surviving
from deepnmt.reproduction.blocks import Block, bullets, code, heading, paragraph, table
from deepnmt.reproduction.experiment import Experiment
from deepnmt.reproduction.report_charts import Arms, all_charts
from deepnmt.reproduction.results import FAILED, ArmResult, Figure, by_arm, on_shared_seeds
from deepnmt.reproduction.scales import SCALES
from deepnmt.reproduction.verdicts import judge

MAX_NAMED = 5  # runs


def report(content: Mapping[str, Any], experiment: Experiment) -> list[Block]:
    arms = by_arm(content, experiment)
    blocks: list[Block] = [paragraph(experiment.about), paragraph(_setting(content, arms, experiment))]
    blocks += [heading("Results"), _main_table(arms, experiment), *_notes(arms, experiment)]
    if experiment.claims:
        p_values = content.get("p_values", {})
        judged = [f"{claim.text}: {judge(claim, arms, experiment, p_values)}" for claim in experiment.claims]
        blocks += [heading(experiment.claims_title), bullets(judged)]
    if charts := all_charts(arms, experiment):
        blocks += [heading("Charts"), *charts]
    for test in dict.fromkeys(test for test, _, _ in _scores(arms)):
        metrics = list(dict.fromkeys(metric for of, metric, _ in _scores(arms) if of == test))
        rows = [[arm.arm.label, *(_text(arm.score(metric, test)) for metric in metrics)] for arm in arms]
        blocks += [heading(f"All scores on {test}"), table(["model", *metrics], rows)]
    if failures := [_failures(arm) for arm in arms if arm.failures]:
        blocks += [heading("Failed runs"), bullets(failures)]
    made = [" ".join([Path(arm.arm.recipe).name, *experiment.overrides_of(arm.arm)]) for arm in arms]
    rates = ["" if arm.arm.lr is None else f", with its own learning rate, {arm.arm.lr:g}" for arm in arms]
    recipes = bullets([f"{arm.arm.label}: `{words}`{rate}" for arm, words, rate in zip(arms, made, rates, strict=True)])
    return [*blocks, heading("Recipes, before scaling"), recipes, *_provenance(content, arms)]


def _scores(arms: Arms) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Every score of every run, with its test set and metric."""
    for arm in arms:
        for run in arm.runs:
            for test, scores in (run["scores"] or {}).items():
                for metric, score in scores.items():
                    yield test, metric, score


def _setting(content: Mapping[str, Any], arms: Arms, experiment: Experiment) -> str:
    fixed = content["fixed"]
    seeds = sorted({arm.num_seeds for arm in arms if arm.num_seeds} or {1})
    counted = f"{seeds[-1]} seed{'s' if seeds[-1] != 1 else ''}"
    counted = counted if len(seeds) == 1 else f"{seeds[0]} to {counted}"
    got, size = "", ("training.max_steps=", "training.tokens_per_update=")
    if experiment.equal == "time" and content.get("seconds"):
        got = f" Every arm trains for the same time: {content['seconds'] / 60:.1f} minutes."
    elif experiment.trains and fixed.get("tokens") and not any(s.startswith(size) for s in fixed.get("settings", ())):
        got = f" Every arm trains on the same number of tokens: {fixed['tokens']:,}, counting full batches."
    tests = list(dict.fromkeys(test for test, _, _ in _scores(arms)))
    over = "" if len(tests) < 2 else f" Where no test set is named, a score is the mean of {' and '.join(tests)}."
    return (
        f"Scale **{fixed['scale']}**: {SCALES[fixed['scale']].about}.{got} {counted}; figures are means, ± is the "
        f"standard deviation over seeds.{over}"
    )


def _main_table(arms: Arms, experiment: Experiment) -> Block:
    """Groups have a title row; an arm is compared with the first of its group."""
    head: list[str] = []
    rows: list[list[str]] = []
    group = ""
    for result in arms:
        reference = next(arm for arm in arms if arm.arm.group == result.arm.group)
        cells = _cells(result, reference, arms, experiment)
        head = list(cells)
        if result.arm.group not in ("", group):
            group = result.arm.group
            rows.append([f"**{group}**", *[""] * (len(head) - 1)])
        rows.append(list(cells.values()))
    return table(head, rows)


def _cells(result: ArmResult, reference: ArmResult, arms: Arms, experiment: Experiment) -> dict[str, str]:
    """The row of an arm by column title, with the paper's results if there are any."""
    metric, paper, number = experiment.metric, result.arm.paper, result.number
    given = {key for arm in arms for key in arm.arm.paper}
    cells = {"model": result.arm.label}
    if _differ_in_seeds(arms):
        cells["seeds"] = str(result.num_seeds or "")
    cells["parameters"] = _millions(number("train", "parameters") or number("speed", "parameters"))
    if "parameters" in given:
        cells["paper"] = _paper(paper.get("parameters"), "g") + "M" * ("parameters" in paper)
    if "scores" in experiment.measures:
        title = next((score["name"] for _, name, score in _scores(arms) if name == metric), metric)
        cells[title] = _score(result, metric)
        compared = None if result.has_failed else on_shared_seeds(result, reference, metric)
        difference = f"{round(compared[0].mean - compared[1].mean, 2) + 0:+.2f}" if compared else ""
        cells["Δ"] = "reference" if result is reference else difference
        if experiment.shows_significance:
            cells["ahead"] = _ahead(*compared) if compared and result is not reference else ""
            star = " *" if result.arm.label in _surviving(arms) else ""
            cells["p"] = "" if result.p_value is None or result.has_failed else f"{result.p_value:.4f}{star}"
        if "bleu" in given:
            cells["paper BLEU"] = _paper(paper.get("bleu"))
            gap = paper.get("bleu", math.nan) - reference.arm.paper.get("bleu", math.nan)
            cells["paper Δ"] = "" if math.isnan(gap) else f"{gap:+.2f}"
        if metric != "bleu":
            cells["sacreBLEU"] = _score(result, "bleu")
    if experiment.shows_perplexity:
        cells["valid ppl"] = FAILED if result.has_failed else _text(number("train", "valid", "ppl"))
        if "ppl" in given:
            cells["paper ppl"] = _paper(paper.get("ppl"))
    if "speed" in experiment.measures:
        cells["generated tokens/s"] = _text(number("speed", "tokens_per_second"), ",.0f")
        if "speed" in given:
            cells["paper tokens/s"] = _paper(paper.get("speed"), "g")
    if experiment.trains:
        cells["target tokens"] = _text(number("train", "target_tokens"), ",.0f")
        cells["minutes"] = _text(number("train", "train_seconds"), ".1f", 60)
        cells["trained tokens/s"] = _text(number("train", "tokens_per_second"), ",.0f")
        if any(arm.number("train", "memory_gib") for arm in arms):  # on a GPU
            cells["GiB"] = _text(number("train", "memory_gib"), ".1f")
    if any(arm.cost for arm in arms):
        cost = result.cost or {}
        for key, unit in (("milliseconds_per_step", "ms a step alone"), ("memory_gib", "GiB alone")):
            cells[unit] = f"{cost[key]:.2f}" if key in cost else ""
            cells[f"{unit.split()[0]} over pre"] = f"{cost[key + '_ratio']:.2f}" if f"{key}_ratio" in cost else ""
    return cells


def _text(figure: Figure | None, form: str = "", divisor: float = 1) -> str:
    """The mean with its standard deviation, or the mean alone in this format."""
    return "" if figure is None else f"{figure.mean / divisor:{form}}" if form else str(figure)


def _millions(figure: Figure | None) -> str:
    return _text(figure, ".2f" if figure and figure.mean < 1e7 else ".1f", 1e6) + ("M" if figure else "")


def _paper(value: float | None, form: str = "") -> str:
    return "" if value is None else FAILED if math.isnan(value) else f"{value:{form}}"


def _score(result: ArmResult, metric: str) -> str:
    if result.has_failed:
        return FAILED
    some = f" ({len(result.failures)} of {result.num_seeds} failed)" if result.failures else ""
    return _text(result.score(metric)) + some


def _ahead(ours: Figure, theirs: Figure) -> str:
    """In how many of the seeds that both have."""
    higher = sum(x > y for x, y in zip(ours.values, theirs.values, strict=True))
    return f"{higher} of {len(ours.values)}"


def _surviving(arms: Arms) -> set[str]:
    """The arms whose difference from the reference is significant among all those of the table."""
    return surviving({arm.arm.label: arm.p_value for arm in arms if arm.p_value is not None and not arm.has_failed})


def _failures(arm: ArmResult) -> str:
    """The first reason, without its advice, and how many seeds failed."""
    reason, _, _ = arm.failures[0].partition("; try ")
    return f"{arm.arm.label} ({len(arm.failures)} of {arm.num_seeds} seeds): {reason}"


def _best_rates(arms: Arms) -> Iterator[str]:
    """Of a sweep: the learning rate with the lowest validation loss of each group."""
    for group in dict.fromkeys(arm.arm.group for arm in arms):
        own = [arm for arm in arms if arm.arm.group == group and not arm.has_failed]
        losses = [(found.mean, arm.arm.lr) for arm in own if (found := arm.number("train", "valid", "nll"))]
        yield f"{group}: {min(losses)[1]:g}" if losses else f"{group}: none"


def _notes(arms: Arms, experiment: Experiment) -> Iterator[Block]:
    if not experiment.measures and all(arm.arm.lr for arm in arms):
        yield paragraph("The learning rate with the lowest validation loss:")
        yield bullets(list(_best_rates(arms)))
    if waiting := [arm.arm.label for arm in arms if not arm.is_started]:
        yield paragraph(f"Not run yet: {', '.join(waiting)}.")
    if unfinished := list(_unfinished(arms, experiment)):
        named = f": {'; '.join(unfinished)}" if len(unfinished) <= MAX_NAMED else ""
        runs = sum(len(arm.runs) for arm in arms if arm.is_started)
        yield paragraph(f"{len(unfinished)} of {runs} runs are not finished{named}.")
    scored = [
        of_test for arm in arms for run in arm.runs if run["decode"] for of_test in (run["scores"] or {}).values()
    ]
    compared = [arm for arm in arms if arm.p_value is not None and not arm.has_failed]
    if not compared and "scores" in experiment.measures and _differ_in_seeds(arms):
        yield paragraph("Δ compares the seeds that both arms have.")
    if compared:
        kept = [arm.arm.label for arm in compared if arm.arm.label in _surviving(arms)]
        yield paragraph(
            "Δ, `ahead` (the number of seeds in which an arm scores higher) and p compare the seeds that both arms "
            f"have. p is from sacreBLEU's paired bootstrap with {SAMPLES:,} resamples of the sentences of every test "
            "set, on the means over seeds. It is one-sided for a clear difference, and covers the choice of sentences, "
            "not of seeds. "
            + (
                f"With {len(compared)} comparisons, some are below 0.05 by chance; a star marks those that are "
                f"significant at 0.05 after the Holm-Bonferroni correction: {', '.join(kept) or 'none'}."
                if len(compared) > 1
                else "A star marks p below 0.05."
            )
        )
    parallel = max((trained["parallel"] for arm in arms for trained in arm.trained), default=1)
    if parallel > 1 and experiment.trains:
        yield paragraph(
            f"There were up to {parallel} concurrent runs per device, so minutes and tokens/s do not compare models."
        )
    if any(arm.cost for arm in arms):
        yield paragraph("Costs alone were measured with a model twice as wide on an idle GPU (`benchmarks/depth.py`).")
    if "scores" in experiment.measures and any(experiment.metric not in of_test for of_test in scored):
        yield paragraph(
            f"Some scores ({experiment.metric}) are missing; "
            "`deepnmt reproduce --score-only DIR` adds them where sacremoses is installed."
        )


def _differ_in_seeds(arms: Arms) -> bool:
    return len({arm.num_seeds for arm in arms if arm.num_seeds}) > 1


def _unfinished(arms: Arms, experiment: Experiment) -> Iterator[str]:
    """Runs to come, or that ended with an error, of arms that have others."""
    last = "decode" if "scores" in experiment.measures else "train"
    for arm in arms:
        for run in arm.runs if arm.is_started and experiment.trains else ():
            is_whole = run[last] and arm.tests <= (run["scores"] or {}).keys()
            if not is_whole and not (run["train"] and run["train"]["status"] == FAILED):
                yield f"{arm.arm.label}, seed {run['seed']}"


def _provenance(content: Mapping[str, Any], arms: Arms) -> Iterator[Block]:
    runs = [run for arm in arms for run in arm.runs]
    done = [run[step] for run in runs for step in ("train", "speed") if run[step]]
    machines = {", ".join(f"{k} {v}".removeprefix("device ") for k, v in step["machine"].items()) for step in done}
    searches = {(run["decode"]["beam"], run["decode"]["length_penalty"]) for run in runs if run["decode"]}
    speeds = [(run["speed"]["precision"], run["speed"]["workload"]) for run in runs if run["speed"]]
    loads = {(precision, work["batch"], work["length"], work["beam"]) for precision, work in speeds}
    items = [f"data: `{content['fixed']['data']}`", *(f"machine: {machine}" for machine in sorted(machines))]
    items += [f"decoding: beam {beam}, length penalty {alpha:g}" for beam, alpha in sorted(searches)]
    for precision, batch, length, beam in sorted(loads):
        items.append(
            f"generation speed: {precision}, batches of {batch} sentences, {length} subwords each, beam {beam}"
        )
    yield from (heading("Setup"), bullets(items), code("\n".join(dict.fromkeys(map(_repeatable, content["commands"])))))
    if signatures := sorted({(metric, score["signature"]) for _, metric, score in _scores(arms)}):
        mixed = len(signatures) > len(dict(signatures))
        warning = (
            " Some scores have several: **they cannot be compared**; remove `scores.json` of the runs and score again."
        )
        yield paragraph("Score signatures:" + warning * mixed)
        yield bullets([f"{name}: `{text}`" for name, text in signatures])


def _repeatable(command: str) -> str:
    """With names instead of the absolute paths of the machine that ran it."""
    names = {"--data": "DATASET", "--out": "STUDY"}
    words = shlex.split(command)
    shown = [
        names.get(before, Path(word).name if word.endswith(".toml") else f"TEXT/{Path(word).name}")
        if Path(word).is_absolute()
        else word
        for before, word in zip(["", *words], words, strict=False)
    ]
    return shlex.join(shown)
