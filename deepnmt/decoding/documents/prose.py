"""Running text: sentences are translated one by one, and lines, paragraphs, columns and indents are kept.

Text that was broken into lines of a fixed width is joined for the translation, and broken again.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from deepnmt.decoding.documents.document import Document, Part
from deepnmt.decoding.documents.layout import width_of, wrapped
from deepnmt.decoding.documents.passages import passages
from deepnmt.decoding.documents.tokens import Token, text_token
from deepnmt.decoding.translator import Hypothesis

MIN_WIDTH, MAX_WIDTH = 50, 100  # of text that was broken into lines by a program
RAGGED = 15  # columns by which lines differ in such a text
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
# Spaces that make columns, unless they are between sentences.
_COLUMNS = re.compile(r"(?<=[^\s.!?…:])(?:[ ]{2,}|\s*\t\s*)(?=\S)")
_ENDED = re.compile(r"[.!?…:;。！？][\"'”’»)\]]*$")
_BULLET = re.compile(r"(?:[-*+•–—]|\w{1,2}\))\s+")
_LISTED = re.compile(rf"{_BULLET.pattern}|\d{{1,3}}\.\s")
_CONTINUES = re.compile(r"[^\W_]|[\"'“‘„«(\[<{%$]")
# Names of command-line options: -v, --verbose=LEVEL
_OPTIONS = re.compile(r"-{1,2}[\w?][^\s,]*(?:(?:,\s*|\s+)-{1,2}[\w?][^\s,]*)*,?")

Tokens = Callable[[str], Iterable[Token]]


def read_text(text: str, language: str) -> Document:
    return Document(paragraphs(text, language))


def _plain(text: str) -> Sequence[Token]:
    return [text_token(text)]


def paragraphs(
    text: str, language: str, tokens_of: Tokens = _plain, escape: Callable[[str], str] = str
) -> Iterator[str | Part]:
    """The paragraphs of a text, and what is between them. `tokens_of` finds the tags in a paragraph, and `escape`
    writes its new text."""

    def inside(content: str) -> Iterator[str | Part]:
        return passages(tokens_of(content), language, escape)

    lines = _LINE.findall(text)
    widths = [width_of(line.rstrip()) for line in lines]
    width = max(widths, default=0)
    is_even = sum(own > width - RAGGED for own in widths) > 2
    start = 0
    for end in range(1, len(lines) + 1):
        if end < len(lines) and _is_continued(lines[end - 1], lines[end], width, end - 1 == start, is_even):
            continue
        yield from _paragraph(lines[start:end], width, inside)
        start = end


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _is_continued(line: str, following: str, width: int, is_first: bool, is_even: bool) -> bool:
    """Did a program break the line here, because the next word did not fit? Unless there are several lines of similar
    widths, only a small letter says so."""
    last, content = line.strip(), following.strip()
    if not MIN_WIDTH <= width <= MAX_WIDTH or not last or not content or _ENDED.search(last):
        return False
    if _LISTED.match(content) or not _CONTINUES.match(content) or any(map(_COLUMNS.search, (last, content))):
        return False
    if not (is_first or _indent(line) == _indent(following)) or not (is_even or content[0].islower()):
        return False
    return width_of(line.rstrip()) + 1 + width_of(content.split()[0]) > width


def _paragraph(lines: list[str], width: int, parts_of: Callable[[str], Iterator[str | Part]]) -> Iterator[str | Part]:
    """A paragraph without the white space and the bullet around it; of one line, its columns."""
    raw = "".join(lines)
    content = raw.strip()
    if bullet := _BULLET.match(content):
        content = content[bullet.end() :]
    start = raw.index(content) if content else len(raw)
    yield raw[:start]
    if len(lines) > 1:
        inside = [lines[0][start:], *lines[1:]]
        yield Wrapped(inside, width, start, Document(parts_of(_joined(inside))))
    else:
        at = 0
        for match in [*_COLUMNS.finditer(content), None]:
            column = content[at : match.start() if match else len(content)]
            yield from [column] if _OPTIONS.fullmatch(column) else parts_of(column)
            yield match.group() if match else ""
            at = match.end() if match else at
    yield raw[start + len(content) :]


def _joined(lines: Sequence[str]) -> str:
    return " ".join(line.strip() for line in lines)


class Wrapped(Part):
    """A paragraph of several lines, the first of them without its `indent`, which is translated as one text and broken
    into lines again."""

    def __init__(self, lines: Sequence[str], width: int, indent: int, inside: Document) -> None:
        self.lines, self.width, self.inside = lines, width - max(indent, len(_indent(lines[1]))), inside

    @property
    def sentences(self) -> list[tuple[str, bool]]:
        return self.inside.sentences

    def written(self, hypotheses: Iterator[Hypothesis]) -> str:
        text = self.inside.written(hypotheses)
        if text == _joined(self.lines):
            return "".join(self.lines).strip()
        end = "\r\n" if self.lines[0].endswith("\r\n") else "\n"
        return f"{end}{_indent(self.lines[1])}".join(wrapped(text, self.width))
