"""Markdown: text is translated; code, targets of links, front matter and everything else stays as it is.

markdown-it finds the blocks. The tags of inline markup are found here, because markdown-it does not say where they are.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from itertools import count

from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference

from deepnmt.decoding.documents.document import Document, Part
from deepnmt.decoding.documents.html import read_html
from deepnmt.decoding.documents.layout import width_of, wrapped
from deepnmt.decoding.documents.passages import passages
from deepnmt.decoding.documents.tagged import MARKUP, markup_token, with_lone
from deepnmt.decoding.documents.tokens import Token, kept_token, matched, text_token
from deepnmt.decoding.translator import Hypothesis

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")  # as in markdown-it
_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(?:.*?\r?\n)??\1[ \t]*(?:\r?\n|$)", re.DOTALL)
# What a line must not begin with, for it would begin a block.
_CAN_START = re.compile(r"(?![-+=#>|~:<]|\d{1,9}[.)])\S")
_BLOCK_START = re.compile(r"(?:\d{1,9}(?=[.)](?:\s|$)))|(?=[-+](?:\s|$|-)|#[#\s]|#$|>|=+\s*$)")
_SPECIAL = re.compile(r"[`*\[\]]|\\(?=[!-/:-@\[-`{-~]|$)|(?<![^\W_])_|_(?![^\W_])|<(?=[A-Za-z/!?])|~(?=~)|&(?=\w+;|#)")
# Lines of a paragraph that are syntax: admonitions, task boxes, the beginning of a footnote.
_SYNTAX = re.compile(
    r"(?:^:::[^\n]*(?:\n|$)|^\[![A-Za-z]+\][ \t]*(?:\n|$)|\A\[[ xX]\]\s+|\A\[\^[^\]\s]+\]:\s*)", re.MULTILINE
)
_INLINE = re.compile(
    rf"(?P<syntax>{_SYNTAX.pattern})"
    r"|(?P<break>(?:[ ]{2,}|\\)\n[ \t]*)"
    r"|(?P<escape>\\[!-/:-@\[-`{-~])"
    r"|(?P<code>(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))"
    r"|(?P<math>\$\$[^$]+\$\$|\$(?![\s$])[^$\n]{1,80}(?<![\s\\])\$(?!\d))"
    r"|(?P<address><[A-Za-z][A-Za-z0-9+.-]+:[^<>\s]*>|<[\w.+-]+@[\w.-]+>|(?<![^\W_])(?:https?|ftp)://[^\s<>\"'`)\]]*[\w/#=&~%+-])"
    r"|(?P<footnote>\[\^[^\]\s]+\])"
    r"|(?P<emoji>(?<![\w:]):[a-z0-9_+-]+:(?![\w:]))"
    r"|(?P<comment><!--.*?-->)"
    rf"|(?P<markup>{MARKUP.pattern})"
    r"|(?P<bracket>!?\[)"
    r"|(?P<delimiter>\*+|_+|~~)",
    re.DOTALL | re.MULTILINE,
)
_TARGET = re.compile(
    r"\(\s*(?:<[^<>\n]*>|(?:[^\s()<\\]|\\.|\((?:[^\s()\\]|\\.)*\))*)"
    r"(?:\s+(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\((?:[^()\\]|\\.)*\)))?\s*\)",
    re.DOTALL,
)
_BRACKET = re.compile(r"\\.|(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)|[\[\]]", re.DOTALL)
CELLS = ("th_open", "td_open")
_LABEL = re.compile(r"\[((?:[^\[\]\\]|\\.)*)\]", re.DOTALL)


def read_markdown(text: str, language: str) -> Document:
    front = _FRONT_MATTER.match(text)
    start = front.end() if front else 0
    return Document([text[:start], *_parts(text[start:], language)])


def _parts(text: str, language: str) -> Iterator[str | Part]:
    lines, environment = _LINE.findall(text), dict[str, Mapping[str, object]]()
    blocks = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text, environment)
    labels = frozenset(environment.get("references", {}))
    line, column, parent = 0, 0, ""  # what is written so far, and the block before
    for block in blocks:
        first, last = block.map or (-1, 0)
        if block.type == "html_block" and block.level == 0 and first >= line:
            yield _between(lines, (line, column), (first, 0))
            yield from read_html("".join(lines[first:last]), language).parts
            line, column = last, 0
        elif block.type == "inline" and first >= line:
            rows = block.content.split("\n")
            places = _places(lines[first:last], rows, parent, column if first == line else 0)
            if places:
                yield _between(lines, (line, column), (first, places[0]))
                yield Paragraph(lines[first:last], places, rows, parent, language, labels)
                line, column = first + len(rows) - 1, places[-1] + len(rows[-1])
        parent = block.type
    yield _between(lines, (line, column), (len(lines), 0))


def _between(lines: Sequence[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """What is between two places, each a line and a column."""
    parts = list(lines[start[0] : end[0] + 1])
    if end[0] < len(lines):
        parts[-1] = parts[-1][: end[1]]
    return "".join(parts)[start[1] :]


def _places(lines: Sequence[str], rows: Sequence[str], parent: str, start: int) -> list[int]:
    """Where the rows of a block begin in its lines; nothing if one of them is not there as it is."""
    if parent in CELLS:
        places = [lines[0].find(rows[0], start)]
    else:  # the row is at the end of the line
        places = [line.rstrip("\r\n").rfind(row) for line, row in zip(lines, rows, strict=False)]
    is_found = any(map(str.strip, rows)) and len(places) == len(rows) and min(places) >= 0 and places[0] >= start
    return places if is_found else []


class Paragraph(Part):
    """The text of a paragraph, a heading or a cell of a table, in lines that may be indented or quoted."""

    def __init__(
        self,
        lines: Sequence[str],
        places: Sequence[int],
        rows: Sequence[str],
        parent: str,
        language: str,
        labels: frozenset[str],
    ) -> None:
        ends = [place + len(row) for place, row in zip(places, rows, strict=True)]
        self.joints = [lines[i][end:] + lines[i + 1][: places[i + 1]] for i, end in enumerate(ends[:-1])]
        self.raw = "".join(row + joint for row, joint in zip(rows, [*self.joints, ""], strict=True))
        self.width, self.is_paragraph = max(map(width_of, rows)), parent == "paragraph_open"
        tokens = matched(with_lone(_inline("\n".join(rows), labels, count()), "mark"))
        self.plain = "".join(token.raw for token in tokens)
        self.inside = Document(passages(tokens, language, _cell_escaped if parent in CELLS else _escaped))

    @property
    def sentences(self) -> list[tuple[str, bool]]:
        return self.inside.sentences

    def written(self, hypotheses: Iterator[Hypothesis]) -> str:
        text = self.inside.written(hypotheses)
        if text == self.plain:
            return self.raw
        rows = text.split("\n")
        if self.is_paragraph:
            rows = [_BLOCK_START.sub(r"\g<0>\\", row, count=1) if _BLOCK_START.match(row) else row for row in rows]
        if self.joints:
            rows = [line for row in rows for line in self._wrapped(row)]
        joints = [*self.joints, *self.joints[-1:] * len(rows)][: len(rows) - 1]
        return "".join(row + joint for row, joint in zip(rows, [*joints, ""], strict=True))

    def _wrapped(self, row: str) -> list[str]:
        """Lines as wide as those of the source; a break that was forced stays at the end."""
        content = row.rstrip(" ").removesuffix("\\")
        *lines, last = wrapped(content, self.width, _CAN_START)
        return [*lines, last + row[len(content) :]]


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)


def _cell_escaped(text: str) -> str:
    return _escaped(text).replace("|", "\\|")


def _inline(text: str, labels: frozenset[str], names: Iterator[int]) -> list[Token]:
    """The tokens of inline Markdown. Names are different for all pairs of tags."""
    tokens: list[Token] = []
    brackets, at = _bracket_pairs(text), 0
    while match := _INLINE.search(text, at):
        tokens += [text_token(text[at : match.start()])] if match.start() > at else []
        at = match.end()
        if match["bracket"]:
            link = _link(text, match, brackets, labels, names)
            at = link[1] if link else at
            tokens += link[0] if link else [text_token(match.group())]
        elif match["delimiter"]:
            tokens.append(Token("delimiter", match.group(), name=_flanks(text, match)))
        else:
            tokens.append(_token(match))
    tokens += [text_token(text[at:])] if at < len(text) else []
    return _with_emphasis(tokens, names)


def _token(match: re.Match[str]) -> Token:
    raw = match.group()
    if match["escape"] or match["character"]:
        return text_token(raw, raw[1:] if match["escape"] else unescape(raw))
    if match["markup"]:
        return markup_token(match)
    if match["syntax"] or match["break"]:
        return Token("block", raw)
    if match["code"] or match["math"] or match["address"]:
        return kept_token(raw, " ".join(raw.strip("`<>").split()))
    return Token("mark", raw)


def _bracket_pairs(text: str) -> dict[int, int]:
    """The place of the closing bracket for that of each opening one."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACKET.finditer(text):
        if match.group() == "[":
            opened.append(match.start())
        elif match.group() == "]" and opened:
            pairs[opened.pop()] = match.start()
    return pairs


