"""A report as blocks, written as Markdown (charts in files beside it) or as one HTML page that loads nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from deepnmt.analysis.charts import page
from deepnmt.files import replacing


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Bullets:
    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Table:
    """Columns from the second on are numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Chart:
    name: str
    svg: str
    about: str


Block = Heading | Paragraph | Bullets | Code | Table | Chart


def write_report(folder: Path, title: str, blocks: Sequence[Block], stem: str = "report") -> None:
    for block in blocks:
        if isinstance(block, Chart):
            _write(folder / f"{block.name}.svg", block.svg + "\n")
    _write(folder / f"{stem}.md", f"# {title}\n\n" + "\n\n".join(map(_markdown, blocks)) + "\n")
    _write(folder / f"{stem}.html", page(title, [_html(block) for block in blocks]))


def _write(path: Path, text: str) -> None:
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")


def _markdown(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {text}"
        case Paragraph(text):
            return text
        case Bullets(items):
            return "\n".join(f"- {item}" for item in items)
        case Code(text):
            return f"```\n{text}\n```"
        case Table(head, rows):
            ruler = ["---", *("---:" for _ in head[1:])]
            return "\n".join(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in [head, ruler, *rows])
        case Chart(name, _, about):
            return f"![{about}]({name}.svg)"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _html(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{escape(text)}</h2>"
        case Paragraph(text):
            return f"<p>{_inline(text)}</p>"
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>"
        case Code(text):
            return f"<pre><code>{escape(text)}</code></pre>"
        case Table(head, rows):
            first = _row(head, "th")
            return "<table>" + first + "".join(_row(row, "td") for row in rows) + "</table>"
        case Chart(_, svg, about):
            return f"<figure>{svg}<figcaption>{escape(about)}</figcaption></figure>"


def _row(cells: Sequence[str], tag: str) -> str:
    written = (f"<{tag}{' class=n' if i else ''}>{_inline(cell)}</{tag}>" for i, cell in enumerate(cells))
    return f"<tr>{''.join(written)}</tr>"


def _inline(text: str) -> str:
    """Escaped, with **bold** and `code` as in Markdown."""
    for mark, tag in (("**", "b"), ("`", "code")):
        parts = text.split(mark)
        if len(parts) > 2:
            text = "".join(part if i % 2 == 0 else f"\0{tag}\1{part}\0/{tag}\1" for i, part in enumerate(parts))
    return escape(text, quote=False).replace("\0", "<").replace("\1", ">")
