"""Our numbers beside the paper's: tables, claims and charts of one experiment."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deepnmt.analysis.charts import Axes, Series, line_chart
from deepnmt.analysis.weights import ConnectionWeights, draw
from deepnmt.reproduction.document import Block, Bullets, Chart, Code, Heading, Paragraph, Table
from deepnmt.reproduction.experiment import Claim, Experiment
from deepnmt.reproduction.results import FAILED, ArmResult, Figure, by_arm
from deepnmt.reproduction.scales import SCALES


def report(content: Mapping[str, Any], experiment: Experiment) -> list[Block]:
    arms = by_arm(content, experiment)
    scale = SCALES[content["fixed"]["scale"]]
    blocks: list[Block] = [Paragraph(experiment.about), Paragraph(_setting(content, scale.about, arms))]
    blocks += [Heading("Results"), _main_table(arms, experiment, content), *_notes(arms, experiment)]
    if experiment.claims:
        blocks += [
            Heading("The paper's claims"),
            Bullets([_judge(claim, arms, experiment) for claim in experiment.claims]),
        ]
    blocks += _charts(arms, experiment)
    blocks += _test_tables(arms)
    blocks += [*_failures(arms), *_provenance(content, arms)]
    return blocks


def _setting(content: Mapping[str, Any], about: str, arms: Sequence[ArmResult]) -> str:
    fixed = content["fixed"]
    seeds = sorted({arm.seeds for arm in arms if arm.seeds} or {1})
    counted = f"{seeds[-1]} seed{'s' if seeds[-1] != 1 else ''}"
    counted = counted if len(seeds) == 1 else f"{seeds[0]} to {counted}"
    got = ""
    if fixed.get("tokens"):
        got = f" Every arm has the same updates: {fixed['tokens']:,} tokens, batches counted full."
    if content.get("seconds"):
        got = f" Every arm has the same time to train: {content['seconds'] / 60:.1f} minutes."
    tests = _test_sets(arms)
    over = "" if len(tests) < 2 else f" Where no test set is named, a score is the mean of {' and '.join(tests)}."
    return (
        f"Scale **{fixed['scale']}**: {about}.{got} {counted}; figures are means, ± is the standard deviation "
        f"over seeds.{over}"
    )


def _test_sets(arms: Sequence[ArmResult]) -> list[str]:
    return list(dict.fromkeys(name for arm in arms for run in arm.runs for name in run["scores"] or {}))


def _main_table(arms: Sequence[ArmResult], experiment: Experiment, content: Mapping[str, Any]) -> Table:
    columns = _columns(arms, experiment, content)
    rows: list[list[str]] = []
    group = ""
    for result in arms:
        if result.arm.group and result.arm.group != group:
            group = result.arm.group
            rows.append([f"**{group}**", *[""] * (len(columns) - 1)])
        reference = next(arm for arm in arms if arm.arm.group == result.arm.group)
        rows.append([cell(result, reference) for _, cell in columns])
    return Table([title for title, _ in columns], rows)


Cell = Callable[[ArmResult, ArmResult], str]  # of an arm, beside the first of its group


def _columns(arms: Sequence[ArmResult], experiment: Experiment, content: Mapping[str, Any]) -> list[tuple[str, Cell]]:
    """The titles of the table and what stands below them; the paper's figures where it gives any."""
    metric = experiment.metric
    given = {key for arm in arms for key in arm.arm.paper}
    columns: list[tuple[str, Cell]] = [("model", lambda result, _: result.arm.label)]

    def paper(title: str, key: str, unit: str = "") -> list[tuple[str, Cell]]:
        return [(title, lambda result, _: _plain(result.arm.paper.get(key), unit))] if key in given else []

    if len({arm.seeds for arm in arms if arm.seeds}) > 1:
        columns.append(("seeds", lambda result, _: str(result.seeds or "")))
    columns.append(("parameters", lambda result, _: _millions(_parameters(result))))
    columns += paper("paper", "parameters", "M")
    if "scores" in experiment.measures:
        title = metric_titles(content).get(metric, metric)
        columns.append((title, lambda result, _: _score(result, result.score(metric))))
        columns.append(("Δ", lambda result, reference: _difference(result, reference, metric)))
        columns += paper("paper BLEU", "bleu")
        if "bleu" in given:
            columns.append(("paper Δ", lambda result, reference: _paper_difference(result, reference)))
        if metric != "bleu":
            columns.append(("sacreBLEU", lambda result, _: _score(result, result.score("bleu"))))
    if experiment.shows_perplexity:
        columns.append(("valid ppl", lambda result, _: _perplexity(result)))
        columns += paper("paper ppl", "ppl")
    if "speed" in experiment.measures:
        columns.append(("generated tokens/s", lambda result, _: _whole(result.number("speed", "tokens_per_second"))))
        columns += paper("paper tokens/s", "speed")
    if experiment.trains:
        columns.append(("target tokens", lambda result, _: _whole(result.number("train", "target_tokens"))))
        columns.append(("minutes", lambda result, _: _decimal(result.number("train", "train_seconds"), 60)))
        columns.append(("trained tokens/s", lambda result, _: _whole(result.number("train", "tokens_per_second"))))
        columns.append(("GiB", lambda result, _: _decimal(result.number("train", "memory_gib"))))
    return columns


