"""Figures by matplotlib: PNG, SVG or PDF, depending on the file name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deepnmt.analysis.charts import Axes, Series
from deepnmt.analysis.weights import ConnectionWeights
from deepnmt.errors import InputError
from deepnmt.files import replacing
from deepnmt.heatmap import Colours

SUFFIXES = (".png", ".svg", ".pdf")


def weights_figure(found: Sequence[ConnectionWeights], column: int, mask: bool, out: Path) -> None:
    """The paper's figure 6: a heat map for each stack, and one column of the first over depth."""
    plt = _pyplot(out)
    marks = "abc"[: len(found) + 1]
    if found[0].is_square:  # the first heat map on the left, the others on the right
        side = min(max(0.26 * len(found[0].columns), 3.6), 11)
        size, layout = (side + 6.4, max(side + 0.4, 5.2)), "ab;ac" if len(found) > 1 else "ab"
        ratios = {"width_ratios": [side, 5.4]}
    else:  # few rows: one below the other
        heights = [1.1 + 0.36 * len(weights.rows) for weights in found] + [2.6]
        size = (min(max(2.4 + 0.4 * max(len(weights.columns) for weights in found), 6.0), 14), sum(heights))
        layout, ratios = ";".join(marks), {"height_ratios": heights}
    figure, places = plt.subplot_mosaic(layout, figsize=size, layout="constrained", **ratios)
    for weights, mark in zip(found, marks, strict=False):
        _heat_map(figure, places[mark], weights, mask, f"({mark}) ")
    _profile(places[marks[-1]], found[0], column, f"({marks[-1]}) ")
    _save(plt, figure, out)


def lines_figure(charts: Sequence[tuple[Sequence[Series], Axes]], out: Path, columns: int | None = None) -> None:
    """Line charts side by side, `columns` in a row; by default all."""
    plt = _pyplot(out)
    columns = columns or len(charts)
    rows = len(charts) // columns
    size = 6.4 * columns, 4.4 * rows
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for place, (series, described) in zip(axes.flat, charts, strict=True):
        for line in series:
            xs, ys = zip(*line.points, strict=True) if line.points else ((), ())
            style = "--" if line.dashed else "-"
            place.errorbar(xs, ys, yerr=line.spread or None, label=line.name, marker="o", ms=3, ls=style, capsize=3)
        place.set(title=described.title, xlabel=described.x_label, ylabel=described.y_label)
        if described.log_y:
            place.set_yscale("log")
        whole = all(float(x).is_integer() for line in series for x, _ in line.points)
        place.xaxis.get_major_locator().set_params(integer=whole)
        place.grid(alpha=0.3)
        place.legend(fontsize=8)
    _save(plt, figure, out)


def _heat_map(figure: Any, place: Any, weights: ConnectionWeights, mask: bool, mark: str) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    shown = np.array(weights.shown(mask))
    colours = Colours.of(shown.tolist())
    stops = [tuple(part / 255 for part in stop) for stop in colours.stops]
    scale = LinearSegmentedColormap.from_list("weights", stops)
    image = place.imshow(shown, cmap=scale, vmin=colours.lowest, vmax=colours.largest, aspect="equal")
    place.set_facecolor("white")
    for axis, labels, name in (
        (place.xaxis, weights.columns, "output of layer"),
        (place.yaxis, weights.rows, "input of layer" if weights.is_square else ""),
    ):
        every = 1 if len(labels) <= 12 else 2 if len(labels) <= 24 else 5
        ticks = list(range(0, len(labels), every))
        axis.set_ticks(ticks, [_math(labels[tick]) for tick in ticks], fontsize=8)
        axis.set_label_text(name)
    place.set_xticks(np.arange(-0.5, shown.shape[1]), minor=True)
    place.set_yticks(np.arange(-0.5, shown.shape[0]), minor=True)
    place.grid(which="minor", color="#eeeeee", linewidth=0.5)
    place.tick_params(which="minor", length=0)
    place.set_title(f"{mark}{weights.title}", fontsize=10)
    figure.colorbar(image, ax=place, shrink=0.8, label="weight", aspect=30 if weights.is_square else 8)


def _profile(place: Any, weights: ConnectionWeights, column: int, mark: str) -> None:
    bars = weights.profile(column)
    values = [value for _, value in bars]
    places = range(len(bars))
    drawn = place.bar(places, values, color="#6baed6", width=0.8)
    decimals = 1 if max(map(abs, values)) >= 1 else 2
    if len(bars) <= 32:
        place.bar_label(drawn, labels=[f"{value:.{decimals}f}" for value in values], fontsize=6, padding=1)
    every = 1 if len(bars) <= 18 else 2
    place.set_xticks(list(places)[::every], [_math(name) for name, _ in bars][::every], fontsize=8)
    place.axhline(0, color="#444444", linewidth=0.8)
    place.margins(y=0.15)
    if len(bars) < 8:
        place.set_xlim(-1, max(len(bars), 5))
    place.set_title(mark + weights.profile_title(column), fontsize=10)
    place.set_ylabel("weight")


def _math(label: str) -> str:
    """`y10` as a symbol with a subscript."""
    name, number = label[0], label[1:]
    return f"${name}_{{{number}}}$" if number.isdecimal() else label


def _pyplot(out: Path) -> Any:
    if out.suffix not in SUFFIXES:
        raise InputError(f"{out}: the file name of a figure must end in {', '.join(SUFFIXES)}")
    try:
        import matplotlib
    except ImportError as error:
        raise InputError(f"{out} needs matplotlib: pip install 'deepnmt[plot]' (or write .html or .csv)") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(plt: Any, figure: Any, out: Path) -> None:
    try:
        with replacing(out) as aside:
            dates = {".svg": "Date", ".pdf": "CreationDate"}  # without which equal figures are equal files
            undated = {dates[out.suffix]: None} if out.suffix in dates else {}
            figure.savefig(aside, format=out.suffix[1:], dpi=200, metadata=undated)
    finally:
        plt.close(figure)