def _link(
    text: str, match: re.Match[str], brackets: Mapping[int, int], labels: frozenset[str], names: Iterator[int]
) -> tuple[list[Token], int] | None:
    """The tokens of a link or an image, and where it ends; None if this bracket begins no link."""
    end = brackets.get(match.end() - 1)
    if end is None:
        return None
    content = text[match.end() : end]
    if target := _TARGET.match(text, end + 1):
        close, end = f"]{target.group()}", target.end()
    elif (label := _LABEL.match(text, end + 1)) and normalizeReference(label[1]) in labels:
        close, end = f"]{label.group()}", label.end()
    elif normalizeReference(content) in labels:  # the link refers to its own text, which is about to change
        close, end = f"][{content}]", end + (3 if text.startswith("[]", end + 1) else 1)
    else:
        return None
    if match.group() == "![":
        return [Token("mark", text[match.start() : end])], end
    name = str(next(names))
    inside = _inline(content, labels, names)
    return [Token("open", "[", name), *inside, Token("close", close, name, is_end=True)], end


def _flanks(text: str, match: re.Match[str]) -> str:
    """Whether a run of delimiters can open emphasis, close it, or both: `(`, `)` or `()`."""
    before, after = text[match.start() - 1 : match.start()] or " ", text[match.end() : match.end() + 1] or " "
    is_left = not after.isspace() and (after.isalnum() or not before.isalnum())
    is_right = not before.isspace() and (before.isalnum() or not after.isalnum())
    if match.group()[0] == "_":
        is_left, is_right = is_left and not before.isalnum(), is_right and not after.isalnum()
    return "(" * is_left + ")" * is_right


def _with_emphasis(tokens: list[Token], names: Iterator[int]) -> list[Token]:
    """Each closing run of delimiters ends the last open run that is equal; those that remain are text."""
    openers: dict[str, list[int]] = {}
    result = [text_token(token.raw) if token.kind == "delimiter" else token for token in tokens]
    for i, token in enumerate(tokens):
        if token.kind != "delimiter":
            continue
        if ")" in token.name and openers.get(token.raw):
            start, name = openers[token.raw].pop(), str(next(names))
            for others in openers.values():
                while others and others[-1] > start:
                    others.pop()
            result[start] = Token("open", token.raw, name, may_vanish=True)
            result[i] = Token("close", token.raw, name, is_end=True)
        elif "(" in token.name:
            openers.setdefault(token.raw, []).append(i)
    return result
