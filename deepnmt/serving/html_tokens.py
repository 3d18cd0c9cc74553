"""An HTML document as tokens, whose concatenation is the document.

Block elements and `<br>` separate texts; inline elements belong to the sentence around them; an OPAQUE element, or one
marked as not to be translated, is one token with all its content.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import unescape
from html.parser import HTMLParser
from itertools import accumulate

BLOCKS = {
    "address", "article", "aside", "audio", "base", "blockquote", "body", "br", "button", "canvas", "caption", "col",
    "colgroup", "dd", "details", "dialog", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form",
    "frame", "frameset", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hgroup", "hr", "html", "iframe",
    "legend", "li", "link", "main", "menu", "meta", "nav", "noscript", "object", "ol", "optgroup", "option", "p",
    "param", "search", "section", "select", "source", "summary", "table", "tbody", "td", "tfoot", "th", "thead",
    "title", "tr", "track", "ul", "video",
}  # fmt: skip
OPAQUE_BLOCKS = {"math", "pre", "script", "style", "svg", "template", "textarea"}
OPAQUE = {*OPAQUE_BLOCKS, "code", "kbd", "samp", "var"}
VOID = {
    "area", "base", "br", "col", "embed", "frame", "hr", "img", "input", "link", "meta", "param", "source", "track",
    "wbr",
}  # fmt: skip
MAX_OPAQUE = 80  # characters that may stand inside a sentence without being translated
_SPACE = re.compile(r"[ \t\n\r\f]+")
_SENTENCE_END = re.compile(r"[.!?…।॥؟۔]\S*\s|[。！？\n\r]")


@dataclass
class Token:
    """A stretch of the document. `kind`: text, open, close, mark (an inline tag without content), opaque or block."""

    kind: str
    raw: str
    name: str = ""
    is_kept: bool = False  # the start of an element that is not to be translated
    text: str = ""  # of text and opaque elements: as a reader sees it


class _Tokens(HTMLParser):
    """The standard library's parser, used only to find where tokens begin; their text is copied from the document."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=False)
        self.events: list[tuple[int, Token, str | None]] = []  # where, what, and its text if that is known
        self._lines = [0, *accumulate(len(line) + 1 for line in document.split("\n"))]
        # For every tag without an end, the parser searches the rest of the document: parse only up to the last end.
        end = document.rfind(">") + 1
        self.feed(document[:end])
        self.close()
        self.tokens: list[Token] = []
        starts = [where for where, _, _ in self.events]
        ends = [*starts, end][1:]
        if before := document[: starts[0] if starts else end]:  # the parser passed over it
            self.tokens.append(Token("mark", before))
        for (where, token, known), following in zip(self.events, ends, strict=True):
            raw = document[where:following]
            if known is not None and raw != known and raw.startswith(known):  # followed by what the parser passed over
                self.tokens += [replace(token, raw=known), Token("mark", raw[len(known) :])]
            else:
                self.tokens.append(replace(token, raw=raw))
        if document[end:]:
            self.tokens.append(Token("text", document[end:]))
        for token in self.tokens:
            token.text = _SPACE.sub(" ", unescape(token.raw)) if token.kind == "text" else ""

    def _add(self, kind: str, name: str = "", is_kept: bool = False, text: str | None = None) -> None:
        line, column = self.getpos()
        self.events.append((self._lines[line - 1] + column, Token(kind, "", name, is_kept), text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        marked = any(
            (name == "translate" and (value or "").lower() == "no")
            or (name == "class" and "notranslate" in (value or "").split())
            for name, value in attrs
        )
        kind = "block" if tag in BLOCKS or tag in OPAQUE_BLOCKS else "mark" if tag in VOID else "open"
        self._add(kind, tag, tag not in VOID and (marked or tag in OPAQUE), self.get_starttag_text())

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID or tag not in OPAQUE:
            self._add("block" if tag in BLOCKS else "mark", tag, text=self.get_starttag_text())
        else:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self._add("block" if tag in BLOCKS or tag in OPAQUE_BLOCKS else "close", tag)

    def handle_data(self, data: str) -> None:
        self._add("text", text=data)

    def handle_decl(self, decl: str) -> None:
        self._add("block")

    def _reference(self, name: str) -> None:
        self._add("text")

    def _comment(self, data: str) -> None:
        self._add("mark")

    handle_entityref = handle_charref = _reference
    handle_comment = handle_pi = unknown_decl = _comment

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """In HTML it is a comment (older versions of the parser raise an error)."""
        return self.parse_bogus_comment(i)


def tokens_of(document: str) -> list[Token]:
    """Every open token has its close, and nothing between them is a block: inline tags that cannot be matched, or have
    a block inside, are blocks, so what they separate is translated by itself. An element that is not to be translated
    is one token, up to its end or that of the element around it."""
    tokens = _with_kept_joined(_Tokens(document).tokens)
    closes = {i: end - 1 for i, (end, is_closed) in _ends(tokens).items() if is_closed and tokens[i].kind == "open"}
    matched = {*closes, *closes.values()}
    separates = [
        token.kind == "block" or (token.kind in ("open", "close") and i not in matched)
        for i, token in enumerate(tokens)
    ]
    before = [0, *accumulate(separates)]
    for start, end in closes.items():
        separates[start] = separates[end] = before[start] < before[end]
    return [replace(token, kind="block") if own else token for token, own in zip(tokens, separates, strict=True)]


def _ends(tokens: Sequence[Token]) -> dict[int, tuple[int, bool]]:
    """For each start tag, where its element ends, and whether it has an end tag."""
    ends: dict[int, tuple[int, bool]] = {}
    stack: list[int] = []
    names: Counter[str] = Counter()
    for i, token in enumerate(tokens):
        if token.raw.startswith("</"):
            is_open = names[token.name] > 0
            while is_open:
                start = stack.pop()
                is_open = tokens[start].name != token.name
                names[tokens[start].name] -= 1
                ends[start] = (i, False) if is_open else (i + 1, True)
        elif token.kind == "open" or (token.kind == "block" and token.name and token.name not in VOID):
            stack.append(i)
            names[token.name] += 1
    return ends | {start: (len(tokens), False) for start in stack}


def _with_kept_joined(tokens: Sequence[Token]) -> list[Token]:
    ends = _ends(tokens)
    result: list[Token] = []
    i = 0
    while i < len(tokens):
        end = ends[i][0] if tokens[i].is_kept else i + 1
        inside = tokens[i:end]
        if tokens[i].is_kept:
            raw, text = ("".join(getattr(token, name) for token in inside) for name in ("raw", "text"))
            separates = any(token.kind == "block" for token in inside) or len(text) > MAX_OPAQUE
            separates = separates or _SENTENCE_END.search(text) is not None
            inside = [Token("block" if separates else "opaque", raw, text=text)]
        result += inside
        i = end
    return result
