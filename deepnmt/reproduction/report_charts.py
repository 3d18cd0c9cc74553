"""The charts of a report: scores over depth, gradients and validation loss of training, learned weights."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from deepnmt.analysis.charts import Axes, Series, line_chart
from deepnmt.analysis.weights import ConnectionWeights, draw
from deepnmt.evaluation.metrics import METRICS
from deepnmt.reproduction.blocks import Block, chart
from deepnmt.reproduction.experiment import Experiment
from deepnmt.reproduction.results import ArmResult

Arms = Sequence[ArmResult]
FAR_BEHIND = 0.4  # nats: a chart that shows more cannot show the differences between the others


def all_charts(arms: Arms, experiment: Experiment) -> list[Block]:
    return [*_depth_charts(arms, experiment), *_training_charts(arms, experiment), *_weights(arms, experiment)]


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
        for number, svg in enumerate(draw([ConnectionWeights(**weights) for weights in stored]), start=1):
            yield chart(f"weights-{slug}-{number}", svg, f"Learned connection weights, {arm.arm.label}")