def _notes(arms: Sequence[ArmResult], experiment: Experiment) -> list[Block]:
    notes = []
    waiting = [arm.arm.label for arm in arms if not arm.is_started]
    if waiting:
        notes.append(f"Not run yet: {', '.join(waiting)}.")
    if "scores" in experiment.measures and any(
        run["decode"] and any(experiment.metric not in of_test for of_test in (run["scores"] or {}).values())
        for arm in arms
        for run in arm.runs
    ):
        notes.append(
            f"Some scores ({experiment.metric}) could not be computed where the runs were made; "
            "`deepnmt reproduce --score-only DIR` adds them where sacremoses is installed."
        )
    return [Paragraph(note) for note in notes]


def _judge(claim: Claim, arms: Sequence[ArmResult], experiment: Experiment) -> str:
    by_label = {arm.arm.label: arm for arm in arms}
    if claim.fails:
        result = by_label.get(claim.fails)
        if result is None or not result.seeds:
            return f"{claim.text}: not run"
        verdict = "**holds**" if result.has_failed else "**does not hold**"
        return f"{claim.text}: {verdict} ({len(result.failures)} of {result.seeds} seeds failed)"
    better, worse = by_label.get(claim.better), by_label.get(claim.worse)
    if better is None or worse is None:
        return f"{claim.text}: not run at this scale"
    if better.has_failed or worse.has_failed:
        if better.has_failed and worse.has_failed:
            return f"{claim.text}: both failed"
        return f"{claim.text}: {'**holds**' if worse.has_failed else '**does not hold**'}, the other failed to train"
    ours, theirs, higher = _compared(better, worse, experiment)
    if ours is None or theirs is None:
        return f"{claim.text}: not run"
    difference = (ours.mean - theirs.mean) * (1 if higher else -1)
    noise = (ours.spread**2 / len(ours.values) + theirs.spread**2 / len(theirs.values)) ** 0.5
    verdict = "**holds**" if difference > 0 else "**does not hold**"
    doubt = ""
    if difference == 0:
        return f"{claim.text}: **no difference** ({ours.mean:.2f})"
    if len(ours.values) < 2 or len(theirs.values) < 2:
        doubt = ", one seed: no spread known"
    elif abs(difference) < 2 * noise:
        doubt = ", within two standard errors: not settled"
    return f"{claim.text}: {verdict} ({ours.mean:.2f} against {theirs.mean:.2f}{doubt})"


def _compared(better: ArmResult, worse: ArmResult, experiment: Experiment) -> tuple[Figure | None, Figure | None, bool]:
    """By what the experiment measures; the last says whether higher is better."""
    if not experiment.trains:
        return better.number("speed", "tokens_per_second"), worse.number("speed", "tokens_per_second"), True
    if experiment.shows_perplexity and any("ppl" in arm.arm.paper for arm in (better, worse)):
        return better.number("train", "valid", "ppl"), worse.number("train", "valid", "ppl"), False
    metric = experiment.metric if better.score(experiment.metric) and worse.score(experiment.metric) else "bleu"
    return better.score(metric), worse.score(metric), True


