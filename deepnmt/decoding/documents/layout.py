"""Lines of a bounded width, in which wide characters count twice and lines of Chinese or Japanese may break anywhere
but before a closing mark."""

import re
from itertools import accumulate, pairwise
from unicodedata import east_asian_width

_CLOSING = "、。，．：；！？）」』】〉》”’…ー・,.:;!?)]}"
_OPENING = "（「『【〈《“‘([{"
_WORD = re.compile(r"[^ ]+")
_SPACES = re.compile(r" *(?=[^ ])")


def width_of(text: str) -> int:
    return len(text) if text.isascii() else sum(2 if _is_wide(char) else 1 for char in text)


def _is_wide(char: str) -> bool:
    return east_asian_width(char) in "WF"


def breaks(text: str) -> list[int]:
    """Where a line may end: before a space, and next to a wide character."""
    found = [match.end() for match in _WORD.finditer(text)][:-1]
    if not text.isascii():
        found += [
            i
            for i, (before, after) in enumerate(pairwise(text), start=1)
            if (_is_wide(before) or _is_wide(after))
            and " " not in (before, after)
            and after not in _CLOSING
            and before not in _OPENING
        ]
    return sorted({*found})


def wrapped(text: str, width: int, can_start: re.Pattern[str] | None = None) -> list[str]:
    """The text in lines of at most this width, except for single words that are longer.

    Where a line break means a space (Markdown), give `can_start`, which the text of a line must match.
    """
    widths = [0, *accumulate(map(width_of, text.rstrip(" ")))]
    lines, start, last = [], 0, 0
    begin = following = len(text) - len(text.lstrip(" "))  # where the line's text begins, and that after `last`
    for end in [*breaks(text), len(widths) - 1]:
        if last > start and widths[end] - widths[begin] > width:
            lines.append(text[start:last].strip(" "))
            start, begin = last, following
        spaces = _SPACES.match(text, end)
        if spaces and (can_start is None or (spaces.group() and can_start.match(text, spaces.end()))):
            last, following = end, spaces.end()
    return [*lines, text[start:].strip(" ")]


def balanced(text: str, width: int) -> list[str]:
    """As few lines as `wrapped` gives, of similar widths."""
    lines = wrapped(text, width)
    least, most = width_of(text) // len(lines), width
    while least < most:
        middle = (least + most) // 2
        if len(wrapped(text, middle)) == len(lines):
            most = middle
        else:
            least = middle + 1
    return wrapped(text, most)
