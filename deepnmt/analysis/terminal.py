"""The learned weights on a terminal: one coloured cell a weight, as wide as the screen allows."""

import math

from rich.text import Text

from deepnmt.analysis.weights import ConnectionWeights
from deepnmt.heatmap import Colours


def coloured(weights: ConnectionWeights, mask: bool, width: int) -> Text:
    """Cells of four columns with the value in them, or of two without it where the screen is narrow."""
    shown = weights.shown(mask)
    values = [value for row in shown for value in row if not math.isnan(value)]
    colours = Colours.of(shown)
    label = max(map(len, weights.rows)) + 1
    cell = 4 if label + 4 * len(weights.columns) <= width else 2
    text = Text()
    text.append(f"{weights.title}, from {min(values, default=0):.2f} to {max(values, default=0):.2f}\n", "bold")
    text.append(" " * label + "".join(_heading(name, k, cell) for k, name in enumerate(weights.columns)) + "\n", "dim")
    for name, row in zip(weights.rows, shown, strict=True):
        text.append(name.ljust(label), "dim")
        for value in row:
            text.append(*_cell(value, colours, cell))
        text.append("\n")
    return text


def _heading(name: str, k: int, cell: int) -> str:
    if cell == 4:
        return name.rjust(4)
    return f"{k:<4}" if k % 2 == 0 else ""  # one heading for two narrow cells


def _cell(value: float, colours: Colours, cell: int) -> tuple[str, str]:
    if math.isnan(value):
        return " " * cell, ""
    red, green, blue = colours.rgb(value)
    brightness = 0.299 * red + 0.587 * green + 0.114 * blue
    foreground = "#000000" if brightness > 140 else "#ffffff"
    number = f"{value:4.1f}"[:cell] if cell == 4 else "  "
    return number, f"{foreground} on {colours.hex(value)}"
