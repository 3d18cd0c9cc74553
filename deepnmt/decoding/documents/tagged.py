"""Strings with a few tags in them, as in message catalogues and subtitles: anything else is text as it is."""

import re
from html import unescape

from deepnmt.decoding.documents.html import BLOCKS, OPAQUE, VOID
from deepnmt.decoding.documents.tokens import Token, ends, matched, text_token

# Tags, but not %<PRIu64>; times inside a cue of WebVTT; overrides of SubStation subtitles; character references.
MARKUP = re.compile(
    r"(?<!%)<(?P<end>/?)(?P<name>[A-Za-z][\w:-]*)(?:[\s.][^<>]*)?(?<!/)>|</?[A-Za-z][\w:-]*(?:\s[^<>]*)?/>"
    r"|<\d[\d:.]*>|\{\\[^{}]*\}|(?P<character>&(?:[A-Za-z]\w{1,8}|#\d{1,6}|#[xX][0-9A-Fa-f]{1,6});)"
)


def tagged(text: str, lone: str = "opaque") -> list[Token]:
    """A tag without its end, such as the <file> of "Open <file>", is a token of kind `lone`."""
    tokens, at = [], 0
    for match in MARKUP.finditer(text):
        tokens += [text_token(text[at : match.start()])] if match.start() > at else []
        tokens.append(markup_token(match))
        at = match.end()
    tokens += [text_token(text[at:])] if at < len(text) else []
    return matched(with_lone(tokens, lone))


def with_lone(tokens: list[Token], kind: str) -> list[Token]:
    """Tags that have no end, or are one without a start, as tokens of this kind."""
    closed = {i for start, (end, is_closed) in ends(tokens).items() if is_closed for i in (start, end - 1)}
    return [
        Token(kind, token.raw, text=token.raw) if token.kind in ("open", "close") and i not in closed else token
        for i, token in enumerate(tokens)
    ]


def markup_token(match: re.Match[str]) -> Token:
    raw, name = match.group(), (match["name"] or "").lower()
    if match["character"]:
        return Token("opaque", raw, text=unescape(raw))
    if name in VOID:
        return Token("block" if name in BLOCKS else "mark", raw)
    if not name:
        return Token("block" if raw[1:].startswith(("br", "hr")) else "mark", raw)
    if name in BLOCKS:
        return Token("block", raw)
    is_end = bool(match["end"])
    return Token("close" if is_end else "open", raw, name, is_end, is_kept=not is_end and name in OPAQUE)
