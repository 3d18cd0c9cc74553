"""The learned weights on a terminal: one coloured cell a weight, as wide as the screen allows."""

import math

from rich.text import Text

from deepnmt.analysis.charts import colour
from deepnmt.analysis.weights import ConnectionWeights


def coloured(weights: ConnectionWeights, mask: bool, width: int) -> Text:
    """Cells of four columns with the value in them, or of two without it where the screen is narrow."""
    shown = weights.shown(mask).tolist()
    values = [value for row in shown for value in row if not math.isnan(value)]
    largest = max(map(abs, values), default=1.0)
    diverging = any(value < 0 for value in values)
    label = max(map(len, weights.rows)) + 1
    cell = 4 if label + 4 * len(weights.columns) <= width else 2
    text = Text()
    text.append(f"{weights.title}, from {min(values, default=0):.2f} to {max(values, default=0):.2f}\n", "bold")
    text.append(" " * label + "".join(_heading(name, k, cell) for k, name in enumerate(weights.columns)) + "\n", "dim")
    for name, row in zip(weights.rows, shown, strict=True):
        text.append(name.ljust(label), "dim")
        for value in row:
            text.append(*_cell(value, largest, diverging, cell))
        text.append("\n")
    return text


def _heading(name: str, k: int, cell: int) -> str:
    if cell == 4:
        return name.rjust(4)
    return f"{k:<4}" if k % 2 == 0 else ""  # one heading for two narrow cells


def _cell(value: float, largest: float, diverging: bool, cell: int) -> tuple[str, str]:
    if math.isnan(value):
        return " " * cell, ""
    background = colour(value, largest, diverging)
    brightness = sum(int(background[i : i + 2], 16) * share for i, share in ((1, 0.299), (3, 0.587), (5, 0.114)))
    foreground = "#000000" if brightness > 140 else "#ffffff"
    number = f"{value:4.1f}"[:cell] if cell == 4 else "  "
    return number, f"{foreground} on {background}"
