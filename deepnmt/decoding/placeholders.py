"""Placeholders, URLs and e-mail addresses, which a translation must keep unchanged.

A model usually copies them. A missing or altered one is restored at the position given by the alignment.
"""

import re
from collections import Counter
from collections.abc import Sequence

from deepnmt.decoding.alignment import Alignment, word_spans

MARKS = ("{", "%", "@", "://")  # every placeholder has one
Edit = tuple[int, int, str]  # replace text[start:end]
# A run of letters is matched from its beginning only, so that the pattern takes linear time.
PLACEHOLDER = re.compile(
    r"\$?\{\{?[^{}\n]{0,80}\}\}?"
    r"|%(?:\(\w{1,80}\)|\d{1,2}\$)?[-+#0]?\d{0,3}(?:\.\d{1,3})?[sdifgxXc@](?![^\W\d_])"
    r"|(?<![^\W_])(?:https?|ftp)://[^\s<>\"'`]*[\w/#=&~%+-]"
    r"|(?<![\w.+-])[\w.+-]{1,80}@[\w-]{1,80}(?:\.[\w-]{1,80}){1,8}"
)


def placeholders(text: str) -> list[str]:
    if not any(mark in text for mark in MARKS):
        return []
    return [match.group() for match in PLACEHOLDER.finditer(text)]


def lacks_placeholders(source: str, text: str) -> bool:
    """Does the translation differ from the source in its placeholders?"""
    return sorted(placeholders(source)) != sorted(placeholders(text))


def restore_placeholders(source: str, text: str, alignment: Alignment) -> tuple[str, Alignment]:
    """The translation with exactly the placeholders of its source."""
    missing = _surplus(source, text)
    extra = _surplus(text, source)
    source_words = word_spans(source, alignment.source_words)
    target_words = word_spans(text, alignment.target_words)
    edits: list[Edit] = []
    for match in missing:
        attention = _attention(alignment, _word_at(source_words, match.start()))
        if extra:  # an altered placeholder: the one aligned best
            altered = max(extra, key=lambda other: _at(attention, _word_at(target_words, other.start())))
            extra.remove(altered)
            edits.append((*altered.span(), match.group()))
        else:
            edits.append(_place(text, target_words, attention, match.group(), edits))
    for match in extra:
        space = match.start() > 0 and text[match.start() - 1] == " "
        edits.append((match.start() - space, match.end(), ""))
    result, moved = _edited(text, alignment, target_words, sorted(edits))
    if lacks_placeholders(source, result):  # a restored one has merged with its neighbours
        bare = " ".join(PLACEHOLDER.sub(" ", text.replace("{", " ").replace("}", " ").replace("%", " ")).split())
        return " ".join([bare, *placeholders(source)]), alignment
    return result, moved


def _at(values: Sequence[float], number: int) -> float:
    return values[number] if number < len(values) else 0.0


def _surplus(text: str, other: str) -> list[re.Match[str]]:
    """The placeholders of `text` that the other text lacks or has less often."""
    left = Counter(placeholders(other))
    surplus = []
    for match in PLACEHOLDER.finditer(text):
        if left[match.group()]:
            left[match.group()] -= 1
        else:
            surplus.append(match)
    return surplus


def _word_at(spans: Sequence[tuple[int, int]], place: int) -> int:
    """The number of the word at this place, or of the last before it."""
    return max((i for i, (start, _) in enumerate(spans) if start <= place), default=0)


def _attention(alignment: Alignment, source_word: int) -> list[float]:
    """Each target word's attention to a source word, zero where it attends more to another one."""
    if not alignment.source_words:
        return [0.0] * len(alignment.target_words)
    column = alignment.weights[:, source_word]
    return (column * (column == alignment.weights.max(1))).tolist()


def _place(
    text: str, words: Sequence[tuple[int, int]], attention: Sequence[float], content: str, edits: Sequence[Edit]
) -> Edit:
    """In place of the word that attends most to the placeholder, or at the end, before its punctuation."""
    taken = [match.span() for match in PLACEHOLDER.finditer(text)] + [(start, end) for start, end, _ in edits]
    for i in sorted(range(len(attention)), key=lambda i: -attention[i]):
        start, end = words[i]
        while end > start and text[end - 1] in ".,;:!?…)]»”\"'":
            end -= 1
        if not attention[i]:
            break
        if start < end and not any(start < other_end and other_start < end for other_start, other_end in taken):
            return start, end, content
    end = len(text.rstrip(" .,;:!?…"))
    while any(start < end < other_end for start, other_end in taken):
        end += 1
    return end, end, f" {content}" if end and not text[end - 1].isspace() else content


def _edited(
    text: str, alignment: Alignment, words: Sequence[tuple[int, int]], edits: Sequence[Edit]
) -> tuple[str, Alignment]:
    parts, at = [], 0
    for start, end, content in edits:
        parts += [text[at:start], content]
        at = end

    def moved(place: int, is_end: bool) -> int:
        shift = 0
        for start, end, content in edits:
            if end < place or (end == place and is_end):
                shift += len(content) - (end - start)
            elif start < place <= end:
                return start + shift + (len(content) if is_end else 0)
        return place + shift

    result = "".join(parts) + text[at:]
    new_words = [result[moved(start, False) : moved(end, True)] for start, end in words]
    return result, Alignment(alignment.source_words, new_words, alignment.weights)
