"""Learning curves of runs: validation loss and BLEU over updates, target tokens and seconds of training."""

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from deepnmt.analysis.charts import Axes, Series, line_chart
from deepnmt.columns import ShownAsText, aligned, comma_separated
from deepnmt.errors import InputError
from deepnmt.progress import say
from deepnmt.training.curves import LOG, read_log, seconds_of

SHOWN_ABOVE = 0.6  # nats: the charts leave out the steep beginning, which would flatten all differences
MAX_ROWS = 20  # of a table over updates
MEASURES = {"nll": ("Validation loss", "nats per subword"), "bleu": ("Validation BLEU", "BLEU")}
UNITS = {
    "step": {"updates": 1.0},
    "tokens": {"billion target tokens": 1e9, "million target tokens": 1e6, "target tokens": 1.0},
    "seconds": {"hours of training": 3600.0, "minutes of training": 60.0, "seconds of training": 1.0},
}


@dataclass(frozen=True)
class Point:
    """A validation, and what training had taken until then; validation itself is not counted."""

    step: int
    tokens: int | None  # None before the first line of the log about training
    seconds: float | None
    nll: float  # nats per subword
    bleu: float | None


@dataclass(frozen=True)
class LearningCurves(ShownAsText):
    """The validations of each run, by its name. As text: a summary, and tables over updates."""

    runs: dict[str, list[Point]]

    def __str__(self) -> str:
        return "\n\n".join([_summary(self), *(_table(self, name) for name in _measured(self))])


def read_points(folder: Path) -> list[Point]:
    """The validations in the log of a RUN folder."""
    if not (folder / LOG).is_file():
        raise InputError(f"{folder} is not a RUN folder: it has no {LOG}")
    trained = read_log(folder, "train")
    steps = [0, *(line["step"] for line in trained)]
    tokens = np.cumsum([0, *(line["tokens"] for line in trained)])
    seconds = np.cumsum([0, *map(seconds_of, trained)])

    def taken(step: int) -> tuple[int | None, float | None]:
        """Target tokens and seconds until this step; after the last line, at the pace of that line."""
        if not trained:
            return None, None
        ahead = max(step - steps[-1], 0) / max(steps[-1] - steps[-2], 1)
        count, time = (float(np.interp(step, steps, v) + ahead * (v[-1] - v[-2])) for v in (tokens, seconds))
        return round(count), round(time, 2)

    return [
        Point(line["step"], *taken(line["step"]), line["nll"], line.get("bleu"))
        for line in read_log(folder, "validation")
        if math.isfinite(line["nll"])
    ]


def read_curves(folders: Sequence[Path]) -> LearningCurves:
    """The curves of RUN folders, named by what differs in their paths."""
    paths = [folder.resolve() for folder in folders]
    for path, folder in zip(paths, folders, strict=True):
        if paths.count(path) > 1:
            raise InputError(f"{folder} is given twice")
    names = [Path(path.name) for path in paths]
    if len(paths) > 1:
        names = [path.relative_to(os.path.commonpath(paths)) for path in paths]
    while len({name.name for name in names}) == 1 and all(len(name.parts) > 1 for name in names):
        names = [name.parent for name in names]
    found = {str(name): read_points(folder) for name, folder in zip(names, folders, strict=True)}
    without = ", ".join(name for name, points in found.items() if not points)
    if not any(found.values()):
        raise InputError(f"no validation in the log of {without}; the run had no validation set or was too short")
    if without:
        say(f"left out, for lack of a validation in the log: {without}")
    return LearningCurves({name: points for name, points in found.items() if points})


def draw(curves: LearningCurves) -> list[str]:
    """A row of charts for each measure, over each of UNITS."""
    drawn = []
    for measure in _measured(curves):
        title, y_label = MEASURES[measure]
        highest = math.inf
        if measure == "nll":
            highest = max(min(point.nll for point in points) for points in curves.runs.values()) + SHOWN_ABOVE
            if any(point.nll > highest for points in curves.runs.values() for point in points):
                title += f" below {highest:.2f}"
        for x, units in UNITS.items():
            most = max(getattr(points[-1], x) or 0 for points in curves.runs.values())
            unit, size = next((unit for unit in units.items() if most >= unit[1]), [*units.items()][-1])
            series = []
            for name, points in curves.runs.items():
                places = ((getattr(point, x), getattr(point, measure)) for point in points)
                known = [(at / size, value) for at, value in places if at is not None and value is not None]
                series.append(Series(name, [(at, value) for at, value in known if value <= highest]))
            drawn.append(line_chart(series, Axes(title, unit, y_label)))
    return drawn


def to_csv(curves: LearningCurves) -> str:
    """One line per validation."""
    rows = [[name, *asdict(point).values()] for name, points in curves.runs.items() for point in points]
    return comma_separated([["run", *Point.__dataclass_fields__], *rows])


def _measured(curves: LearningCurves) -> list[str]:
    """The measures that some run has."""
    points = [point for of_run in curves.runs.values() for point in of_run]
    return [name for name in MEASURES if any(getattr(point, name) is not None for point in points)]


def _summary(curves: LearningCurves) -> str:
    has_bleu = "bleu" in _measured(curves)
    rows = [["run", "updates", "target tokens", "seconds", "last loss", "best loss", "at"]]
    rows[0] += ["best BLEU", "at"] if has_bleu else []
    for name, points in curves.runs.items():
        last, best = points[-1], min(points, key=lambda point: point.nll)
        row = [name, f"{last.step:,}"]
        row += ["?" if value is None else f"{value:,.0f}" for value in (last.tokens, last.seconds)]
        rows.append([*row, f"{last.nll:.3f}", f"{best.nll:.3f}", f"{best.step:,}"])
        if scored := [point for point in points if point.bleu is not None]:
            top = max(scored, key=lambda point: point.bleu or 0.0)
            rows[-1] += [f"{top.bleu:.2f}", f"{top.step:,}"]
        elif has_bleu:
            rows[-1] += ["", ""]
    return aligned(rows)


def _table(curves: LearningCurves, measure: str) -> str:
    """A row per update at which a run was validated, and a column per run."""
    of_runs = [{point.step: getattr(point, measure) for point in points} for points in curves.runs.values()]
    steps = sorted({step for of_run in of_runs for step, value in of_run.items() if value is not None})
    every = -(-len(steps) // MAX_ROWS)
    steps = steps[::-every][::-1]  # with the last one
    rows = [["update", *curves.runs]]
    digits = 3 if measure == "nll" else 2
    for step in steps:
        values = [of_run.get(step) for of_run in of_runs]
        rows.append([f"{step:,}", *("" if value is None else f"{value:.{digits}f}" for value in values)])
    return f"{MEASURES[measure][0]}:\n{aligned(rows, slice(0, None))}"
