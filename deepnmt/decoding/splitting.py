"""Splits lines that are too long for the model at natural boundaries."""

import re
from collections.abc import Callable

from deepnmt.languages import base_language

# Tried in this order: ends of sentences, clauses and words; last, anywhere. The cut is after the match.
# A run of stops is matched from its beginning only, or a line of dots would take quadratic time.
BOUNDARIES = (
    re.compile(r"(?<![.!?…])[.!?…]+[\"'”’»)\]]*\s+|[。！？][」』”’）]*\s*"),
    re.compile(r"[;:]\s+|[；：]\s*"),
    re.compile(r",\s+|\s[-–—]+\s|[，、]\s*"),
    re.compile(r"\s+"),
)
# Written without spaces between sentences.
UNSPACED_LANGUAGES = ("zh", "ja", "th", "lo", "km", "my")


def split_long(text: str, limit: int, length: Callable[[str], int]) -> list[str]:
    """`text` in pieces whose `length` (in subwords) is at most `limit`, as few and as natural as a greedy cut gives."""
    if length(text) <= limit:
        return [text]
    for boundary in BOUNDARIES:
        cuts = [match.end() for match in boundary.finditer(text) if match.end() < len(text)]
        if cuts:
            parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
            pieces = [piece for part in parts for piece in split_long(part, limit, length)]
            return _refill(pieces, limit, length)
    if len(text) == 1:
        return [text]
    middle = len(text) // 2
    return _refill(split_long(text[:middle], limit, length) + split_long(text[middle:], limit, length), limit, length)


def _refill(pieces: list[str], limit: int, length: Callable[[str], int]) -> list[str]:
    """Join neighbours as long as they fit. Joined, two pieces are hardly ever longer than the sum of their lengths."""
    filled: list[str] = []
    lengths: list[int] = []
    for piece in pieces:
        size = length(piece)
        if filled and lengths[-1] + size <= limit:
            filled[-1] += piece
            lengths[-1] += size
        else:
            filled.append(piece)
            lengths.append(size)
    return filled


def join_translations(pieces: list[str], language: str) -> str:
    separator = "" if base_language(language) in UNSPACED_LANGUAGES else " "
    return separator.join(piece for piece in pieces if piece)
