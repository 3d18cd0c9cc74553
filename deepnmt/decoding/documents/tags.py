"""Where the tags of a sentence go in its translation: around the words that the alignment assigns to them.

Every tag comes out exactly once, with elements nested as before; they may change their order, as words do.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from unicodedata import category

import numpy as np

from deepnmt.decoding.alignment import Alignment, word_spans
from deepnmt.decoding.translator import Hypothesis

MAX_PLACED = 100  # elements of one sentence; more are placed in proportion to their places in the source
ENOUGH = 0.2  # attention to an element from which on a single word may carry it
Span = tuple[int, int]
Masses = np.ndarray[tuple[int], np.dtype[np.float64]]
Free = np.ndarray[tuple[int], np.dtype[np.bool_]]
Owners = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Element:
    """From `start` to `end` of a text. A mark has neither content nor end; an opaque one is only its `open`."""

    start: int
    end: int
    open: str
    close: str
    parent: int  # its number among the elements, -1 for none
    is_opaque: bool = False
    may_vanish: bool = False  # if nothing is inside
    is_apart: bool = False  # a mark with white space on both sides

    @property
    def is_mark(self) -> bool:
        return self.start == self.end and not self.close and not self.is_opaque


def with_elements(
    source: str, elements: Sequence[Element], hypothesis: Hypothesis, escape: Callable[[str], str]
) -> str:
    """The translation with its tags. Parents come before their children in `elements`."""
    text = hypothesis.text
    if text == source or len(elements) > MAX_PLACED:
        scale = len(text) / max(len(source), 1)
        spans = [(round(element.start * scale), round(element.end * scale)) for element in elements]
    else:
        spans = _Placement(source, elements, text, hypothesis.alignment).spans
    children = _children(elements)

    def tag(element: Element, place: int) -> str:
        if element.is_apart and not text[:place][-1:].strip():
            return f"{element.open} "
        return f" {element.open}" if element.is_apart and not text[place : place + 1].strip() else element.open

    def written(numbers: Iterable[int], start: int, end: int) -> str:
        parts = []
        at = start
        for number in sorted(numbers, key=lambda number: (*spans[number], number)):
            element, (own_start, own_end) = elements[number], spans[number]
            inner = "" if element.is_opaque else written(children.get(number, ()), own_start, own_end)
            parts.append(escape(text[at:own_start]))
            if inner or not element.may_vanish:
                parts += [tag(element, own_start), inner, element.close]
            at = own_end
        return "".join(parts) + escape(text[at:end])

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
        """Give these siblings separate runs of `words`, the longest first."""
        owners = np.full(len(self.words), -1)
        for number in sorted(numbers, key=lambda number: self.elements[number].start - self.elements[number].end):
            element = self.elements[number]
            run = self._run(element, words, owners) or self._boundary(element, words, owners)
            owners[slice(*run)] = number
            self.spans[number] = self._characters(element, run, inside)
            self._place(self.children.get(number, []), run, self.spans[number])

    def _run(self, element: Element, words: Span, owners: Owners) -> Span | None:
        """The free words with the most attention to the element, counted against half of all attention."""
        is_free = owners < 0
        is_free[: words[0]] = is_free[words[1] :] = False
        if element.is_opaque and (found := self._verbatim(element, is_free)):
            return found
        share = np.array([_overlap(word, (element.start, element.end)) for word in self.source_words])
        mass = np.where(is_free, self.weights @ share, -np.inf)
        if (run := _best_run(mass)) or element.is_mark or not len(mass):
            return run
        best = int(mass.argmax())
        return (best, best + 1) if mass[best] >= ENOUGH else None

    def _verbatim(self, element: Element, is_free: Free) -> Span | None:
        """Free words in which an opaque element's content was copied."""
        content = self.source[element.start : element.end]
        at = self.text.find(content) if content else -1
        while at >= 0:
            first = bisect_right(self.words, at, key=itemgetter(1))
            last = bisect_left(self.words, at + len(content), key=itemgetter(0))
            if first < last and is_free[first:last].all():
                return first, last
            at = self.text.find(content, at + len(content))
        return None

    def _boundary(self, element: Element, words: Span, owners: Owners) -> Span:
        """Between two words, not inside a sibling: where a mark's next source word went, or at the same proportion."""
        wanted = words[0] + round((words[1] - words[0]) * element.start / max(len(self.source), 1))
        if element.is_mark:
            following = next((k for k, word in enumerate(self.source_words) if word[0] >= element.start), None)
            has_next = following is not None and len(self.words) > 0
            wanted = int(self.weights[:, following].argmax()) if has_next else len(self.words)
        points = (
            at
            for at in range(words[0], words[1] + 1)
            if at in words or owners[at - 1] < 0 or owners[at - 1] != owners[at]
        )
        at = min(points, key=lambda at: abs(at - wanted))
        return at, at

    def _characters(self, element: Element, run: Span, inside: Span) -> Span:
        """The span of a run of words. Punctuation at its ends stays outside if it was outside in the source, and of an
        element inside a word (H<sub>2</sub>O) only its own content is taken if that was copied."""
        if run[0] == run[1]:
            start = end = self.words[run[0]][0] if run[0] < len(self.words) else len(self.text)
        else:
            start, end = self.words[run[0]][0], self.words[run[1] - 1][1]
            content = self.source[element.start : element.end].strip()
            is_part = element.is_opaque or self._is_inside_word(element)
            at = self.text.find(content, start, end) if content and is_part else -1
            start, end = (start, end) if at < 0 else (at, at + len(content))
            while content and not _is_edge(content[-1]) and end - start > 1 and _is_edge(self.text[end - 1]):
                end -= 1
            while content and not _is_edge(content[0]) and end - start > 1 and _is_edge(self.text[start]):
                start += 1
        start = min(max(start, inside[0]), inside[1])
        return start, min(max(end, start), inside[1])

    def _is_inside_word(self, element: Element) -> bool:
        ends = (self.source[max(at - 1, 0) : at + 1] for at in (element.start, element.end))
        return any(len(pair) == 2 and pair.isalnum() for pair in ends)


def _is_edge(char: str) -> bool:
    """Punctuation or space: not the vowel sign at the end of a word of Hindi or Thai, nor that of 10 % or C++."""
    return char.isspace() or (category(char)[0] == "P" and char not in "%‰#@&*")


def _overlap(span: Span, other: Span) -> float:
    """The share of `span` that is inside the other."""
    common = min(span[1], other[1]) - max(span[0], other[0])
    return max(common, 0) / max(span[1] - span[0], 1)


def _best_run(mass: Masses) -> Span | None:
    """The run with the largest sum of mass above one half."""
    best, most = None, 0.0
    start, total = 0, 0.0
    for i, value in enumerate(mass - 0.5):
        if total <= 0:
            start, total = i, 0.0
        total += float(value)
        if total > most:
            best, most = (start, i + 1), total
    return best
