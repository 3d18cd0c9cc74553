"""The report of one experiment: our results and the paper's in tables, claims and charts."""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deepnmt.analysis.charts import Axes, Series, line_chart
from deepnmt.analysis.weights import ConnectionWeights, draw
from deepnmt.evaluation.metrics import METRICS
from deepnmt.evaluation.paired_tests import SAMPLES, surviving
from deepnmt.reproduction.document import Block, bullets, chart, code, heading, paragraph, table
from deepnmt.reproduction.experiment import Claim, Experiment
from deepnmt.reproduction.results import FAILED, ArmResult, Figure, by_arm, on_shared_seeds
from deepnmt.reproduction.scales import SCALES

Arms = Sequence[ArmResult]
MAX_NAMED = 5  # runs
FAR_BEHIND = 0.4  # nats: a chart that shows more cannot show the differences between the others


def report(content: Mapping[str, Any], experiment: Experiment) -> list[Block]:
    arms = by_arm(content, experiment)
    blocks: list[Block] = [paragraph(experiment.about), paragraph(_setting(content, arms, experiment))]
    blocks += [heading("Results"), _main_table(arms, experiment), *_notes(arms, experiment)]
    if experiment.claims:
        p_values = content.get("p_values", {})
        judged = [f"{claim.text}: {_judge(claim, arms, experiment, p_values)}" for claim in experiment.claims]
        blocks += [heading(experiment.claims_title), bullets(judged)]
    if charts := [*_depth_charts(arms, experiment), *_training_charts(arms, experiment), *_weights(arms, experiment)]:
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
        yield paragraph(f"{len(unfinished)} of {sum(len(arm.runs) for arm in arms)} runs are not finished{named}.")
    scored = [
        of_test for arm in arms for run in arm.runs if run["decode"] for of_test in (run["scores"] or {}).values()
    ]
    compared = [arm for arm in arms if arm.p_value is not None and not arm.has_failed]
    if not compared and "scores" in experiment.measures and _differ_in_seeds(arms):
        yield paragraph("Δ is about the seeds that both arms have.")
    if compared:
        kept = [arm.arm.label for arm in compared if arm.arm.label in _surviving(arms)]
        yield paragraph(
            "Δ, `ahead` (the seeds in which an arm scores higher) and p are about the seeds that both arms have. p is "
            f"sacreBLEU's of a paired bootstrap with {SAMPLES:,} resamples of the sentences of every test set, on the "
            "means over seeds: one-sided for a clear difference, and about the choice of sentences, not of seeds. "
            + (
                f"With {len(compared)} comparisons some are below 0.05 by chance; a star marks those that "
                f"Holm-Bonferroni leaves at 0.05: {', '.join(kept) or 'none'}."
                if len(compared) > 1
                else "A star marks p below 0.05."
            )
        )
    parallel = max((trained["parallel"] for arm in arms for trained in arm.trained), default=1)
    if parallel > 1 and experiment.trains:
        yield paragraph(
            f"Minutes and tokens/s are those of up to {parallel} concurrent runs per device: no comparison of models."
        )
    if any(arm.cost for arm in arms):
        yield paragraph("Costs alone are those of a model twice as wide on an idle GPU (`benchmarks/depth.py`).")
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


def _judge(claim: Claim, arms: Arms, experiment: Experiment, p_values: Mapping[str, float]) -> str:
    by_label = {arm.arm.label: arm for arm in arms}
    if claim.fails:
        result = by_label.get(claim.fails)
        if result is None or not result.trained:
            return "not run"
        return f"{_verdict(result.has_failed)} ({len(result.failures)} of {len(result.trained)} seeds failed)"
    better, worse = by_label.get(claim.better), by_label.get(claim.worse)
    if better is None or worse is None:
        return "not run at this scale"
    if not (better.is_started and worse.is_started):
        return "not run"
    if better.has_failed and worse.has_failed:
        return "both failed"
    if better.has_failed or worse.has_failed:
        failed = better if better.has_failed else worse
        return f"{_verdict(worse.has_failed)}: {failed.arm.label} failed to train"
    ours, theirs, sign = _compared(better, worse, experiment)
    if ours is None or theirs is None:
        return "not run"
    difference = (ours.mean - theirs.mean) * sign
    if f"{ours.mean:.2f}" == f"{theirs.mean:.2f}":
        return f"**no difference** ({ours.mean:.2f})"
    noise = (ours.spread**2 / len(ours.values) + theirs.spread**2 / len(theirs.values)) ** 0.5
    is_settled, doubt = abs(difference) >= 2 * noise, ""
    if _is_about_scores(better, worse, experiment) and (p := p_values.get(claim.text)) is not None:
        is_settled, doubt = p < 0.05, f", {len(ours.values)} seed{'s' * (len(ours.values) > 1)}, p {p:.4f}"
    elif len(ours.values) < 2 or len(theirs.values) < 2:
        doubt = ", one seed: no spread known"
    elif not is_settled:
        doubt = ", within two standard errors"
    verdict = _verdict(difference > 0) if is_settled else "**not settled**"
    return f"{verdict} ({ours.mean:.2f} against {theirs.mean:.2f}{doubt})"


