"""A text as its sentences and the gaps between them, so that a translation keeps lines, paragraphs and indents.

Every pattern here takes linear time, whatever a client sends.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deepnmt.decoding.splitting import UNSPACED_LANGUAGES
from deepnmt.languages import base_language

MAX_SENTENCE = 600  # characters; longer ones are cut at a space, so that no sentence holds up a batch
# The lookbehind matches a run of stops from its beginning only: a line of dots would take quadratic time otherwise.
_END = re.compile(
    r"(?<![.!?…])[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*|[।॥؟۔]+(?=\s)",
)
_SPACE = re.compile(r"\s*")
# What ends in a stop and does not end a sentence: initials, ordinals, titles, and words such as No. before a number.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[\"'„“«])(?:[^\W\d_]|\d{1,2}|(?:[A-Z]\.)+[A-Z]|Mrs?|Ms|Drs?|Prof|St|Mt|Sr|Jr|Inc|Ltd|Co|Hr|Fr|Mme|Mlle|"
    r"Sra?|Dña|(?i:vs|etc|e\.g|i\.e|cf|approx|z\.\s?B|d\.\s?h|u\.\s?a|bzw|usw|ca|evtl|ggf|vgl))$"
)
_NUMBERED = re.compile(r"(?:^|[\s(\[])(?:No|Nr|Fig|Art|Abs|Bd|Vol|Str|pp)$", re.IGNORECASE)


@dataclass(frozen=True)
class Sentence:
    """Only the first sentence of a text may be empty: its gap is then the white space at the start of the text."""

    text: str
    gap: str  # the spaces and line breaks that follow


def split_sentences(text: str) -> list[Sentence]:
    """Law: the sentences and their gaps, end to end, are the text."""
    found: list[Sentence] = []
    gap = ""
    for line in text.splitlines(keepends=True):
        content = line.strip()
        if not content:
            gap += line
            continue
        start = line.index(content)
        if found:
            found[-1] = Sentence(found[-1].text, found[-1].gap + gap + line[:start])
        elif gap or start:
            found.append(Sentence("", gap + line[:start]))
        found += _in_line(content)
        gap = line[start + len(content) :]
    if gap:
        last = found.pop() if found else Sentence("", "")
        found.append(Sentence(last.text, last.gap + gap))
    return found


def _in_line(line: str) -> Iterator[Sentence]:
    start = 0
    for match in _END.finditer(line):
        following = _space_end(line, match.end())
        if following < len(line) and _is_end(line, match, following):
            yield from _cut(line[start : match.end()], line[match.end() : following])
            start = following
    yield from _cut(line[start:], "")


def _space_end(line: str, start: int) -> int:
    match = _SPACE.match(line, start)
    return match.end() if match else start


def _is_end(line: str, match: re.Match[str], following: int) -> bool:
    """A stop ends a sentence unless a lower-case letter follows or an abbreviation precedes it."""
    if line[following].islower():
        return False
    before = line[max(match.start() - 12, 0) : match.start()]
    is_numbered = line[following].isdigit() and _NUMBERED.search(before)
    return match.group() != "." or not (is_numbered or _ABBREVIATION.search(before))


def _cut(text: str, gap: str) -> Iterator[Sentence]:
    start = 0
    while len(text) - start > MAX_SENTENCE:
        end = text.rfind(" ", start + MAX_SENTENCE // 2, start + MAX_SENTENCE)
        end = end if end > 0 else start + MAX_SENTENCE
        following = _space_end(text, end)
        yield Sentence(text[start:end], text[end:following])
        start = following
    if start < len(text):
        yield Sentence(text[start:], gap)


def fitted_gaps(sentences: Sequence[Sentence], language: str) -> list[str]:
    """The gaps as the target language writes them: sentences of one line apart by a space, or by nothing."""
    unspaced = base_language(language) in UNSPACED_LANGUAGES
    gaps = [sentence.gap for sentence in sentences]
    for i, sentence in enumerate(sentences[:-1]):
        if unspaced and sentence.gap == " ":
            gaps[i] = ""
        elif not unspaced and not sentence.gap and sentence.text:
            gaps[i] = " "
    return gaps
