"""The learned weights of the connections between layers: which are worth showing, as tables and as text."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepnmt.analysis.charts import bar_chart, heat_map, page
from deepnmt.errors import InputError
from deepnmt.model.config import StackConfig
from deepnmt.model.connections import Connection
from deepnmt.model.storage import load_meta, load_model
from deepnmt.model.transformer import Stack, Transformer

# The paper's rule for its figure 6: points under either are left blank.
SMALLEST, SMALLEST_SHARE = 0.1, 0.05
RULE = f"Blank: under {SMALLEST} in size, or under {SMALLEST_SHARE:.0%} of the largest of its row."

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ConnectionWeights:
    """W of one stack: rows are what is mixed (x_1, x_2, ...), columns the outputs y_0 (the embedding), y_1, ..."""

    stack: str
    kind: str
    matrix: Matrix
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{len(self.columns) - 1}-layer {self.stack}, {self.kind}"

    def shown(self, mask: bool) -> Matrix:
        """The weights, NaN where they are blank: not connected or, with `mask`, small by the paper's rule."""
        size = np.abs(self.matrix)
        blank = size == 0
        if mask:
            blank |= (size < SMALLEST) | (size < SMALLEST_SHARE * size.max(axis=1, keepdims=True))
        return np.where(blank, np.nan, self.matrix)

    def profile(self, k: int) -> list[tuple[str, float]]:
        """The weight of y_k in everything that follows it, by row; of a single row, the weight of every output."""
        if not 0 <= k < len(self.columns):
            raise InputError(f"--column {k}: the {self.stack} has the columns 0 to {len(self.columns) - 1}")
        if len(self.rows) == 1:
            return [(name, float(weight)) for name, weight in zip(self.columns, self.matrix[0], strict=True)]
        first = k if self.is_square else 0
        return [(self.rows[row], float(self.matrix[row, k])) for row in range(first, len(self.rows))]

    @property
    def is_square(self) -> bool:
        return len(self.rows) == len(self.columns)


def read_weights(folder: Path) -> list[ConnectionWeights]:
    """Of the encoder and the decoder of a MODEL folder, where there is something learned."""
    load_meta(folder)
    model = load_model(folder)
    found = learned_weights(model)
    if not found:
        kinds = " and ".join(f"{stack.connection.kind} {name}" for name, stack in _configs(model))
        raise InputError(
            f"{folder}: {kinds}: its connections have no learned weights to show (dlcl, fusion and transparent have)"
        )
    return found


def learned_weights(model: Transformer) -> list[ConnectionWeights]:
    stacks: list[tuple[str, Stack]] = [("encoder", model.encoder), ("decoder", model.decoder)]
    kinds = {name: config.connection.kind for name, config in _configs(model)}
    return [
        _labelled(name, kinds[name], matrix)
        for name, stack in stacks
        if (matrix := _learned_matrix(stack.connection)) is not None
    ]


def default_column(weights: ConnectionWeights) -> int:
    """The paper's column 10 where the stack is deeper than that, else one in the middle."""
    return 10 if len(weights.columns) > 12 else (len(weights.columns) - 1) // 2


def to_csv(found: list[ConnectionWeights]) -> str:
    """One line a weight; `shown` says whether the paper's rule leaves it in the picture."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["stack", "kind", "row", "column", "weight", "shown"])
    for weights in found:
        shown = ~np.isnan(weights.shown(mask=True))
        for i, row in enumerate(weights.rows):
            for j, column in enumerate(weights.columns):
                if weights.matrix[i, j] != 0:
                    value = repr(round(float(weights.matrix[i, j]), 6))
                    writer.writerow([weights.stack, weights.kind, row, column, value, int(shown[i, j])])
    return text.getvalue()


def to_page(found: list[ConnectionWeights], column: int, mask: bool, title: str) -> str:
    """An HTML page that loads nothing, with every weight under the pointer, those left blank too."""
    sections = []
    for weights in found:
        hover = [
            [f"{row} ← {name}: {value:.4f}" if value else "" for name, value in zip(weights.columns, line, strict=True)]
            for row, line in zip(weights.rows, weights.matrix, strict=True)
        ]
        sections.append(heat_map(weights.shown(mask).tolist(), weights.rows, weights.columns, weights.title, hover))
    of_what = "each output" if len(found[0].rows) == 1 else found[0].columns[column]
    sections.append(bar_chart(found[0].profile(column), f"weight of {of_what} in the {found[0].stack}", "weight"))
    return page(title, [*sections, f"<p>{RULE if mask else 'Every weight is shown.'}</p>"])


def storable_weights(folder: Path) -> list[dict[str, Any]]:
    """The weights of a MODEL folder as plain lists, for a file; none where none are learned."""
    found = learned_weights(load_model(folder))
    return [{**asdict(weights), "matrix": weights.matrix.round(5).tolist()} for weights in found]


def draw_stored(stored: Sequence[Mapping[str, Any]]) -> list[str]:
    """Pictures (SVG) of what `storable_weights` gave: a heat map for each stack, and a column of the first."""
    found = [
        ConnectionWeights(s["stack"], s["kind"], np.array(s["matrix"]), tuple(s["rows"]), tuple(s["columns"]))
        for s in stored
    ]
    drawn = [heat_map(one.shown(mask=True).tolist(), one.rows, one.columns, one.title) for one in found]
    if found:
        column = default_column(found[0])
        title = f"weight of {found[0].columns[column]} in the {found[0].stack}"
        drawn.append(bar_chart(found[0].profile(column), title, "weight"))
    return drawn


def to_text(weights: ConnectionWeights, mask: bool) -> str:
    """Plain numbers in columns, blanks as dots."""
    shown = weights.shown(mask)
    cells = [["", *weights.columns]]
    for label, row in zip(weights.rows, shown, strict=True):
        cells.append([label, *("." if np.isnan(value) else f"{value:.2f}" for value in row)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]
    return "\n".join([weights.title, *(line.rstrip() for line in lines)])


def _configs(model: Transformer) -> list[tuple[str, StackConfig]]:
    return [("encoder", model.config.encoder), ("decoder", model.config.decoder)]


def _learned_matrix(connection: Connection) -> Matrix | None:
    matrix = connection.matrix()
    if matrix is None or not any(p.requires_grad for p in connection.parameters(recurse=False)):
        return None
    return matrix.numpy().astype(np.float64)


def _labelled(stack: str, kind: str, matrix: Matrix) -> ConnectionWeights:
    count = matrix.shape[1]
    columns = tuple(f"y{k}" for k in range(count))
    if kind == "transparent":
        rows = tuple(f"decoder {j + 1}" for j in range(len(matrix)))
    elif kind == "fusion":
        matrix, rows = matrix[-1:], ("result",)  # the rows below it are not learned
    else:
        rows = tuple(f"x{row + 1}" for row in range(len(matrix)))
    return ConnectionWeights(stack, kind, matrix, rows, columns)