def _charts(arms: Sequence[ArmResult], experiment: Experiment) -> list[Block]:
    blocks: list[Block] = []
    if experiment.plot:
        blocks += _depth_charts(arms, experiment)
    if experiment.shows_gradients:
        blocks += _gradient_charts(arms)
    curves = [Series(arm.arm.label, points) for arm in arms if (points := _points(arm, "valid_curve"))]
    if curves:
        axes = Axes(title="Validation loss", x_label="update", y_label="nats per subword")
        blocks.append(Chart("validation", line_chart(curves, axes), "Validation loss over the updates, first seed"))
    if "weights" in experiment.measures:
        for arm in arms:
            stored: list[Any] = next((run["weights"] for run in arm.runs if run["weights"]), [])
            for number, svg in enumerate(draw([ConnectionWeights.stored(table) for table in stored]), start=1):
                name = f"weights-{_slug(arm.arm.label)}-{number}"
                blocks.append(Chart(name, svg, f"Learned connection weights, {arm.arm.label}"))
    return [Heading("Charts"), *blocks] if blocks else []


def _depth_charts(arms: Sequence[ArmResult], experiment: Experiment) -> list[Block]:
    speed = experiment.plot == "speed"

    def figure(result: ArmResult) -> Figure | None:
        if speed:
            return result.number("speed", "tokens_per_second")
        return None if result.has_failed else result.score(experiment.metric) or result.score("bleu")

    ours, paper = [], []
    for name in dict.fromkeys(arm.arm.line for arm in arms if arm.arm.line):
        there = [(arm, figure(arm)) for arm in arms if arm.arm.line == name and arm.arm.depth is not None]
        known = [(float(arm.arm.depth or 0), found) for arm, found in there if found is not None]
        failed = [str(arm.arm.depth) for arm, _ in there if arm.has_failed]
        title = f"{name} (failed at {', '.join(failed)})" if failed else name
        ours.append(Series(title, [(x, f.mean) for x, f in known], [f.spread for _, f in known]))
        numbers = [(float(arm.arm.depth or 0), arm.arm.paper.get("speed" if speed else "bleu")) for arm, _ in there]
        points = [(x, float(y)) for x, y in numbers if isinstance(y, int | float)]
        if points:
            paper.append(Series(name, points, dashed=True))
    label = "target tokens a second" if speed else "BLEU"

    def chart(name: str, series: Sequence[Series], whose: str, about: str) -> Block:
        axes = Axes(title=f"{whose}: {label}", x_label="encoder layers", y_label=label)
        return Chart(name, line_chart(series, axes), f"{label} against depth, {about}")

    blocks = [chart("depth", ours, "Ours", "ours")]
    return [*blocks, chart("depth-paper", paper, "Paper", "the paper's")] if paper else blocks


def _gradient_charts(arms: Sequence[ArmResult]) -> list[Block]:
    """By layer at the last logged step, and lowest over top layer while training; of the deepest models, first seed."""
    depth = max((len(_gradients(arm)[-1]["norms"]) for arm in arms if _gradients(arm)), default=0)
    by_layer, shares = [], []
    for arm in arms:
        found = _gradients(arm)
        if found and len(found[-1]["norms"]) == depth:
            by_layer.append(Series(arm.arm.label, list(enumerate(found[-1]["norms"], start=1))))
        if found and len(found[-1]["norms"]) > 1:
            points = [(g["step"], g["norms"][0] / g["norms"][-1]) for g in found if g["norms"][-1]]
            shares.append(Series(arm.arm.label, points))
    if not by_layer:
        return []
    title = f"Gradient of each encoder layer, {depth} layers, at the last logged update"
    ratio = "Gradient of the lowest over the top encoder layer"
    layers = Axes(title=title, x_label="encoder layer", y_label="gradient norm", log_y=True)
    steps = Axes(title=ratio, x_label="update", y_label="ratio", log_y=True)
    about = "How much of the gradient reaches the lowest encoder layer while training"
    return [
        Chart("gradients", line_chart(by_layer, layers), title),
        Chart("gradient-share", line_chart(shares, steps), about),
    ]


def _gradients(arm: ArmResult) -> list[dict[str, Any]]:
    return next((run["train"]["gradients"] for run in arm.runs if run["train"] and run["train"]["gradients"]), [])


def _points(arm: ArmResult, name: str) -> list[tuple[float, float]]:
    stored: list[Any] = next((run["train"][name] for run in arm.runs if run["train"] and run["train"][name]), [])
    return [(x, y) for x, y in stored if y == y and abs(y) < 1e6]