def _verdict(holds: bool) -> str:
    return "**holds**" if holds else "**does not hold**"


def _compared(better: ArmResult, worse: ArmResult, experiment: Experiment) -> tuple[Figure | None, Figure | None, int]:
    """The measurements to compare; the last value is -1 if lower is better."""
    if not experiment.trains:
        return better.number("speed", "tokens_per_second"), worse.number("speed", "tokens_per_second"), 1
    if not _is_about_scores(better, worse, experiment):
        return better.number("train", "valid", "ppl"), worse.number("train", "valid", "ppl"), -1
    shared = on_shared_seeds(better, worse, experiment.metric) or on_shared_seeds(better, worse, "bleu")
    return (*shared, 1) if shared else (None, None, 1)


def _is_about_scores(better: ArmResult, worse: ArmResult, experiment: Experiment) -> bool:
    """Rather than about speed, or perplexity, if the paper's claim is."""
    of_perplexity = experiment.shows_perplexity and any("ppl" in arm.arm.paper for arm in (better, worse))
    return experiment.trains and not of_perplexity


def _depth_charts(arms: Arms, experiment: Experiment) -> Iterator[Block]:
    """Our results and the paper's, with a line for each kind of model."""
    if not experiment.plot:
        return
    speed = experiment.plot == "speed"
    scored = [arm for arm in arms if arm.score("bleu")]
    metric = experiment.metric if all(arm.score(experiment.metric) for arm in scored) else "bleu"
    ours, paper = [], []
    for name in dict.fromkeys(arm.arm.line for arm in arms if arm.arm.line):
        there = [(float(arm.arm.depth or 0), arm) for arm in arms if arm.arm.line == name]
        known = []
        for depth, arm in there:
            score = None if arm.has_failed else arm.score(metric)
            if figure := arm.number("speed", "tokens_per_second") if speed else score:
                known.append((depth, figure))
        failed = [f"{depth:g}" for depth, arm in there if arm.has_failed]
        title = f"{name} (failed at {', '.join(failed)})" if failed else name
        ours.append(Series(title, [(x, f.mean) for x, f in known], [f.spread for _, f in known]))
        points = [(x, arm.arm.paper.get("speed" if speed else "bleu", math.nan)) for x, arm in there]
        if points := [(x, y) for x, y in points if not math.isnan(y)]:
            paper.append(Series(name, points, dashed=True))
    for file, series, whose, title in (
        ("depth", ours, "ours", METRICS[metric].title),
        ("depth-paper", paper, "the paper's", "BLEU"),
    ):
        label = "target tokens per second" if speed else title
        if series or file == "depth":
            about = f"{label} against depth, {whose}"
            yield chart(file, line_chart(series, Axes(about, "encoder layers", label)), about)


def _training_charts(arms: Arms, experiment: Experiment) -> Iterator[Block]:
    if not experiment.shows_curves:
        return
    if not experiment.charts_by_group:
        yield from _charts_of(arms, experiment)
        return
    for group in dict.fromkeys(arm.arm.group for arm in arms):
        own = [arm for arm in arms if arm.arm.group == group]
        for family in [f for f in dict.fromkeys(arm.arm.family for arm in own) if f] or [""]:
            where = ", ".join(filter(None, (group, family)))
            yield from _charts_of([arm for arm in own if arm.arm.family in ("", family)], experiment, where)


