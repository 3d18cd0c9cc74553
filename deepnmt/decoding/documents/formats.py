"""The formats of documents: by name, and by the ending of a file."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from deepnmt.errors import InputError
from deepnmt.settings import did_you_mean

if TYPE_CHECKING:
    from deepnmt.decoding.documents.document import Document

LINES = "lines"  # no document: one sentence per line
READERS = {
    "html": ("html", "read_page"),
    "markdown": ("markdown", "read_markdown"),
    "po": ("po", "read_po"),
    "srt": ("subtitles", "read_srt"),
    "text": ("prose", "read_text"),
    "vtt": ("subtitles", "read_vtt"),
    "xliff": ("xliff", "read_xliff"),
}
FORMATS = (LINES, *READERS)
ENDINGS = {
    ".htm": "html", ".html": "html", ".xhtml": "html", ".markdown": "markdown", ".md": "markdown", ".po": "po",
    ".pot": "po", ".srt": "srt", ".vtt": "vtt", ".xlf": "xliff",
    ".xliff": "xliff",
}  # fmt: skip
_PACKED = (".gz", ".xz", ".bz2", ".zst")


def format_of(path: Path | None) -> str:
    """The format of a file by its ending, `lines` if that is none of these."""
    name = path.name.lower() if path else ""
    for ending in _PACKED:
        name = name.removesuffix(ending)
    return ENDINGS.get(Path(name).suffix, LINES)


def check_format(name: str) -> str:
    if name not in FORMATS:
        raise InputError(f"unknown format {name!r}; choose from {', '.join(FORMATS)}{did_you_mean(name, FORMATS)}")
    return name


def read_document(text: str, name: str, language: str) -> "Document":
    """A document to translate into the language; an error says the line. A byte order mark is kept."""
    if name not in READERS:
        raise InputError(f"unknown format {name!r}; choose from {', '.join(READERS)}{did_you_mean(name, READERS)}")
    module, reader = READERS[name]
    read = getattr(import_module(f"deepnmt.decoding.documents.{module}"), reader)
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    document: Document = read(text.removeprefix(mark), language)
    document.parts.insert(0, mark)
    return document
