"""HTML: sentences are taken out whole, without their tags, and the tags are put back into the translations.

Everything that is not text is copied byte by byte.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from deepnmt.decoding.translator import Hypothesis
from deepnmt.serving.html_tokens import Token, tokens_of
from deepnmt.serving.sentences import fitted_gaps, split_sentences
from deepnmt.serving.tags import Element, with_elements


class Passage:
    """Text without a separator in it: its sentences, and where its tags are, in them and between them."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.raw = "".join(token.raw for token in tokens)
        self.elements: list[Element] = []
        self._tags: list[tuple[int, int, str]] = []  # where, of which element, and the tag itself
        self.text = self._read(tokens)
        self.sentences = split_sentences(self.text)
        self.starts = [0, *accumulate(len(s.text) + len(s.gap) for s in self.sentences)][:-1]
        self.inside: list[list[Element]] = [[] for _ in self.sentences]
        self.between: list[list[tuple[int, str]]] = [[] for _ in range(len(self.sentences) + 1)]
        self.is_copied = not any(map(str.isalnum, self.text)) or not self._give_homes()

    def _read(self, tokens: Sequence[Token]) -> str:
        pieces: list[str] = []
        length, space = 0, True  # does the text end in a space (or begin here)?
        open_elements: list[tuple[int, int, int]] = [(-1, 0, 0)]  # their numbers, tokens and tags before them
        for i, token in enumerate(tokens):
            parent = open_elements[-1][0]
            if token.kind in ("text", "opaque"):
                content = token.text.removeprefix(" ") if space else token.text
                if token.kind == "opaque":
                    self._add(Element(length, length + len(content), token.raw, "", parent, is_opaque=True))
                pieces.append(content)
                length += len(content)
                space = content.endswith(" ") if content else space
            elif token.kind == "open":
                open_elements.append((len(self.elements), i, len(self._tags)))
                self._add(Element(length, length, token.raw, "<", parent))
            elif token.kind == "close":
                number, first, tags = open_elements.pop()
                if self.elements[number].start < length:
                    self.elements[number] = replace(self.elements[number], end=length, close=token.raw)
                    self._tags.append((length, number, token.raw))
                else:  # nothing inside
                    del self.elements[number:], self._tags[tags:]
                    raw = "".join(token.raw for token in tokens[first : i + 1])
                    self._add(Element(length, length, raw, "", open_elements[-1][0]))
            else:
                self._add(Element(length, length, token.raw, "", parent))
        return "".join(pieces)

    def _add(self, element: Element) -> None:
        self._tags.append((element.start, len(self.elements), element.open))
        self.elements.append(element)

    def _give_homes(self) -> bool:
        """Tags inside a sentence go into its translation, the others stay between sentences.

        False where content that must be kept was split, which is possible in a sentence of extreme length only.
        """
        numbers: dict[tuple[int, int], int] = {}  # (sentence, element): its number in the sentence
        for i, element in enumerate(self.elements):
            around = {self._sentence_at(element.start), self._sentence_at(element.end - 1)}
            around |= {self._sentence_at(element.start) - 1} if element.start == element.end else set()
            homes = [k for k in sorted(around) if k >= 0 and self._is_inside(element, k, numbers)]
            if element.is_opaque and len(homes) > 1:
                return False
            for k in homes[:1] if element.is_mark else homes:
                start, size = self.starts[k], len(self.sentences[k].text)
                numbers[k, i] = len(self.inside[k])
                begins, ends = element.start >= start, element.end <= start + size
                self.inside[k].append(
                    replace(
                        element,
                        start=max(element.start - start, 0),
                        end=min(element.end - start, size),
                        open=element.open if begins else "",
                        close=element.close if ends else "",
                        parent=numbers.get((k, element.parent), -1),
                        from_before=not begins,
                        goes_beyond=not ends,
                    )
                )
        for place, i, tag in self._tags:
            k = self._sentence_at(place)
            if any((k - back, i) in numbers and self._is_within(place, k - back) for back in (0, 1)):
                continue
            end = self.starts[k] + len(self.sentences[k].text)
            region = k if place == self.starts[k] and place < end else k + 1
            self.between[region].append((place - end if region == k + 1 else len(self.text), tag))
        return True

    def _sentence_at(self, place: int) -> int:
        return max(bisect_right(self.starts, place) - 1, 0)

    def _is_within(self, place: int, k: int) -> bool:
        return k >= 0 and self.starts[k] <= place <= self.starts[k] + len(self.sentences[k].text)

    def _is_inside(self, element: Element, k: int, numbers: dict[tuple[int, int], int]) -> bool:
        start, end = self.starts[k], self.starts[k] + len(self.sentences[k].text)
        if element.start == element.end:
            has_home = (k, element.parent) in numbers
            return start < element.start < end or (has_home and start <= element.start <= end)
        if max(start, element.start) >= min(end, element.end):
            return False
        return element.is_opaque or not (element.start <= start and element.end >= end)

    def written(self, hypotheses: Iterator[Hypothesis], language: str) -> str:
        """The passage with the next translations, which are those of its sentences."""
        first = len(self.raw) - len(self.raw.lstrip(" \t\n\r\f"))
        parts = [self.raw[:first]]
        parts += [tag for _, tag in self.between[0]]
        gaps = fitted_gaps(self.sentences, language)
        for k, sentence in enumerate(self.sentences):
            parts.append(with_elements(sentence.text, self.inside[k], next(hypotheses)))
            at = 0
            for place, tag in self.between[k + 1]:
                place = min(max(place, at), len(gaps[k]))
                parts += [gaps[k][at:place], tag]
                at = place
            parts.append(gaps[k][at:])
        return "".join(parts)


class MarkupText:
    """An HTML document. Law: with every sentence translated as itself, it is the document but for white space."""

    def __init__(self, document: str) -> None:
        self.parts: list[str | Passage] = []
        run: list[Token] = []
        for token in [*tokens_of(document), Token("block", "")]:
            if token.kind != "block":
                run.append(token)
                continue
            if run:
                passage = Passage(run)
                self.parts.append(passage.raw if passage.is_copied else passage)
                run = []
            self.parts.append(token.raw)

    @property
    def sentences(self) -> list[tuple[str, bool]]:
        """The sentences to translate, and whether alignments are needed to put tags back."""
        return [
            (sentence.text, bool(elements))
            for passage in self.parts
            if isinstance(passage, Passage)
            for sentence, elements in zip(passage.sentences, passage.inside, strict=True)
        ]

    def written(self, hypotheses: Sequence[Hypothesis], language: str) -> str:
        remaining = iter(hypotheses)
        return "".join(part if isinstance(part, str) else part.written(remaining, language) for part in self.parts)
