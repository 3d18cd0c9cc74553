"""Tokenisers of other toolkits. Each format is one file, which reads a folder into a `ForeignText`."""

from collections.abc import Callable
from pathlib import Path

from deepnmt.data.conversion import fsmt, m2m100, marian
from deepnmt.data.conversion.text import ForeignText

TEXTS: dict[str, Callable[[Path, str | None, str | None], ForeignText]] = {
    "marian": marian.read,
    "m2m100": m2m100.read_m2m100,
    "nllb": m2m100.read_nllb,
    "fsmt": fsmt.read,
    "exported": marian.read_exported,
}
