"""Lines of text around a translation: invalid bytes are replaced with a warning, and output lines stay whole."""

import re
from collections.abc import Callable, Sequence

from deepnmt.progress import say
from deepnmt.text import shortened

MAX_WARNINGS = 20
_LINE_BREAKS = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")

Warn = Callable[[int, str], None]  # the number of a line or text, from zero, and the message


class LineWarnings:
    """Warnings about lines of the input, on standard error; after the first few, only their number."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0

    def after(self, first: int) -> Warn:
        """For a chunk of lines of which `first` came before."""

        return lambda number, message: self._say(f"line {first + number + 1:,}", message)

    def about(self, sentence: str, message: str) -> None:
        """For a sentence of a document."""
        self._say(repr(shortened(sentence)), message)

    def _say(self, place: str, message: str) -> None:
        self.count += 1
        if self.count <= MAX_WARNINGS:
            say(f"{place} of {self.name} {message}")

    def summarise(self) -> None:
        if self.count > MAX_WARNINGS:
            say(f"{self.count - MAX_WARNINGS:,} more warnings about {self.name}")


def decoded(lines: Sequence[bytes], warn: Warn) -> list[str]:
    texts = []
    for number, line in enumerate(lines):
        try:
            texts.append(line.decode())
        except UnicodeDecodeError:
            warn(number, "is not valid UTF-8: invalid bytes are replaced")
            texts.append(line.decode(errors="replace"))
    return texts


def one_line(text: str) -> str:
    """Replace line breaks and tabs by spaces, so that a text stays in its line and column."""
    return _LINE_BREAKS.sub(" ", text)
