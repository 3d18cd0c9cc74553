"""A report as blocks, written as Markdown (with separate chart files) and as a self-contained HTML page."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from deepnmt.analysis.charts import page
from deepnmt.files import write_text


@dataclass(frozen=True)
class Block:
    markdown: str
    html: str
    files: dict[str, str] = field(default_factory=dict)  # used by the Markdown


def heading(text: str) -> Block:
    return Block(f"## {text}", f"<h2>{escape(text)}</h2>")


def paragraph(text: str) -> Block:
    return Block(text, f"<p>{_inline(text)}</p>")


def bullets(items: Sequence[str]) -> Block:
    listed = "".join(f"<li>{_inline(item)}</li>" for item in items)
    return Block("\n".join(f"- {item}" for item in items), f"<ul>{listed}</ul>")


def code(text: str) -> Block:
    return Block(f"```\n{text}\n```", f"<pre><code>{escape(text)}</code></pre>")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Block:
    """All columns but the first are numbers."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    markdown = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return Block(markdown, "<table>" + _row(head, "th") + "".join(_row(row, "td") for row in rows) + "</table>")


def chart(name: str, svg: str, about: str) -> Block:
    html = f"<figure>{svg}<figcaption>{escape(about)}</figcaption></figure>"
    return Block(f"![{about}]({name}.svg)", html, {f"{name}.svg": svg + "\n"})


def write_report(folder: Path, title: str, blocks: Sequence[Block]) -> None:
    files: dict[str, str] = {}
    sections = [f"# {title}"]
    for block in blocks:
        section = block.markdown
        for wanted, text in block.files.items():
            name = wanted
            while files.get(name, text) != text:  # of another arm with a similar label
                name = f"{Path(name).stem}-{Path(name).suffix}"
            files[name], section = text, section.replace(f"({wanted})", f"({name})")
        sections.append(section)
    files["report.md"] = "\n\n".join(sections) + "\n"
    files["report.html"] = page(title, [block.html for block in blocks])
    for name, text in files.items():
        write_text(folder / name, text)


def _row(cells: Sequence[str], tag: str) -> str:
    written = (f"<{tag}{' class=n' if i else ''}>{_inline(cell)}</{tag}>" for i, cell in enumerate(cells))
    return f"<tr>{''.join(written)}</tr>"


def _inline(text: str) -> str:
    """Escaped, with **bold** and `code` as in Markdown."""
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text, quote=False))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", text)
