"""Rows of cells as text in columns."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], numbers: slice = slice(1, None)) -> str:
    """Columns of numbers are set to the right, all others to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    to_right = range(len(widths))[numbers]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in to_right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
