"""A report as blocks of Markdown, written as such (with separate chart files) and as a self-contained HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

from deepnmt.analysis.charts import page
from deepnmt.files import write_text


@dataclass(frozen=True)
class Block:
    markdown: str
    html: str = ""  # if it is not that of the Markdown
    files: dict[str, str] = field(default_factory=dict)  # used by the Markdown


def heading(text: str) -> Block:
    return Block(f"## {text}")


def paragraph(text: str) -> Block:
    return Block(text)


def bullets(items: Sequence[str]) -> Block:
    return Block("\n".join(f"- {item}" for item in items))


def code(text: str) -> Block:
    return Block(f"```\n{text}\n```")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Block:
    """All columns but the first are numbers."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return Block("\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines))


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
    to_html = MarkdownIt("commonmark", {"html": False}).enable("table").render
    files["report.md"] = "\n\n".join(sections) + "\n"
    files["report.html"] = page(title, [block.html or to_html(block.markdown) for block in blocks])
    for name, text in files.items():
        write_text(folder / name, text)
