"""Rows of cells as text: in aligned columns, or separated by commas."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


class ShownAsText:
    """A result that a notebook shows as `print` does."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def aligned(rows: Sequence[Sequence[str]], numbers: slice = slice(1, None)) -> str:
    """Align columns of numbers to the right and all others to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    to_right = range(len(widths))[numbers]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in to_right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def comma_separated(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
