"""A report as blocks, written as Markdown (charts in files beside it) and as one HTML page that loads nothing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from deepnmt.analysis.charts import page
from deepnmt.files import replacing


@dataclass(frozen=True)
class Heading:
    text: str

    def markdown(self) -> str:
        return f"## {self.text}"

    def html(self) -> str:
        return f"<h2>{escape(self.text)}</h2>"


@dataclass(frozen=True)
class Paragraph:
    text: str

    def markdown(self) -> str:
        return self.text

    def html(self) -> str:
        return f"<p>{_inline(self.text)}</p>"


@dataclass(frozen=True)
class Bullets:
    items: Sequence[str]

    def markdown(self) -> str:
        return "\n".join(f"- {item}" for item in self.items)

    def html(self) -> str:
        return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in self.items) + "</ul>"


@dataclass(frozen=True)
class Code:
    text: str

    def markdown(self) -> str:
        return f"```\n{self.text}\n```"

    def html(self) -> str:
        return f"<pre><code>{escape(self.text)}</code></pre>"


@dataclass(frozen=True)
class Table:
    """Columns from the second on are numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.head, ["---", *("---:" for _ in self.head[1:])], *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    def html(self) -> str:
        return "<table>" + _row(self.head, "th") + "".join(_row(row, "td") for row in self.rows) + "</table>"


@dataclass(frozen=True)
class Chart:
    name: str
    svg: str
    about: str

    def markdown(self) -> str:
        return f"![{self.about}]({self.name}.svg)"

    def html(self) -> str:
        return f"<figure>{self.svg}<figcaption>{escape(self.about)}</figcaption></figure>"


Block = Heading | Paragraph | Bullets | Code | Table | Chart


def write_report(folder: Path, title: str, blocks: Sequence[Block]) -> None:
    files = {f"{block.name}.svg": block.svg + "\n" for block in blocks if isinstance(block, Chart)}
    files["report.md"] = f"# {title}\n\n" + "\n\n".join(block.markdown() for block in blocks) + "\n"
    files["report.html"] = page(title, [block.html() for block in blocks])
    for name, text in files.items():
        with replacing(folder / name) as aside:
            aside.write_text(text, encoding="utf-8")


def _row(cells: Sequence[str], tag: str) -> str:
    written = (f"<{tag}{' class=n' if i else ''}>{_inline(cell)}</{tag}>" for i, cell in enumerate(cells))
    return f"<tr>{''.join(written)}</tr>"


def _inline(text: str) -> str:
    """Escaped, with **bold** and `code` as in Markdown."""
    text = escape(text, quote=False)
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    return re.sub(r"`(.+?)`", r"<code>\1</code>", text)
