"""Text with inline markup as tokens, whose concatenation is the text, and the matching of tags with their ends."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

MAX_OPAQUE = 80  # characters that may stand inside a sentence without being translated
_SPACE = re.compile(r"[ \t\n\r\f]+")
_SENTENCE_END = re.compile(r"[.!?…।॥؟۔]\S*\s|[。！？\n\r]")


@dataclass
class Token:
    """A stretch of the text. `kind`: text, open, close, mark (an inline tag without content), opaque or block.

    A block separates sentences. An opaque token belongs to the sentence around it and is not translated.
    """

    kind: str
    raw: str
    name: str = ""  # of a tag that can have an end, or is one
    is_end: bool = False  # of an element
    is_kept: bool = False  # the start of an element that is not to be translated
    text: str = ""  # of text and opaque tokens: as a reader sees it
    may_vanish: bool = False  # an open tag, if no word of the translation is inside
    labels: Sequence[tuple[int, int]] = ()  # where there are texts to translate in the tag itself


def text_token(raw: str, text: str | None = None) -> Token:
    """As in HTML, any white space is one space."""
    return Token("text", raw, text=_SPACE.sub(" ", raw if text is None else text))


def kept_token(raw: str, text: str) -> Token:
    """What is not to be translated is part of a sentence, unless it is empty or long or ends one."""
    if not text:
        return Token("mark", raw)
    separates = len(text) > MAX_OPAQUE or _SENTENCE_END.search(text) is not None
    return Token("block" if separates else "opaque", raw, text=text)


def matched(tokens: Sequence[Token]) -> list[Token]:
    """Every open token has its close, and nothing between them is a block: inline tags that cannot be matched, or have
    a block inside, are blocks, so what they separate is translated by itself. An element that is not to be translated
    is one token, up to its end or that of the element around it."""
    tokens = _with_kept_joined(tokens)
    closes = {i: end - 1 for i, (end, is_closed) in ends(tokens).items() if is_closed and tokens[i].kind == "open"}
    paired = {*closes, *closes.values()}
    separates = [
        token.kind == "block" or (token.kind in ("open", "close") and i not in paired) for i, token in enumerate(tokens)
    ]
    before = [0, *accumulate(separates)]
    for start, end in closes.items():
        separates[start] = separates[end] = before[start] < before[end]
    return [replace(token, kind="block") if own else token for token, own in zip(tokens, separates, strict=True)]


def ends(tokens: Sequence[Token]) -> dict[int, tuple[int, bool]]:
    """For each start tag, where its element ends, and whether it has an end tag."""
    found: dict[int, tuple[int, bool]] = {}
    stack: list[int] = []
    names: Counter[str] = Counter()
    for i, token in enumerate(tokens):
        if token.is_end:
            is_open = names[token.name] > 0
            while is_open:
                start = stack.pop()
                is_open = tokens[start].name != token.name
                names[tokens[start].name] -= 1
                found[start] = (i, False) if is_open else (i + 1, True)
        elif token.kind == "open" or (token.kind == "block" and token.name):
            stack.append(i)
            names[token.name] += 1
    return found | {start: (len(tokens), False) for start in stack}


def _with_kept_joined(tokens: Sequence[Token]) -> list[Token]:
    end_of = ends(tokens)
    result: list[Token] = []
    i = 0
    while i < len(tokens):
        end = end_of[i][0] if tokens[i].is_kept else i + 1
        inside = tokens[i:end]
        if tokens[i].is_kept:
            raw, text = ("".join(getattr(token, name) for token in inside) for name in ("raw", "text"))
            has_block = any(token.kind == "block" for token in inside)
            inside = [Token("block", raw) if has_block else kept_token(raw, text)]
        result += inside
        i = end
    return result
