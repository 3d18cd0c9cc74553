"""HTML: sentences are taken out whole, without their tags, and the tags are put back into the translations.

Everything that is not text is copied byte by byte. Block elements and `<br>` separate texts; inline elements belong to
the sentence around them; an OPAQUE element, or one marked as not to be translated, is one token with all its content.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from html import escape, unescape
from html.parser import HTMLParser
from itertools import accumulate

from deepnmt.decoding.documents.document import Document, Part
from deepnmt.decoding.documents.passages import Labelled, passages, without_labels
from deepnmt.decoding.documents.tokens import Token, matched, text_token
from deepnmt.errors import InputError
from deepnmt.languages import base_language

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
LABELS = {"alt", "title", "placeholder", "aria-label"}  # attributes that a reader sees or hears
UNLABELLED = {"link", "style"}  # whose titles are names
DECLARATIONS = 4096  # characters at the start of a page that may declare its encoding
_ATTRIBUTE = re.compile(r"(?<=[\s/])([^\s\"'<>/=]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|[^\s\"'<>]+)")
_HTML_TAG = re.compile(r"<!--.*?-->|(<html\b[^<>]*>)", re.IGNORECASE | re.DOTALL)  # comments may have such tags too
_LANGUAGE = re.compile(r"(\s(?:xml:)?lang\s*=\s*[\"']?)([A-Za-z]{2,3}(?:[-_]\w+)*)", re.IGNORECASE)


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
            token.text = text_token(token.raw, unescape(token.raw)).text if token.kind == "text" else ""

    def _add(self, kind: str, name: str = "", text: str | None = None, is_kept: bool = False) -> None:
        line, column = self.getpos()
        self.events.append((self._lines[line - 1] + column, Token(kind, "", name, is_kept=is_kept), text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        marked = any(
            (name == "translate" and (value or "").lower() == "no")
            or (name == "class" and "notranslate" in (value or "").split())
            for name, value in attrs
        )
        kind = "block" if tag in BLOCKS or tag in OPAQUE_BLOCKS else "mark" if tag in VOID else "open"
        name, raw = "" if tag in VOID else tag, self.get_starttag_text() or ""
        self._add(kind, name, raw, is_kept=bool(name) and (marked or tag in OPAQUE))
        self.events[-1][1].labels = [] if marked else _labels(raw, tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID or tag not in OPAQUE:
            name = "" if tag in VOID else tag
            raw = self.get_starttag_text() or ""
            self._add("block" if tag in BLOCKS else "mark", name, raw)
            self.events[-1][1].labels = _labels(raw, tag)
        else:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self._add("block" if tag in BLOCKS or tag in OPAQUE_BLOCKS else "close", tag)
        self.events[-1][1].is_end = True

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


def _labels(tag: str, name: str) -> list[tuple[int, int]]:
    """Where a tag has attributes to translate: their values in quotes."""
    found = [match for match in _ATTRIBUTE.finditer(tag) if match.lastindex and match.lastindex > 1]
    values = {match[1].lower(): match for match in reversed(found)}  # of two, the first counts
    names = {"content"} if name == "meta" and _is_description(values) else LABELS if name not in UNLABELLED else set()
    return sorted(match.span(match.lastindex or 0) for key, match in values.items() if key in names)


def _is_description(values: Mapping[str, re.Match[str]]) -> bool:
    return "name" in values and (values["name"][2] or values["name"][3] or "").lower() == "description"


def read_html(document: str, language: str) -> Document:
    def label(value: str) -> Iterator[str | Part]:
        return passages([text_token(value, unescape(value))], language, escape)

    tokens, labels = without_labels(matched(_Tokens(document).tokens), label)
    return Labelled(passages(tokens, language, partial(escape, quote=False)), labels)


def read_page(document: str, language: str) -> Document:
    """A whole page, whose declared language becomes that of the translation."""
    start = document[:DECLARATIONS]
    charset = re.search(r"<meta\b[^<>]*\bcharset\s*=\s*[\"']?([\w-]+)", start, re.IGNORECASE)
    if charset and charset[1].lower() not in ("utf-8", "utf8"):
        line = start.count("\n", 0, charset.start()) + 1
        raise InputError(f"line {line:,}: the page is in {charset[1]}; convert it to UTF-8 and correct its charset")
    page = read_html(document, language)
    for number, part in enumerate(page.parts):
        text = part if isinstance(part, str) else ""
        if tag := next((found for found in _HTML_TAG.finditer(text) if found[1]), None):
            page.parts[number] = text[: tag.start()] + _in_language(tag.group(), language) + text[tag.end() :]
            break
    return page


def _in_language(tag: str, language: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        return match.group() if base_language(match[2]) == base_language(language) else f"{match[1]}{language}"

    return _LANGUAGE.sub(replaced, tag)