def _charts_of(arms: Arms, experiment: Experiment, where: str = "") -> Iterator[Block]:
    """For the first seed: gradients by layer and over time, and the validation loss."""
    file, of = "-".join(["", *re.findall(r"\w+", where)]), f", {where}" if where else ""
    found = {arm.arm.label: _first(arm, "gradients") for arm in arms}
    depth = max((len(lines[-1]["norms"]) for lines in found.values() if lines), default=0)
    if experiment.shows_gradients and depth:
        by_layer, shares = [], []
        for label, lines in found.items():
            if lines and len(lines[-1]["norms"]) == depth:
                by_layer.append(Series(label, list(enumerate(lines[-1]["norms"], start=1))))
            if lines and len(lines[-1]["norms"]) > 1:
                points = [(g["step"], g["norms"][0] / g["norms"][-1]) for g in lines if g["norms"][-1]]
                shares.append(Series(label, points))
        title = f"Gradient of each encoder layer at the last logged update{of or f', {depth} layers'}"
        axes = Axes(title, "encoder layer", "gradient norm", log_y=True)
        yield chart(f"gradients{file}", line_chart(by_layer, axes), title)
        title = f"Gradient of the lowest over the top encoder layer{of}"
        axes = Axes(title, "update", "ratio", log_y=True)
        about = f"Share of the gradient that reaches the lowest encoder layer during training{of}"
        yield chart(f"gradient-share{file}", line_chart(shares, axes), about)
    curves = [
        Series(arm.arm.label, [(x, y) for x, y in points if abs(y) < 1e6])  # neither diverged nor NaN
        for arm in arms
        if (points := _first(arm, "valid_curve"))
    ]
    curves = [curve for curve in curves if curve.points]
    if curves and experiment.charts_by_group:
        yield _behind(curves, f"validation{file}", of)
    elif curves:
        axes = Axes(f"Validation loss{of}", "update", "nats per subword")
        yield chart(f"validation{file}", line_chart(curves, axes), f"Validation loss over the updates, first seed{of}")


def _behind(curves: Sequence[Series], file: str, where: str) -> Block:
    """Of many arms: the loss above the first one's, best at the end first; without those far behind or ended early."""
    reference = dict(curves[0].points)
    last = max(reference)
    apart = [Series(c.name, [(x, y - reference[x]) for x, y in c.points if x in reference]) for c in curves]
    apart.sort(key=lambda curve: curve.points[-1][1] if curve.points else math.inf)
    shown = [c for c in apart if c.points and c.points[-1][0] == last and c.points[-1][1] < FAR_BEHIND]
    far = [curve.name for curve in apart if curve not in shown]
    shown = [
        Series(f"{curve.name} ({curve.points[-1][1]:+.3f})", [(x, y) for x, y in curve.points if y < FAR_BEHIND])
        for curve in shown
    ]
    title = f"Validation loss above that of {curves[0].name}{where}"
    about = f"{title}; first seed" + (
        f"; ended early, or behind by more than {FAR_BEHIND:g}: {', '.join(far)}" if far else ""
    )
    return chart(file, line_chart(shown, Axes(title, "update", "nats per subword")), about)


def _first(arm: ArmResult, name: str) -> list[Any]:
    return next((trained[name] for trained in arm.trained if trained[name]), [])


def _weights(arms: Arms, experiment: Experiment) -> Iterator[Block]:
    for arm in arms if "weights" in experiment.measures else ():
        stored: list[Any] = next((run["weights"] for run in arm.runs if run["weights"]), [])
        slug = "".join(c if c.isalnum() else "-" for c in arm.arm.label.lower()).strip("-")
        for number, svg in enumerate(draw([ConnectionWeights.stored(weights) for weights in stored]), start=1):
            yield chart(f"weights-{slug}-{number}", svg, f"Learned connection weights, {arm.arm.label}")


def _provenance(content: Mapping[str, Any], arms: Arms) -> Iterator[Block]:
    runs = [run for arm in arms for run in arm.runs]
    done = [run[step] for run in runs for step in ("train", "speed") if run[step]]
    machines = {", ".join(f"{k} {v}" for k, v in step["machine"].items()) for step in done}
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
