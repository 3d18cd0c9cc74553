"""Charts as SVG text: heat maps with values on hover, lines with error bars, bars.

They consist of `rect`, `polyline`, `circle` and `text`, which `figures` can also draw.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from deepnmt import heatmap

PALETTE = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
DASHES = ("", "6 3", "2 2", "8 3 2 3")
FONT = "font-family='Helvetica, Arial, sans-serif'"
CHARACTER = 5.5  # width at size 10
TITLE_CHARACTER = 9  # width at size 14, bold
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 640, 70, 620, 40, 330  # of a line chart, and the frame in it

Point = tuple[float, float, float]  # x, y, spread


@dataclass(frozen=True)
class Series:
    """A line: points (x, y), each with an optional spread (half the length of its error bar)."""

    name: str
    points: Sequence[tuple[float, float]]
    spread: Sequence[float] = ()
    dashed: bool = False


@dataclass(frozen=True)
class Axes:
    title: str
    x_label: str
    y_label: str
    log_y: bool = False


def heat_map(
    matrix: heatmap.Matrix,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    mask: bool = True,
    joint: str = "←",
) -> str:
    """One square per weight, small ones blank if `mask`; hovering shows every weight, its names joined by `joint`."""
    shown = heatmap.shown(matrix, mask)
    colours = heatmap.Colours.of(shown)
    cell = max(14, min(34, 620 // max(len(columns), 1)))
    left, top = 16 + 7 * max(map(len, rows)), 46
    width, height = left + cell * len(columns) + 110, top + cell * len(rows) + 34
    parts = [_text(left, 20, title, size=14, weight="bold")]
    every = max(1 if cell >= 24 or len(columns) <= 10 else 2, _every(columns, cell))
    for j, name in list(enumerate(columns))[::every]:
        parts.append(_text(left + (j + 0.5) * cell, top - 6, name, anchor="middle", size=10))
    for i, name in enumerate(rows):
        y = top + i * cell
        parts.append(_text(left - 6, y + cell / 2 + 4, name, anchor="end", size=10))
        for j, (value, drawn) in enumerate(zip(matrix[i], shown[i], strict=True)):
            if value:
                fill = "#fff" if math.isnan(drawn) else colours.hex(drawn)
                note = escape(f"{name} {joint} {columns[j]}: {value:.4f}")
                parts.append(
                    f"<rect x='{left + j * cell:g}' y='{y:g}' width='{cell}' height='{cell}' fill='{fill}' "
                    f"stroke='#fff' stroke-width='0.5'><title>{note}</title></rect>"
                )
    size = f"width='{cell * len(columns)}' height='{cell * len(rows)}'"
    frame = f"<rect x='{left}' y='{top}' {size} fill='none' stroke='#444'/>"
    bar = _colour_bar(left + cell * len(columns) + 24, top, max(min(cell * len(rows), 220), 60), colours)
    return _svg(max(width, left + _width(title)), max(height, top + 110), [*parts, frame, *bar])


def bar_chart(bars: Sequence[tuple[str, float]], title: str, y_label: str) -> str:
    """One bar per value, labelled; negative ones below the line."""
    step, left, top, plot = max(26, min(60, 700 // max(len(bars), 1))), 60, 50, 200
    high = max([value for _, value in bars] + [0.0])
    low = min([value for _, value in bars] + [0.0])
    scale = plot / ((high - low) or 1.0)
    zero, every = top + high * scale, _every([name for name, _ in bars], step)
    label = _text(16, top + plot / 2, y_label, size=12, anchor="middle", turned=True)
    parts = [_text(left, 22, title, size=14, weight="bold"), label]
    for i, (name, value) in enumerate(bars):
        x, size = left + i * step, abs(value) * scale
        y = zero - size if value >= 0 else zero
        parts.append(
            f"<rect x='{x + 3}' y='{y:.1f}' width='{step - 6}' height='{max(size, 0.5):.1f}' fill='#6baed6'>"
            f"<title>{escape(name)}: {value:.3f}</title></rect>"
        )
        parts.append(
            _text(x + step / 2, y - 4 if value >= 0 else y + size + 11, f"{value:.2f}", anchor="middle", size=9)
        )
        if i % every == 0:
            parts.append(_text(x + step / 2, top + plot + 28, name, anchor="middle", size=10))
    parts.append(_polyline([(left, zero), (left + step * len(bars), zero)], "stroke='#444'"))
    return _svg(left + max(step * len(bars) + 20, _width(title)), top + plot + 40, parts)


def line_chart(series: Sequence[Series], axes: Axes) -> str:
    """Lines with error bars and a legend; values that a log axis cannot show are omitted."""
    drawn = [_drawable(line, axes.log_y) for line in series]
    points = [point for line in drawn for point in line]
    if not points:
        return _svg(WIDTH, 60, [_text(20, 30, f"{axes.title}: no data yet", size=14)])
    frame = _Frame.around(points, axes)
    parts = [_text(LEFT, 22, axes.title, size=14, weight="bold"), *frame.grid(axes)]
    names, top = [], BOTTOM + 54
    for number, (line, of_line) in enumerate(zip(series, drawn, strict=True)):
        stroke, dashes = PALETTE[number % len(PALETTE)], _dashes(line, number)
        parts += _line(line.name, of_line, stroke, dashes, frame)
        x, y = LEFT + (number % 2) * (WIDTH // 2 - 40), top + 18 * (number // 2)
        names.append(_polyline([(x, y - 4), (x + 30, y - 4)], f"stroke='{stroke}' stroke-width='2.5'{dashes}"))
        names.append(_text(x + 36, y, line.name, size=11))
    return _svg(WIDTH, top + 18 * ((len(drawn) + 1) // 2), [*parts, *names])


def grid(pictures: Sequence[str], columns: int) -> str:
    """Pictures in one, `columns` in a row."""
    sizes = [re.search(r"width='(\S+)' height='(\S+)'", picture) for picture in pictures]
    widths, heights = ([float(size[i]) for size in sizes if size] for i in (1, 2))
    wide = [max(widths[column::columns]) for column in range(min(columns, len(pictures)))]
    high = [max(heights[start : start + columns]) for start in range(0, len(pictures), columns)]
    placed = [
        f"<g transform='translate({sum(wide[: i % columns]):g} {sum(high[: i // columns]):g})'>{picture}</g>"
        for i, picture in enumerate(pictures)
    ]
    return _svg(sum(wide), sum(high), placed)


@dataclass(frozen=True)
class _Frame:
    """Maps values to positions in the chart."""

    xs: tuple[float, float]
    ys: tuple[float, float]
    log: bool
    whole: bool  # all x are whole numbers, and so are their ticks

    @classmethod
    def around(cls, points: Sequence[Point], axes: Axes) -> "_Frame":
        xs = [x for x, _, _ in points]
        low = min(y if axes.log_y else y - spread for _, y, spread in points)
        high = max(y if axes.log_y else y + spread for _, y, spread in points)
        if axes.log_y:
            ys = (math.floor(math.log10(low)), math.ceil(math.log10(high)))
            ys = ys if ys[0] < ys[1] else (ys[0] - 1, ys[1] + 1)
        else:
            room = 0.08 * ((high - low) or abs(high) or 1.0)
            ys = (low - room, high + room)  # type: ignore[assignment]
        wide = (min(xs), max(xs)) if min(xs) < max(xs) else (min(xs) - 1, max(xs) + 1)
        return cls(wide, ys, axes.log_y, all(float(x).is_integer() for x in xs))

    def x(self, value: float) -> float:
        return LEFT + 8 + (value - self.xs[0]) / (self.xs[1] - self.xs[0]) * (RIGHT - LEFT - 16)

    def y(self, value: float) -> float:
        place = math.log10(value) if self.log else value
        return BOTTOM - (place - self.ys[0]) / (self.ys[1] - self.ys[0]) * (BOTTOM - TOP)

    def grid(self, axes: Axes) -> list[str]:
        parts = [
            f"<rect x='{LEFT}' y='{TOP}' width='{RIGHT - LEFT}' height='{BOTTOM - TOP}' fill='none' stroke='#999'/>",
            _text((LEFT + RIGHT) / 2, BOTTOM + 34, axes.x_label, anchor="middle", size=12),
            _text(18, (TOP + BOTTOM) / 2, axes.y_label, size=12, anchor="middle", turned=True),
        ]
        for tick in _ticks(*self.xs):
            if tick.is_integer() or not self.whole:
                parts.append(_text(self.x(tick), BOTTOM + 16, f"{tick:g}", anchor="middle", size=10))
        for value, label in self._y_ticks():
            y = self.y(value)
            parts.append(_polyline([(LEFT, y), (RIGHT, y)], "stroke='#e4e4e4'"))
            parts.append(_text(LEFT - 6, y + 4, label, anchor="end", size=10))
        return parts

    def _y_ticks(self) -> list[tuple[float, str]]:
        if not self.log:
            return [(tick, f"{tick:g}") for tick in _ticks(*self.ys)]
        low, high = int(self.ys[0]), int(self.ys[1])
        every = max(1, (high - low) // 8)
        return [(10.0**power, f"1e{power}") for power in range(low, high + 1, every)]


def _dashes(line: Series, number: int) -> str:
    """Dashes tell lines apart when colours repeat."""
    dash = DASHES[1] if line.dashed else DASHES[(number // len(PALETTE)) % len(DASHES)]
    return f" stroke-dasharray='{dash}'" if dash else ""


def _line(name: str, points: Sequence[Point], stroke: str, dashes: str, frame: _Frame) -> list[str]:
    style = f"stroke='{stroke}' stroke-width='2'"
    parts = [_polyline([(frame.x(x), frame.y(y)) for x, y, _ in points], style + dashes)]
    for x, y, spread in points:
        px, note = frame.x(x), f"{name}: {y:.4g} at {x:g}"
        if spread and not frame.log:
            low, high = frame.y(y - spread), frame.y(y + spread)
            bar = [(px - 4, low), (px + 4, low), (px, low), (px, high), (px - 4, high), (px + 4, high)]
            parts.append(_polyline(bar, style))
        mark = f"<circle cx='{px:.1f}' cy='{frame.y(y):.1f}' r='3.2' fill='{stroke}'>"
        parts.append(f"{mark}<title>{escape(note)}</title></circle>")
    return parts


def _drawable(line: Series, log: bool) -> list[Point]:
    points = zip(line.points, line.spread or [0.0] * len(line.points), strict=True)
    return [(x, y, spread) for (x, y), spread in points if math.isfinite(y) and (y > 0 or not log)]


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    return [float(round(k * step, 10)) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _every(labels: Sequence[str], space: float) -> int:
    """Which labels fit: every first, second, third ..."""
    return math.ceil(CHARACTER * max(map(len, labels), default=0) / space)


def _width(title: str) -> float:
    return TITLE_CHARACTER * len(title)


def _colour_bar(x: float, y: float, height: float, colours: heatmap.Colours) -> list[str]:
    count = 40
    span = colours.largest - colours.lowest
    parts = []
    for i in range(count):
        fill = colours.hex(colours.largest - span * (i + 0.5) / count)
        top, size = y + i * height / count, height / count + 0.5
        parts.append(f"<rect x='{x}' y='{top:.1f}' width='14' height='{size:.1f}' fill='{fill}'/>")
    for share in (0.0, 0.5, 1.0):
        parts.append(_text(x + 20, y + share * height + 4, f"{colours.largest - span * share:.2g}", size=10))
    return parts


def _polyline(points: Sequence[tuple[float, float]], style: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f"<polyline points='{path}' fill='none' {style}/>"


def _text(
    x: float, y: float, text: str, *, size: int, anchor: str = "start", weight: str = "normal", turned: bool = False
) -> str:
    turn = f" transform='rotate(-90 {x:.1f} {y:.1f})'" if turned else ""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' {FONT} font-size='{size}' text-anchor='{anchor}' font-weight='{weight}' "
        f"fill='#222'{turn}>{escape(text)}</text>"
    )


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    size = f"viewBox='0 0 {width:g} {height:g}' width='{width:g}' height='{height:g}'"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' {size}>"
        f"\n<rect width='100%' height='100%' fill='#fff'/>\n{body}\n</svg>"
    )


def page(title: str, sections: Sequence[str]) -> str:
    """A self-contained HTML page."""
    style = (
        "body{font:15px/1.5 Helvetica,Arial,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}"
        "svg{max-width:100%;height:auto}figure{margin:1em 0}code{font-size:13px}rect:hover{stroke:#000}"
        "table{border-collapse:collapse;margin:1em 0;display:block;overflow-x:auto}"
        "td,th{padding:.25em .7em;border-bottom:1px solid #ddd;text-align:left;white-space:nowrap;font-size:13px}"
        "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}"
    )
    body = "\n".join(sections)
    return (
        f"<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n<title>{escape(title)}</title>\n"
        f"<style>{style}</style>\n<h1>{escape(title)}</h1>\n{body}\n</html>\n"
    )
