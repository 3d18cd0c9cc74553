"""Tokenisers of other toolkits. Each format is one file, which reads a folder into a `ForeignText`."""

from collections.abc import Callable
from pathlib import Path

from deepnmt.data.conversion import fsmt, m2m100, marian
from deepnmt.data.conversion.text import ForeignText
from deepnmt.errors import InputError

TEXTS: dict[str, Callable[[Path, str | None, str | None], ForeignText]] = {
    "marian": marian.read,
    "m2m100": m2m100.read_m2m100,
    "nllb": m2m100.read_nllb,
    "fsmt": fsmt.read,
    "exported": marian.read_exported,
}


def read_text(toolkit: str, folder: Path, source_lang: str | None, target_lang: str | None) -> ForeignText:
    try:
        return TEXTS[toolkit](folder, source_lang, target_lang)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        content = f"{type(error).__name__}: {error}"
        raise InputError(f"the tokeniser files in {folder} are not those of {toolkit} ({content})") from error
