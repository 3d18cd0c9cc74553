"""The learned weights between layers and around sub-layers as tables, text and plots."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from deepnmt import heatmap
from deepnmt.analysis.charts import bar_chart, heat_map
from deepnmt.columns import aligned, comma_separated
from deepnmt.errors import InputError
from deepnmt.model.layers import Layer
from deepnmt.model.sublayers import SUBLAYERS
from deepnmt.model.transformer import Transformer

DECIMALS = 6


@dataclass(frozen=True)
class StackMatrix:
    """A matrix about the layers of one stack, with names for its rows and columns."""

    stack: str
    kind: str
    matrix: list[list[float]]
    rows: Sequence[str]
    columns: Sequence[str]

    @property
    def title(self) -> str:
        depth = self.columns[-1].removeprefix("y").removeprefix("layer ")
        return f"{depth}-layer {self.stack}, {self.kind}"

    def shown(self, mask: bool) -> list[list[float]]:
        return heatmap.shown(self.matrix, mask)


class ConnectionWeights(StackMatrix):
    """W of one stack: rows are the mixtures (x_1, x_2, ...), columns the outputs y_0 (the embedding), y_1, ...

    Or the factors of its sub-layers, averaged over dimensions: rows are the sub-layers, columns the layers.
    """

    def profile(self, k: int) -> list[tuple[str, float]]:
        """The weights of y_k in the mixtures that have it, by row; for a single row, the weights of all outputs."""
        if not 0 <= k < len(self.columns):
            raise InputError(f"column = {k}: the {self.stack} has columns 0 to {len(self.columns) - 1}")
        if len(self.rows) == 1:
            return list(zip(self.columns, self.matrix[0], strict=True))
        column = [(name, row[k]) for name, row in zip(self.rows, self.matrix, strict=True)]
        return [(name, value) for name, value in column if value != 0 or self.columns[0] != "y0"]

    def profile_title(self, k: int) -> str:
        of_what = "each output" if len(self.rows) == 1 else self.columns[k]
        return f"weight of {of_what} in the {self.stack}"

    @property
    def default_column(self) -> int:
        """Column 10, as in the paper, if the stack is deep enough, else the middle one."""
        return 10 if len(self.columns) > 12 else (len(self.columns) - 1) // 2


def learned_weights(model: Transformer) -> list[ConnectionWeights]:
    found = []
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if (learned := stack.connection.learned_weights()) is not None:
            matrix = [[round(value, DECIMALS) for value in row] for row in learned.matrix.tolist()]
            columns = tuple(f"y{k}" for k in range(len(matrix[0])))
            kind = getattr(model.config, name).connection.kind
            found.append(ConnectionWeights(name, kind, matrix, learned.rows, columns))
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        kind = model.config.sublayer_of(getattr(model.config, name)).kind
        if SUBLAYERS[kind].learns_factors:
            found.append(_factors(name, kind, [layer for layer in stack.layers if isinstance(layer, Layer)]))
    return found


def _factors(stack: str, kind: str, layers: list[Layer]) -> ConnectionWeights:
    by_layer = [
        [sublayer.weight.detach().float().mean().item() for sublayer, _ in layer.sublayers()] for layer in layers
    ]
    matrix = [[round(value, DECIMALS) for value in row] for row in zip(*by_layer, strict=True)]
    rows = ("attention", "feed-forward") if stack == "encoder" else ("attention", "cross-attention", "feed-forward")
    return ConnectionWeights(stack, kind, matrix, rows, tuple(f"layer {k}" for k in range(1, len(layers) + 1)))


def to_csv(found: Sequence[ConnectionWeights]) -> str:
    """One line per weight; `shown` is 1 if the paper's figure would show it."""
    rows: list[Sequence[object]] = [["stack", "kind", "row", "column", "weight", "shown"]]
    for weights in found:
        for row, values, drawn in zip(weights.rows, weights.matrix, weights.shown(mask=True), strict=True):
            for column, value, shown in zip(weights.columns, values, drawn, strict=True):
                if value != 0:
                    rows.append([weights.stack, weights.kind, row, column, value, int(not math.isnan(shown))])
    return comma_separated(rows)


def draw(found: Sequence[ConnectionWeights], column: int | None = None, mask: bool = True) -> list[str]:
    """The paper's figure 6: a heat map for each stack, and one column of the first over depth."""
    if not found:
        return []
    drawn = [heat_map(one.matrix, one.rows, one.columns, one.title, mask) for one in found]
    column = found[0].default_column if column is None else column
    return [*drawn, bar_chart(found[0].profile(column), found[0].profile_title(column), "weight")]


def to_text(weights: StackMatrix, mask: bool) -> str:
    """Numbers in columns, with dots for blanks."""
    rows = [
        [label, *("." if math.isnan(value) else f"{value:.2f}" for value in row)]
        for label, row in zip(weights.rows, weights.shown(mask), strict=True)
    ]
    return "\n".join([weights.title, aligned([["", *weights.columns], *rows])])


def coloured(weights: StackMatrix, mask: bool, width: int) -> Text:
    """For a terminal: one coloured cell per weight, with its value unless the screen is narrow."""
    shown = weights.shown(mask)
    values = [value for row in shown for value in row if not math.isnan(value)]
    colours = heatmap.Colours.of(shown)
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


def _cell(value: float, colours: heatmap.Colours, cell: int) -> tuple[str, str]:
    if math.isnan(value):
        return " " * cell, ""
    red, green, blue = colours.rgb(value)
    brightness = 0.299 * red + 0.587 * green + 0.114 * blue
    foreground = "#000000" if brightness > 140 else "#ffffff"
    number = f"{value:4.1f}"[:cell] if cell == 4 else "  "
    return number, f"{foreground} on {colours.hex(value)}"
