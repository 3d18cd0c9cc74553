"""Markdown: text is translated; code, targets of links, front matter and everything else stays as it is.

markdown-it finds the blocks. The tags of inline markup are found here, because markdown-it does not say where they are.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import unescape

from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference

from deepnmt.decoding.documents.document import Document, Part
from deepnmt.decoding.documents.html import BLOCKS, read_html
from deepnmt.decoding.documents.layout import width_of, wrapped
from deepnmt.decoding.documents.passages import Labelled, passages, without_labels
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
    r"|(?P<bracket>!?\[|\])"
    r"|(?P<delimiter>\*+|_+|(?<!~)~~(?!~))",
    re.DOTALL | re.MULTILINE,
)
_TARGET = re.compile(
    r"\(\s*(?:<[^<>\n]*>|(?:[^\s()<\\]|\\.|\((?:[^\s()\\]|\\.)*\))*)"
    r"(?:\s+(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|\(((?:[^()\\]|\\.)*)\)))?\s*\)",
    re.DOTALL,
)
_BRACKET = re.compile(r"\\.|(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)|!?\[|\]", re.DOTALL)
_MARKUP = re.compile(r"[\[\]*_`<]")
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
MIN_WIDTH = 72  # of a paragraph in several lines
# Until a paragraph is written: a space at which no line is broken, the start of a link, an edge of code or emphasis.
HELD, LINK, EDGE = "\x00", "\x01[", "\x02"
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
        if block.type == "html_block" and block.level == 0 and first >= line and _is_whole(block.content):
            yield _between(lines, (line, column), (first, 0))
            yield read_html("".join(lines[first:last]), language)
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


def _is_whole(block: str) -> bool:
    """Does a block of HTML begin with a block element? Otherwise, its line breaks make it one."""
    tag = re.match(r"\s*</?(\w+)", block)
    return tag is not None and tag[1].lower() in BLOCKS


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
        self.width, self.is_paragraph = max(MIN_WIDTH, *map(width_of, rows)), parent == "paragraph_open"
        tokens = matched(with_lone(_inline("\n".join(rows), labels), "mark"))
        escape = _cell_escaped if parent in CELLS else _escaped

        def label(value: str) -> Iterator[str | Part]:
            return passages([text_token(value, unescape(_ESCAPED.sub(r"\1", value)))], language, _label_escaped)

        tokens, texts = without_labels(tokens, label)
        self.inside = Labelled(passages(map(_guarded, tokens), language, escape), texts)
        self.plain = self.inside.written(Hypothesis(text, 0.0, 0.0, []) for text, _ in self.inside.sentences)

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
        if self.is_paragraph and len(rows) > 1 and MARKUP.fullmatch(rows[0].replace(HELD, " ").strip(f" {EDGE}")):
            rows[:2] = [" ".join(rows[:2])]  # with a tag alone in its first line, it would be a block of HTML
        joints = [*self.joints, *self.joints[-1:] * len(rows)][: len(rows) - 1]
        result = "".join(row + joint for row, joint in zip(rows, [*joints, ""], strict=True))
        result = result.replace(f"!{LINK}", f"\\!{LINK}").replace(EDGE * 2, " ")
        return result.replace(LINK, "[").replace(HELD, " ").replace(EDGE, "")

    def _wrapped(self, row: str) -> list[str]:
        """Lines as wide as those of the source; a break that was forced stays at the end."""
        content = row.rstrip(" ").removesuffix("\\")
        *lines, last = wrapped(content, self.width, _CAN_START)
        return [*lines, last + row[len(content) :]]


def _guarded(token: Token) -> Token:
    """A tag or code as it must be found again, so that it is not broken, its lines are not escaped, and it does not
    become one with its neighbours: `a``b` would be one code, ****a** no emphasis, ~~~~ a fence, and ![ an image."""
    if token.kind == "text":
        return token
    raw = LINK if token.raw == "[" else re.sub(r"\n(?=\S)", f"\n{EDGE}", token.raw)
    raw = raw if token.kind == "block" else raw.replace(" ", HELD)
    is_apart = raw.startswith("`") or raw == "~~"
    before = EDGE * (is_apart or token.may_vanish)
    after = EDGE * (is_apart or (token.is_end and token.name.startswith("*")))
    return replace(token, raw=before + raw + after)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)


def _label_escaped(text: str) -> str:
    return re.sub(r"[\"'()|]", r"\\\g<0>", _escaped(text))


def _cell_escaped(text: str) -> str:
    return _escaped(text).replace("|", "\\|")


def _inline(text: str, labels: frozenset[str]) -> list[Token]:
    """The tokens of inline Markdown, in which emphasis and links have different names."""
    tokens: list[Token] = []
    links, at = _links(text, labels), 0
    closes = {link.content_end: link for link in links.values()}
    inside = ""  # the link around, whose tags match only each other
    while match := _INLINE.search(text, at):
        start = match.start()
        tokens += [text_token(text[at:start])] if start > at else []
        at = match.end()
        if (link := links.get(start)) and link.is_image:
            at = link.end
            tokens.append(Token("mark", text[start:at], labels=link.labels(text)))
        elif link:
            inside = f"[{start}"
            tokens.append(Token("open", "[", inside))
        elif link := closes.get(start):
            at = link.end
            inside = ""
            tokens.append(Token("close", link.close, f"[{link.start}", is_end=True, labels=link.labels(text)))
        elif match["delimiter"]:
            tokens.append(Token("delimiter", match.group(), _flanks(text, match)))
        else:
            tokens.append(_token(match))
            tokens[-1].name += inside if tokens[-1].name else ""
    tokens += [text_token(text[at:])] if at < len(text) else []
    return _with_emphasis(tokens)


def _token(match: re.Match[str]) -> Token:
    raw = match.group()
    if match["escape"] or match["character"]:
        return text_token(raw, raw[1:] if match["escape"] else unescape(raw))
    if match["markup"]:
        return markup_token(match)
    if match["bracket"]:
        return text_token(raw)
    if match["syntax"] or match["break"] or match["comment"]:  # a line that begins with a comment is raw HTML
        return Token("block", raw)
    if match["code"] or match["math"] or match["address"]:
        return kept_token(raw, " ".join(raw.strip("`<>").split()))
    return Token("mark", raw)


@dataclass(frozen=True)
class _Link:
    """From the bracket that begins it to its end; `close` is what follows its text."""

    start: int
    content_end: int
    end: int
    close: str
    is_image: bool
    title: tuple[int, int] | None = None

    def labels(self, text: str) -> list[tuple[int, int]]:
        """Where in its token there are texts: the title, and the alternative text of an image if it has no markup and
        is no reference."""
        first = self.start if self.is_image else self.content_end
        found = [self.title] if self.title else []
        content = self.start + 2, self.content_end
        if self.is_image and text[self.content_end : self.end] == self.close and not _MARKUP.search(text, *content):
            found = [content, *found]
        return [(start - first, end - first) for start, end in found]


def _links(text: str, labels: frozenset[str]) -> dict[int, _Link]:
    """Links and images by their starts. There is no link inside a link."""
    links: dict[int, _Link] = {}
    opened: list[re.Match[str]] = []
    at = unusable = 0  # `unusable`: the number of open brackets that are around a link
    while match := _BRACKET.search(text, at):
        at = match.end()
        if match.group() in ("[", "!["):
            opened.append(match)
        elif match.group() == "]" and opened:
            begin = opened.pop()
            is_image = begin.group() == "!["
            link = _link(text, begin, match.start(), labels) if is_image or len(opened) >= unusable else None
            unusable = min(unusable, len(opened))
            if link:
                at, links[link.start] = link.end, link
                unusable = unusable if is_image else len(opened)
    return links


def _link(text: str, begin: re.Match[str], content_end: int, labels: frozenset[str]) -> _Link | None:
    content, after, title = text[begin.end() : content_end], content_end + 1, None
    if target := _TARGET.match(text, after):
        close, end = f"]{target.group()}", target.end()
        title = target.span(target.lastindex) if target.lastindex else None
    elif (label := _LABEL.match(text, after)) and normalizeReference(label[1]) in labels:
        close, end = f"]{label.group()}", label.end()
    elif normalizeReference(content) in labels:  # it refers to its own text, which is about to change
        close, end = f"][{content}]", after + (2 if text.startswith("[]", after) else 0)
    else:
        return None
    return _Link(begin.start(), content_end, end, close, begin.group() == "![", title)


def _flanks(text: str, match: re.Match[str]) -> str:
    """Whether a run of delimiters can open emphasis, close it, or both: `(`, `)` or `()`."""
    before, after = text[match.start() - 1 : match.start()] or " ", text[match.end() : match.end() + 1] or " "
    is_left = not after.isspace() and (after.isalnum() or not before.isalnum())
    is_right = not before.isspace() and (before.isalnum() or not after.isalnum())
    if match.group()[0] == "_":
        is_left, is_right = is_left and not before.isalnum(), is_right and not after.isalnum()
    return "(" * is_left + ")" * is_right


@dataclass
class _Opener:
    """An open run of delimiters: which token it is, and how many of its delimiters have no end yet."""

    place: int
    mark: str
    size: int

    def suits(self, mark: str, size: int) -> bool:
        """Equal runs, or three of which one or two end here: ***a** b*."""
        return self.mark == mark and (self.size == size or {self.size, size} in ({1, 3}, {2, 3}))


def _with_emphasis(tokens: list[Token]) -> list[Token]:
    """Each closing run of delimiters ends the last open run that suits; those that remain are text."""
    inside: list[list[Token]] = [[] if token.kind == "delimiter" else [token] for token in tokens]
    levels: list[list[_Opener]] = [[]]  # open runs, outside of links and inside
    for i, token in enumerate(tokens):
        if token.name.startswith("["):
            levels = levels[:-1] if token.is_end else [*levels, []]
        if token.kind != "delimiter":
            continue
        openers, mark, left = levels[-1], token.raw[0], len(token.raw)
        while ")" in token.name and (suiting := [opener for opener in openers if left and opener.suits(mark, left)]):
            opener = suiting[-1]
            size, name = min(opener.size, left), f"*{opener.place} {opener.size}"
            inside[opener.place].insert(0, Token("open", mark * size, name, may_vanish=True))
            inside[i].append(Token("close", mark * size, name, is_end=True))
            opener.size, left = opener.size - size, left - size
            del openers[openers.index(opener) + (opener.size > 0) :]
            # Nested in its like, a run could end up beside it, as a longer one.
            openers[:] = [other for other in openers if (other.mark, other.size) != (mark, size)]
        if "(" in token.name and left == len(token.raw):
            openers.append(_Opener(i, mark, left))
    for token, tags in zip(tokens, inside, strict=True):
        if rest := token.raw[sum(len(tag.raw) for tag in tags) :] if token.kind == "delimiter" else "":
            tags.insert(len(tags) if tags and tags[0].is_end else 0, text_token(rest))
    return [token for tags in inside for token in tags]