def _test_tables(arms: Sequence[ArmResult]) -> list[Block]:
    """Every score of every test set."""
    blocks: list[Block] = []
    for test in _test_sets(arms):
        metrics = list(
            dict.fromkeys(m for arm in arms for run in arm.runs for m in (run["scores"] or {}).get(test, {}))
        )
        if not metrics:
            continue
        rows = [[arm.arm.label, *(_spread(arm.score(metric, test)) for metric in metrics)] for arm in arms]
        blocks += [Heading(f"All scores on {test}"), Table(["model", *metrics], rows)]
    return blocks


def _failures(arms: Sequence[ArmResult]) -> list[Block]:
    found = [f"{arm.arm.label}: {reason}" for arm in arms for reason in dict.fromkeys(arm.failures)]
    return [Heading("What failed, and why"), Bullets(found)] if found else []


def _provenance(content: Mapping[str, Any], arms: Sequence[ArmResult]) -> list[Block]:
    runs = [run for arm in arms for run in arm.runs if run["train"]]
    machines = {", ".join(f"{k} {v}" for k, v in run["train"]["machine"].items()) for run in runs}
    parallel = {run["train"]["parallel"] for run in runs}
    signatures = [f"{name}: `{text}`" for name, text in sorted(_signatures(arms).items())]
    searches = {(run["decode"]["beam"], run["decode"]["length_penalty"]) for run in runs if run["decode"]}
    items = [f"data: `{content['fixed']['data']}`", *(f"machine: {machine}" for machine in sorted(machines))]
    if max(parallel, default=1) > 1:
        items.append(f"up to {max(parallel)} runs at a time on one device: speeds and times are those of shared use")
    items += [f"decoding: beam {beam}, length penalty {alpha:g}" for beam, alpha in sorted(searches)]
    blocks: list[Block] = [Heading("How this was made"), Bullets(items), Code("\n".join(content["commands"]))]
    return [*blocks, Paragraph("Score signatures:"), Bullets(signatures)] if signatures else blocks


def _signatures(arms: Sequence[ArmResult]) -> dict[str, str]:
    return {
        name: score["signature"]
        for arm in arms
        for run in arm.runs
        for of_test in (run["scores"] or {}).values()
        for name, score in of_test.items()
    }


def metric_titles(content: Mapping[str, Any]) -> dict[str, str]:
    """What the scores call themselves."""
    return {
        name: score["name"]
        for run in content["runs"]
        for of_test in (run["scores"] or {}).values()
        for name, score in of_test.items()
    }


def _score(result: ArmResult, score: Figure | None) -> str:
    if result.has_failed:
        return FAILED
    some = f" ({len(result.failures)} of {len(result.runs)} failed)" if result.failures else ""
    return _spread(score) + some


def _spread(figure: Figure | None) -> str:
    if figure is None:
        return ""
    return f"{figure.mean:.2f} ± {figure.spread:.2f}" if len(figure.values) > 1 else f"{figure.mean:.2f}"


def _difference(result: ArmResult, reference: ArmResult, metric: str) -> str:
    if result is reference:
        return "reference"
    score, first = result.score(metric), reference.score(metric)
    return f"{score.mean - first.mean:+.2f}" if score and first else ""


def _paper_difference(result: ArmResult, reference: ArmResult) -> str:
    value, first = result.arm.paper.get("bleu"), reference.arm.paper.get("bleu")
    return f"{value - first:+.2f}" if isinstance(value, int | float) and isinstance(first, int | float) else ""


def _perplexity(result: ArmResult) -> str:
    return FAILED if result.has_failed else _spread(result.number("train", "valid", "ppl"))


def _parameters(result: ArmResult) -> Figure | None:
    return result.number("train", "parameters") or result.number("speed", "parameters")


def _plain(value: float | str | None, unit: str = "") -> str:
    return "" if value is None else f"{value}{unit}"


def _whole(figure: Figure | None) -> str:
    return f"{figure.mean:,.0f}" if figure else ""


def _decimal(figure: Figure | None, divisor: float = 1) -> str:
    return f"{figure.mean / divisor:.1f}" if figure else ""


def _millions(figure: Figure | None) -> str:
    return "" if figure is None else f"{figure.mean / 1e6:.2f}M" if figure.mean < 1e7 else f"{figure.mean / 1e6:.1f}M"


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower()).strip("-")
