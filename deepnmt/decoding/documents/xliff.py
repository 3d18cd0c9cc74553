"""XLIFF 1.2 and 2: segments without a translation are filled in and marked as unreviewed; all else stays as it is.

Expat refuses what is not XML. The tags are found here, because expat does not say where they end.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from html import escape, unescape
from typing import NamedTuple
from xml.parsers import expat

from deepnmt.decoding.documents.document import Document, Part
from deepnmt.decoding.documents.passages import passages
from deepnmt.decoding.documents.prose import paragraphs
from deepnmt.decoding.documents.tokens import Token, matched, text_token
from deepnmt.errors import InputError
from deepnmt.languages import base_language

_ATTRIBUTES = r"(?:[^<>\"']|\"[^\"]*\"|'[^']*')*?"
_TAG = re.compile(
    r"<!--.*?-->|<\?.*?\?>|<!\[CDATA\[(?P<data>.*?)\]\]>"
    rf"|<(?P<end>/?)(?:[\w.-]+:)?(?P<name>[\w.-]+){_ATTRIBUTES}(?P<empty>/?)>",
    re.DOTALL,
)
# In 1.2 the content of these is code of the original document.
_CODE = rf"<(?P<code>bpt|ept|it|ph)(?=[\s>]){_ATTRIBUTES}(?<!/)>.*?</(?P=code)\s*>"
_INLINE = re.compile(f"{_CODE}|{_TAG.pattern}", re.DOTALL)
# Elements that mark a beginning or an end, and the attributes that say of what.
STARTS = {"bx": ("rid", "id"), "bpt": ("rid", "id"), "sc": ("id",), "sm": ("id",)}
ENDS = {"ex": ("rid", "id"), "ept": ("rid", "id"), "ec": ("startRef",), "em": ("startRef",)}
_ANGULAR = re.compile(r"(START|CLOSE)_(\w+?)(?:_\d+)?")  # it writes tags as pairs of <x/>
NEW_1 = {"state": "needs-review-translation", "state-qualifier": "leveraged-mt"}
NEW_2 = {"state": "translated"}


class Tag(NamedTuple):
    """A tag from `start` to `end`, the name of the element around it, and whether its content is to be translated."""

    start: int
    end: int
    raw: str
    name: str
    is_end: bool
    is_empty: bool
    parent: str
    is_translated: bool


@dataclass
class Segment:
    """What belongs to one source: the tags of its elements."""

    opening: Tag
    source: tuple[Tag, Tag] | None = None
    target: tuple[Tag, Tag] | None = None


Edit = tuple[int, int, list[str | Part]]  # replace text[start:end]


def read_xliff(text: str, language: str) -> Document:
    _check(text)
    parts: list[str | Part] = []
    at = 0
    for start, end, content in sorted(_edits(text, language), key=lambda edit: edit[:2]):
        parts += [text[at:start], *content]
        at = end
    return Document([*parts, text[at:]])


def _check(text: str) -> None:
    parser = expat.ParserCreate()

    def refuse(*_: object) -> None:
        raise InputError(f"line {parser.CurrentLineNumber:,}: a document type (DOCTYPE) is not supported; remove it")

    def declared(version: str, encoding: str | None, standalone: int) -> None:
        if encoding and encoding.lower() not in ("utf-8", "utf8", "us-ascii"):
            raise InputError(
                f"line 1: the document is in {encoding}; convert it to UTF-8 and correct its XML declaration"
            )

    parser.StartDoctypeDeclHandler, parser.XmlDeclHandler = refuse, declared
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise InputError(f"line {error.lineno:,}: not well-formed XML: {expat.ErrorString(error.code)}") from error


def _tags(text: str) -> Iterator[Tag]:
    stack = [("", True)]  # the elements around, and whether they are translated
    for match in _TAG.finditer(text):
        if not (name := match["name"]):
            continue
        if match["end"]:
            stack.pop()
        parent, is_translated = stack[-1]
        is_translated = {"yes": True, "no": False}.get(_attribute(match.group(), "translate"), is_translated)
        is_end, is_empty = bool(match["end"]), bool(match["empty"])
        yield Tag(*match.span(), match.group(), name, is_end, is_empty, parent, is_translated)
        if not is_end and not is_empty:
            stack.append((name, is_translated))


def _edits(text: str, language: str) -> Iterator[Edit]:
    tags = list(_tags(text))
    if tags[0].name != "xliff":
        raise InputError(f"the document is not XLIFF: it begins with <{tags[0].name}>")
    version = _attribute(tags[0].raw, "version")
    if not version.startswith(("1.", "2.")):
        raise InputError(f"the document is XLIFF of version {version!r}, not 1.x or 2.x")
    is_old = version.startswith("1.")
    unit, declaring, name = ("trans-unit", "file", "target-language") if is_old else ("segment", "xliff", "trgLang")
    segment: Segment | None = None
    opened = tags[0]
    for tag in tags:
        if tag.name == declaring and not tag.is_end:
            yield tag.start, tag.end, [_in_language(text, tag, name, language)]
        elif tag.name == unit:
            if segment:
                yield from _filled(text, segment, is_old, language)
            segment = Segment(tag) if tag.is_translated and not tag.is_end else None
        elif segment and tag.parent == unit and tag.name in ("source", "seg-source", "target"):
            opened = opened if tag.is_end else tag
            if tag.name == "target":
                segment.target = opened, tag
            else:
                segment.source = opened, tag


def _filled(text: str, segment: Segment, is_old: bool, language: str) -> Iterator[Edit]:
    """The target, if it is missing or empty, and its state."""
    if segment.source is None:
        return
    opening, closing = segment.source
    content, name = text[opening.end : closing.start], f"{opening.raw[1:].partition(opening.name)[0]}target"
    if segment.target:
        first, last = segment.target
        start, end, space, tag = first.start, last.end, "", first.raw.rstrip("/>").rstrip() + ">"
        is_empty = not text[first.end : last.start].strip()
    else:
        start = end = opening.start
        while text[start - 1].isspace():
            start -= 1
        start, end, space, tag, is_empty = closing.end, closing.end, text[start:end], f"<{name}>", True
    if not is_empty or not content.strip():
        return
    if not is_old and _attribute(segment.opening.raw, "state") in ("", "initial"):
        yield segment.opening.start, segment.opening.end, [_with(segment.opening.raw, NEW_2)]
    written = _with(tag, NEW_1) if is_old else tag
    yield start, end, [space + written, *_content(content, language), f"</{name}>"]


def _content(content: str, language: str) -> Iterable[str | Part]:
    """Lines are paragraphs, as in messages, unless a tag or an element goes over several."""
    write = partial(escape, quote=False)
    if all(map(_is_whole, content.split("\n"))):
        return paragraphs(content, language, _tokens, write)
    return passages(_tokens(content), language, write)


def _is_whole(line: str) -> bool:
    depth = sum(-1 if match["end"] else 1 for match in _INLINE.finditer(line) if match["name"] and not match["empty"])
    return depth == 0 and "<" not in _INLINE.sub("", line)


def _tokens(content: str) -> list[Token]:
    tokens, at = [], 0
    for match in [*_INLINE.finditer(content), None]:
        between = content[at : match.start() if match else len(content)]
        tokens += [text_token(between, unescape(between))] if between else []
        tokens += [_token(match)] if match else []
        at = match.end() if match else at
    known = {(token.name, token.is_end) for token in tokens}
    return matched([token if (token.name, not token.is_end) in known else _as_mark(token) for token in tokens])


def _as_mark(token: Token) -> Token:
    """What begins or ends elsewhere can stand anywhere."""
    return replace(token, kind="mark", name="", is_end=False) if token.name.startswith("#") else token


def _token(match: re.Match[str]) -> Token:
    raw, name = match.group(), match["code"] or match["name"] or ""
    if match["data"] is not None:
        return text_token(raw, match["data"])
    if angular := _ANGULAR.fullmatch(_attribute(raw, "id")) if name == "x" else None:
        is_end = angular[1] == "CLOSE"
        return Token("close" if is_end else "open", raw, f"#{angular[2]}", is_end)
    for kind, names in (("open", STARTS), ("close", ENDS)):
        number = next((found for key in names.get(name, ()) if (found := _attribute(raw, key))), "")
        if number and not match["end"]:
            return Token(kind, raw, f"#{number}", is_end=kind == "close")
    if match["code"] or not name or match["empty"]:
        return Token("mark", raw)
    kind = "close" if match["end"] else "block" if _attribute(raw, "mtype") == "seg" else "open"
    is_kept = _attribute(raw, "translate") == "no" or _attribute(raw, "mtype") == "protected"
    return Token(kind, raw, name, is_end=bool(match["end"]), is_kept=is_kept)


def _in_language(text: str, tag: Tag, name: str, language: str) -> str:
    own = _attribute(tag.raw, name)
    if own and base_language(own) != base_language(language):
        line = text.count("\n", 0, tag.start) + 1
        raise InputError(f"line {line:,}: the document is for {own!r}, but the model translates into {language!r}")
    return tag.raw if own else _with(tag.raw, {name: language})


def _attribute(tag: str, name: str) -> str:
    found = _attribute_match(tag, name)
    return found[2][1:-1] if found else ""


def _attribute_match(tag: str, name: str) -> re.Match[str] | None:
    return re.search(rf"(\s{re.escape(name)}\s*=\s*)(\"[^\"]*\"|'[^']*')", tag)


def _with(tag: str, attributes: Mapping[str, str]) -> str:
    """The tag with these attributes, in place of those of the same names."""
    for name, value in attributes.items():
        if found := _attribute_match(tag, name):
            tag = f'{tag[: found.start(2)]}"{value}"{tag[found.end(2) :]}'
        else:
            end = len(tag.rstrip("/>").rstrip())
            tag = f'{tag[:end]} {name}="{value}"{tag[end:]}'
    return tag
