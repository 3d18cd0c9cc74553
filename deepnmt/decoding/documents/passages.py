"""Passages of text with inline tags: sentences without their tags, and the tags put back into the translations."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby

from deepnmt.decoding.documents.document import Document, Part
from deepnmt.decoding.documents.sentences import fitted_gaps, split_sentences
from deepnmt.decoding.documents.tags import Element, with_elements
from deepnmt.decoding.documents.tokens import Token
from deepnmt.decoding.translator import Hypothesis

SPACE = " \t\n\r\f"
MARK = "\x03"
_MARKED = re.compile(f"{MARK}(\\d+){MARK}")
MAX_DEPTH = 32  # of inline elements; the tags of deeper texts separate


class Passage(Part):
    """Text without a separator in it: its sentences, and where its tags are, in them and between them.

    `crossing` are the tokens of elements that have a part of one sentence and something of another, and of the elements
    around those.
    """

    def __init__(self, tokens: Sequence[Token], language: str, escape: Callable[[str], str]) -> None:
        self.language, self.escape = language, escape
        self.raw = "".join(token.raw for token in tokens)
        self.elements: list[Element] = []
        self.crossing: set[int] = set()
        self._tokens: list[list[int]] = []  # of each element
        self._tags: list[tuple[int, int, str]] = []  # where, of which element, and the tag itself
        self.text = self._read(tokens)
        self.split = split_sentences(self.text)
        self.starts = [0, *accumulate(len(s.text) + len(s.gap) for s in self.split)][:-1]
        self.inside: list[list[Element]] = [[] for _ in self.split]
        self.between: list[list[tuple[int, str]]] = [[] for _ in range(len(self.split) + 1)]
        self.is_copied = not any(map(str.isalnum, self.text))
        if not self.is_copied:
            self._give_homes()

    def _read(self, tokens: Sequence[Token]) -> str:
        pieces: list[str] = []
        length, space = 0, True  # does the text end in a space (or begin here)?
        open_elements: list[tuple[int, int, int]] = [(-1, 0, 0)]  # their numbers, tokens and tags before them
        for i, token in enumerate(tokens):
            parent = open_elements[-1][0]
            if token.kind in ("text", "opaque"):
                content = token.text.removeprefix(" ") if space else token.text
                place, number, tag = self._tags[-1] if self._tags else (-1, 0, "")
                if content != token.text and place == length and self.elements[number].is_mark:
                    self._tags[-1] = place, number, f"{tag} "
                    self.elements[number] = replace(self.elements[number], is_apart=True)
                if token.kind == "opaque":
                    self._add(i, Element(length, length + len(content), token.raw, "", parent, is_opaque=True))
                pieces.append(content)
                length += len(content)
                space = content.endswith(" ") if content else space
            elif token.kind == "open":
                open_elements.append((len(self.elements), i, len(self._tags)))
                self._add(i, Element(length, length, token.raw, "<", parent, may_vanish=token.may_vanish))
            elif token.kind == "close":
                number, first, tags = open_elements.pop()
                if self.elements[number].start < length:
                    self.elements[number] = replace(self.elements[number], end=length, close=token.raw)
                    self._tokens[number].append(i)
                    self._tags.append((length, number, token.raw))
                else:  # nothing inside
                    del self.elements[number:], self._tokens[number:], self._tags[tags:]
                    raw = "".join(token.raw for token in tokens[first : i + 1])
                    self._add(i, Element(length, length, raw, "", open_elements[-1][0]))
            else:
                self._add(i, Element(length, length, token.raw, "", parent))
        return "".join(pieces)

    def _add(self, token: int, element: Element) -> None:
        self._tags.append((element.start, len(self.elements), element.open))
        self._tokens.append([token])
        self.elements.append(element)

    def _give_homes(self) -> None:
        """Tags inside a sentence go into its translation, the others stay between sentences."""
        homes: dict[int, tuple[int, int]] = {}  # of an element inside a sentence: which one, and its number there
        for i, element in enumerate(self.elements):
            touched = homes[element.parent][:1] if element.parent in homes else self._touched(element)
            if len(touched) > 1:
                around = i
                while around >= 0:
                    self.crossing.update(self._tokens[around])
                    around = self.elements[around].parent
            for k in touched[:1]:
                start, size = self.starts[k], len(self.split[k].text)
                parent = homes[element.parent][1] if element.parent in homes else -1
                begin, end = max(element.start - start, 0), min(element.end - start, size)
                homes[i] = k, len(self.inside[k])
                self.inside[k].append(replace(element, start=min(begin, end), end=end, parent=parent))
        for place, i, tag in self._tags:
            if i not in homes:
                k = self._sentence_at(place)
                end = self._end(k)
                region = k if place == self.starts[k] and place < end else k + 1
                self.between[region].append((place - end if region == k + 1 else len(self.text), tag))

    def _sentence_at(self, place: int) -> int:
        return max(bisect_right(self.starts, place) - 1, 0)

    def _end(self, k: int) -> int:
        return self.starts[k] + len(self.split[k].text)

    def _touched(self, element: Element) -> Sequence[int]:
        """The sentences that an element is in: none if it is between sentences or around whole ones."""
        first, last = self._sentence_at(element.start), self._sentence_at(element.end - 1)
        if element.start == element.end:
            return [first] if self.starts[first] < element.start < self._end(first) else []
        if element.start >= self._end(first):
            first += 1
        is_around = first > last or (element.start <= self.starts[first] and element.end >= self._end(last))
        return [] if is_around and not element.is_opaque else range(first, last + 1)

    @property
    def sentences(self) -> list[tuple[str, bool]]:
        return [(sentence.text, bool(inside)) for sentence, inside in zip(self.split, self.inside, strict=True)]

    def written(self, hypotheses: Iterator[Hypothesis]) -> str:
        own = [next(hypotheses) for _ in self.split]
        if all(found.text == sentence.text for found, sentence in zip(own, self.split, strict=True)):
            return self.raw
        first = len(self.raw) - len(self.raw.lstrip(SPACE))
        parts = [self.raw[:first]]
        parts += [tag for _, tag in self.between[0]]
        gaps = fitted_gaps(self.split, self.language)
        for k, sentence in enumerate(self.split):
            parts.append(with_elements(sentence.text, self.inside[k], own[k], self.escape))
            at = 0
            for place, tag in self.between[k + 1]:
                place = min(max(place, at), len(gaps[k]))
                parts += [gaps[k][at:place], tag]
                at = place
            parts.append(gaps[k][at:])
        result = "".join(parts)
        last = self.raw[len(self.raw.rstrip(SPACE)) :]
        return result[:-1] + last if last and result.endswith(" ") else result


class Labelled(Document):
    """Parts whose tags have texts of their own, such as the title of a link, and MARK and a number in their place."""

    def __init__(self, parts: Iterable[str | Part], labels: Sequence[Part]) -> None:
        super().__init__(parts)
        self.labels = labels

    @property
    def sentences(self) -> list[tuple[str, bool]]:
        return [*super().sentences, *(sentence for label in self.labels for sentence in label.sentences)]

    def written(self, hypotheses: Iterator[Hypothesis]) -> str:
        text, labels = super().written(hypotheses), [label.written(hypotheses) for label in self.labels]
        return _MARKED.sub(lambda match: labels[int(match[1])], text) if labels else text


def without_labels(
    tokens: Sequence[Token], read: Callable[[str], Iterable[str | Part]]
) -> tuple[list[Token], list[Part]]:
    """The tokens of a `Labelled` document, and its labels, which are read by `read`."""
    labels: list[Part] = []
    if any(MARK in token.raw for token in tokens):
        return list(tokens), labels
    marked = []
    for token in tokens:
        parts, at = [], 0
        for start, end in token.labels:
            parts += [token.raw[at:start], f"{MARK}{len(labels)}{MARK}"]
            labels.append(Document(read(token.raw[start:end])))
            at = end
        marked.append(replace(token, raw="".join([*parts, token.raw[at:]])) if parts else token)
    return marked, labels


def passages(
    tokens: Iterable[Token], language: str, escape: Callable[[str], str] = str, is_first: bool = True
) -> Iterator[str | Passage]:
    """What is copied, and passages to translate into the language; their new text is written with `escape`.

    Tags of crossing elements separate; if that leaves others, all do.
    """
    for is_block, group in groupby(tokens, key=lambda token: token.kind == "block"):
        run = list(group)
        depth = max(accumulate((token.kind == "open") - (token.kind == "close") for token in run))
        passage = Passage(run, language, escape) if not is_block and depth <= MAX_DEPTH else None
        if is_block or (passage and passage.is_copied):
            yield "".join(token.raw for token in run)
        elif passage and not passage.crossing:
            yield passage
        else:
            tags = {i for i, token in enumerate(run) if token.kind in ("open", "close", "opaque")}
            blocks = passage.crossing if passage and is_first else tags
            apart = [replace(token, kind="block") if i in blocks else token for i, token in enumerate(run)]
            yield from passages(apart, language, escape, False)
