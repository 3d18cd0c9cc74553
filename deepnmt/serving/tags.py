"""Where the tags of a sentence go in its translation: around the words that the alignment assigns to them.

Every tag comes out exactly once, with elements nested as before; they may change their order, as words do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from deepnmt.decoding.alignment import Alignment, word_spans
from deepnmt.decoding.translator import Hypothesis

MAX_PLACED = 100  # elements of one sentence; more are placed in proportion to their places in the source
ENOUGH = 0.2  # attention to an element from which on a single word may carry it
Span = tuple[int, int]
Masses = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True)
class Element:
    """From `start` to `end` of a text. A mark has neither content nor end; an opaque one is only its `open`."""

    start: int
    end: int
    open: str
    close: str
    parent: int  # its number among the elements, -1 for none
    is_opaque: bool = False
    from_before: bool = False  # it began in an earlier sentence
    goes_beyond: bool = False  # it ends in a later one

    @property
    def is_mark(self) -> bool:
        return self.start == self.end and not self.close and not self.is_opaque


def with_elements(source: str, elements: Sequence[Element], hypothesis: Hypothesis) -> str:
    """The translation as HTML. Parents come before their children in `elements`."""
    text = hypothesis.text
    if text == source or len(elements) > MAX_PLACED:
        scale = len(text) / max(len(source), 1)
        spans = [(round(element.start * scale), round(element.end * scale)) for element in elements]
    else:
        spans = _Placement(source, elements, text, hypothesis.alignment).spans
    children = _children(elements)

    def written(numbers: Iterable[int], start: int, end: int) -> str:
        parts = []
        at = start
        for number in sorted(numbers, key=lambda number: (*spans[number], number)):
            element, (own_start, own_end) = elements[number], spans[number]
            inner = "" if element.is_opaque else written(children.get(number, ()), own_start, own_end)
            parts += [escape(text[at:own_start], quote=False), element.open, inner, element.close]
            at = own_end
        return "".join(parts) + escape(text[at:end], quote=False)

    return written(children.get(-1, ()), 0, len(text))


def _children(elements: Sequence[Element]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for number, element in enumerate(elements):
        children.setdefault(element.parent, []).append(number)
    return children


class _Placement:
    """For each element its span in the translation, found from the outermost elements to the innermost."""

    def __init__(self, source: str, elements: Sequence[Element], text: str, alignment: Alignment | None) -> None:
        self.source, self.elements, self.text = source, elements, text
        if alignment is None or not alignment.source_words:
            self.words: list[Span] = [(0, len(text))] if text else []
            self.source_words: list[Span] = [(0, len(source))]
            self.weights = np.ones((len(self.words), 1))
        else:
            self.words = word_spans(text, alignment.target_words)
            self.source_words = word_spans(source, alignment.source_words)
            self.weights = alignment.weights.astype(np.float64)
        self.children = _children(elements)
        self.spans: list[Span] = [(0, 0)] * len(elements)
        self._place(self.children.get(-1, []), (0, len(self.words)), (0, len(text)))

    def _place(self, numbers: Sequence[int], words: Span, inside: Span) -> None:
        """Give these siblings separate runs of `words`: first those cut by the sentence boundary, then the longest."""
        free = [words]

        def urgency(number: int) -> tuple[bool, bool, int]:
            element = self.elements[number]
            return element.is_mark, not (element.from_before or element.goes_beyond), element.start - element.end

        for number in sorted(numbers, key=urgency):
            element = self.elements[number]
            run = self._run(element, free, words)
            span = self._characters(element, run, free, inside)
            free = [part for one in free for part in _without(one, run)]
            self.spans[number] = span
            self._place(self.children.get(number, []), run, span)

    def _run(self, element: Element, free: list[Span], words: Span) -> Span:
        """The words of an element: the run with the most attention to it, counted against half of all attention."""
        if element.is_mark:
            at = self._wanted_boundary(element)
            return at, at
        mass = self.weights @ np.array([_overlap(word, (element.start, element.end)) for word in self.source_words])
        if element.is_opaque and (found := self._verbatim(element, free)):
            return found
        if element.from_before:
            length = _best_prefix(mass[words[0] : words[1]])
            return words[0], words[0] + length
        if element.goes_beyond:
            length = _best_prefix(mass[free[-1][0] : free[-1][1]][::-1]) if free and free[-1][1] == words[1] else 0
            return words[1] - length, words[1]
        best, most = None, 0.0
        for start, end in free:
            run, total = _best_run(mass[start:end])
            if total > most:
                best, most = (start + run[0], start + run[1]), total
        if best is None:
            candidates = [i for start, end in free for i in range(start, end) if mass[i] >= ENOUGH]
            if candidates:
                i = max(candidates, key=lambda i: mass[i])
                best = i, i + 1
        at = words[0] + round((words[1] - words[0]) * element.start / max(len(self.source), 1))
        return best or (at, at)

    def _verbatim(self, element: Element, free: list[Span]) -> Span | None:
        content = self.source[element.start : element.end]
        at = self.text.find(content) if content else -1
        touched = [i for i, word in enumerate(self.words) if _overlap((at, at + len(content)), word) > 0]
        if at < 0 or not touched:
            return None
        run = touched[0], touched[-1] + 1
        return run if any(start <= run[0] and run[1] <= end for start, end in free) else None

    def _characters(self, element: Element, run: Span, free: list[Span], inside: Span) -> Span:
        """The span of a run of words. Punctuation at its ends stays outside if it was outside in the source."""
        if run[0] == run[1]:
            at = self._boundary(run[0], free, inside)
            start, end = at, at
        else:
            start, end = self.words[run[0]][0], self.words[run[1] - 1][1]
            content = self.source[element.start : element.end].strip()
            while content and content[-1].isalnum() and end - start > 1 and not self.text[end - 1].isalnum():
                end -= 1
            while content and content[0].isalnum() and end - start > 1 and not self.text[start].isalnum():
                start += 1
        start = inside[0] if element.from_before else min(max(start, inside[0]), inside[1])
        end = inside[1] if element.goes_beyond else min(max(end, start), inside[1])
        return start, end

    def _wanted_boundary(self, mark: Element) -> int:
        """Before the word that is most aligned with the next source word."""
        following = next((k for k, word in enumerate(self.source_words) if word[0] >= mark.start), None)
        if following is None or not self.words:
            return len(self.words)
        return int(self.weights[:, following].argmax())

    def _boundary(self, wanted: int, free: list[Span], inside: Span) -> int:
        """The character at the allowed boundary between words that is nearest to the wanted one."""
        points = [min(max(wanted, start), end) for start, end in free]
        boundary = min(points, key=lambda point: abs(point - wanted), default=None)
        if boundary is None:
            return inside[0]
        at = self.words[boundary][0] if boundary < len(self.words) else len(self.text)
        others = [span for span in self.spans if inside[0] <= span[0] and span[1] <= inside[1] and span != inside]
        if any(start < at < end for start, end in others):
            at = inside[0]
        return min(max(at, inside[0]), inside[1])


def _overlap(span: Span, other: Span) -> float:
    """The share of `span` that is inside the other."""
    common = min(span[1], other[1]) - max(span[0], other[0])
    return max(common, 0) / max(span[1] - span[0], 1)


def _without(span: Span, run: Span) -> list[Span]:
    if run[0] == run[1] or run[1] <= span[0] or span[1] <= run[0]:
        return [span]
    return [(span[0], run[0]), (run[1], span[1])]


def _best_prefix(mass: Masses) -> int:
    """The length of the prefix with the largest sum of mass above one half."""
    totals = np.concatenate(([0.0], np.cumsum(mass - 0.5)))
    return int(totals.argmax())


def _best_run(mass: Masses) -> tuple[Span, float]:
    """The run with the largest sum of mass above one half."""
    best, most = (0, 0), 0.0
    start, total = 0, 0.0
    for i, value in enumerate(mass - 0.5):
        if total <= 0:
            start, total = i, 0.0
        total += float(value)
        if total > most:
            best, most = (start, i + 1), total
    return best, most
