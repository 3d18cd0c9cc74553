"""Subtitles (SRT and WebVTT): sentences are translated whole, over lines and cues, and laid out again in their cues."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import accumulate

from deepnmt.decoding.documents.document import Document, Part
from deepnmt.decoding.documents.layout import balanced, breaks, width_of
from deepnmt.decoding.documents.passages import passages
from deepnmt.decoding.documents.tagged import tagged
from deepnmt.decoding.translator import Hypothesis
from deepnmt.errors import InputError

WIDTH = 42  # columns of a line, the usual limit; the file's own lines may be longer
MAX_JOINED = 4  # cues of one sentence
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_TIME = r"(?:\d{1,4}:)?\d{1,2}:\d{2}(?:[.,]\d{1,3})?"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?\s*")
_ARROW = re.compile(r"-->|^\s*\d+:\d+:\d+\S*\s*-+>")
_DASH = re.compile(r"\s*[-–—](?!\d)")
# What stands before and after the text of a cue: dashes, notes, positions such as {\an8}, tags around all of it.
_LEADING = re.compile(r"(?:[\s♪♫]|[-–—](?![-–—\d])\s*|\{\\[^{}]*\}|<v[\s.][^<>]*>)+")
_TRAILING = re.compile(r"[\s♪♫]+$")
_AROUND = re.compile(r"<([a-z])((?:[\s.][^<>]*)?)>(.*)</\1>", re.DOTALL | re.IGNORECASE)
_ENDED = re.compile(r"[.!?…:。！？♪♫)\]][\"'”’»]*$")


def read_srt(text: str, language: str) -> Document:
    return Document(_parts(text, language, False))


def read_vtt(text: str, language: str) -> Document:
    if not re.match(r"WEBVTT(?:\s|$)", text):
        raise InputError("line 1: the file does not begin with WEBVTT; is it SRT?")
    return Document(_parts(text, language, True))


@dataclass(frozen=True)
class Speech:
    """The lines of one speaker in a cue: the text, and what stands before and after it."""

    raw: str
    before: str
    text: str
    after: str

    @property
    def is_plain(self) -> bool:
        return "<" not in self.text and "{\\" not in self.text

    def continues(self, other: "Speech") -> bool:
        """Does a sentence of the other one go on here?"""
        if not self.is_plain or not other.is_plain or _DASH.match(self.before):
            return False
        return bool(other.text) and not _ENDED.search(other.text) and self.text[:1].islower()


def _parts(text: str, language: str, is_vtt: bool) -> Iterator[str | Part]:
    speeches: list[str | Speech] = []
    for block in _blocks(_LINE.findall(text), is_vtt):
        speeches += block
    width = max(
        [WIDTH, *(width_of(line) for each in speeches if isinstance(each, Speech) for line in _rows(each.text))]
    )
    group: list[str | Speech] = []
    last, count = None, 0
    for each in speeches:
        if isinstance(each, Speech):
            if last is not None and (count == MAX_JOINED or not each.continues(last)):
                yield Cues(group, language, width, is_vtt)
                group, count = [], 0
            last, count = each, count + 1
        group.append(each)
    yield Cues(group, language, width, is_vtt)


def _rows(text: str) -> list[str]:
    return [row.strip() for row in text.splitlines()]


def _blocks(lines: Sequence[str], is_vtt: bool) -> Iterator[list[str | Speech]]:
    """What is copied, and what is spoken, of each block of lines between blank ones."""
    start, has_cue = 0, False
    while start < len(lines):
        end = next((i for i in range(start, len(lines)) if not lines[i].strip()), len(lines))
        times = next((i for i in range(start, min(end, start + 2)) if _TIMES.fullmatch(lines[i])), None)
        for i in range(start, end):
            if i != times and _ARROW.search(lines[i]) and not (is_vtt and lines[start].startswith("NOTE")):
                expected = "times such as 00:00:01,000 --> 00:00:02,500"
                expected = "a blank line before this subtitle" if _TIMES.fullmatch(lines[i]) else expected
                raise InputError(f"line {i + 1:,}: expected {expected}, not {lines[i].strip()[:60]!r}")
        if times is not None:
            has_cue = True
            yield ["".join(lines[start : times + 1]), *_speeches(lines[times + 1 : end])]
        elif is_vtt or start == end:
            yield ["".join(lines[start:end])]
        elif has_cue:  # a blank line inside a cue
            yield list(_speeches(lines[start:end]))
        else:
            wrong = lines[start].strip()[:60]
            raise InputError(f"line {start + 1:,}: expected the number and the times of a subtitle, not {wrong!r}")
        if end < len(lines):
            yield [lines[end]]
        start = end + 1


def _speeches(lines: Sequence[str]) -> Iterator[str | Speech]:
    """Lines that begin with a dash belong to different speakers."""
    start = 0
    for end in range(1, len(lines) + 1):
        if end == len(lines) or _DASH.match(lines[end]):
            raw = "".join(lines[start:end])
            content = raw.rstrip("\r\n")
            yield _speech(content)
            yield raw[len(content) :]
            start = end


def _speech(raw: str) -> Speech:
    before, text, after = "", raw, ""
    while True:
        leading, trailing = _LEADING.match(text), _TRAILING.search(text)
        around = _AROUND.fullmatch(text)
        if leading:
            before, text = before + leading.group(), text[leading.end() :]
        elif trailing:
            text, after = text[: trailing.start()], trailing.group() + after
        elif around and f"</{around[1]}>" not in around[3]:
            before, text, after = before + text[: around.start(3)], around[3], text[around.end(3) :] + after
        else:
            return Speech(raw, before, text, after)


class Cues(Part):
    """The text of one cue, or of several that share a sentence."""

    def __init__(self, group: Sequence[str | Speech], language: str, width: int, is_vtt: bool) -> None:
        self.group, self.width = group, width
        self.speeches = [each for each in group if isinstance(each, Speech)]
        self.text = " ".join(" ".join(_rows(speech.text)) for speech in self.speeches)
        write = partial(escape, quote=False) if is_vtt else str
        self.inside = Document(passages(tagged(self.text, "mark"), language, write))

    @property
    def sentences(self) -> list[tuple[str, bool]]:
        return self.inside.sentences

    def written(self, hypotheses: Iterator[Hypothesis]) -> str:
        text = self.inside.written(hypotheses)
        if text == self.text:
            return "".join(each if isinstance(each, str) else each.raw for each in self.group)
        shares = iter(divided(text, [width_of(speech.text) for speech in self.speeches]))
        return "".join(each if isinstance(each, str) else self._laid_out(each, next(shares)) for each in self.group)

    def _laid_out(self, speech: Speech, text: str) -> str:
        end = "\r\n" if "\r\n" in speech.raw else "\n"
        return speech.before + end.join(balanced(text, self.width)) + speech.after


def divided(text: str, sizes: Sequence[int]) -> list[str]:
    """The text in as many parts as there are sizes, in proportion to them, preferably cut after punctuation."""
    widths = [0, *accumulate(map(width_of, text))]
    places, shares, start, done = breaks(text), [], 0, 0
    for number, size in enumerate(sizes[:-1], start=1):
        done += size
        wanted = widths[-1] * done / max(sum(sizes), 1)
        later = [place for place in places if place > start]
        later = later[: max(len(later) - (len(sizes) - 1 - number), 1)]  # the others get a word each

        def distance(place: int, wanted: float = wanted) -> float:
            return abs(widths[place] - wanted) * (0.4 if text[place - 1] in ",;:.!?…，。、" else 1)

        end = min(later, key=distance, default=len(text))
        shares.append(text[start:end].strip())
        start = end
    return [*shares, text[start:].strip()]
