"""HTML as text between tags: the tags stay, the text is translated. Linear in the document, whatever is in it."""

from html import escape, unescape

SKIPPED = ("script", "style", "code", "pre", "textarea")  # not language


def split_markup(document: str) -> list[tuple[bool, str]]:
    """(is it text, what it is) in order. Law: end to end, they are the document."""
    lowered = document.lower() if len(document.lower()) == len(document) else document
    parts: list[tuple[bool, str]] = []
    start = at = 0
    while (at := document.find("<", at)) >= 0:
        end = _tag_end(document, lowered, at)
        if end is None:
            at += 1
            continue
        if end < 0:
            break  # never closed: text
        parts += [(True, document[start:at]), (False, document[at:end])]
        start = at = end
    parts.append((True, document[start:]))
    return [(is_text, part) for is_text, part in parts if part]


def _tag_end(document: str, lowered: str, at: int) -> int | None:
    """Where the markup that begins here ends: None if none begins, -1 if it has no end."""
    first = document[at + 1 : at + 2]
    if not (first.isalpha() or first in ("/", "!", "?")) or not first:
        return None
    if document.startswith("<!--", at):
        end = document.find("-->", at + 4)
        return end + 3 if end >= 0 else -1
    end = document.find(">", at)
    if end < 0:
        return -1
    for name in SKIPPED:
        if lowered.startswith(name, at + 1) and not lowered[at + 1 + len(name)].isalnum():
            close = lowered.find(f"</{name}", end)
            end = document.find(">", close) if close >= 0 else -1
            return end + 1 if end >= 0 else -1
    return end + 1


def texts_of(parts: list[tuple[bool, str]]) -> list[str]:
    return [unescape(part) for is_text, part in parts if is_text]


def with_texts(parts: list[tuple[bool, str]], texts: list[str]) -> str:
    remaining = iter(texts)
    return "".join(escape(next(remaining), quote=False) if is_text else part for is_text, part in parts)
