"""What the workers of `prepare` do to a chunk of pairs: clean it, count its words, encode it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from deepnmt.data.cleaning import Judge, Keys, ReasonCounts, keys
from deepnmt.data.dataset import Flat
from deepnmt.data.parallel import RawChunk
from deepnmt.data.prepare_settings import CleaningSettings
from deepnmt.data.spool import Numbers, SpoolChunk
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.errors import InputError


@dataclass(frozen=True)
class CleanChunk:
    """The pairs of a chunk that are kept, preprocessed, one per line; and counts of the dropped ones."""

    file: str
    lines: Numbers
    source: bytes
    target: bytes
    source_keys: Keys
    target_keys: Keys
    dropped: ReasonCounts
    pairs_read: int


@dataclass(frozen=True)
class Rejected:
    """A pair that is dropped, and why."""

    reason: str
    source: str
    target: str


class Cleaner:
    """Decodes, judges and splits into words."""

    def __init__(self, settings: CleaningSettings, preprocessors: tuple[Preprocessor, Preprocessor]) -> None:
        self.settings, self.preprocessors = settings, preprocessors
        self.judge = Judge(settings, (preprocessors[0].language, preprocessors[1].language))

    def __call__(self, chunk: RawChunk) -> CleanChunk:
        dropped = ReasonCounts()
        numbers: list[int] = []
        sides: tuple[list[bytes], list[bytes]] = ([], [])
        for number, pair in enumerate(_raw_pairs(chunk), start=chunk.first_line):
            kept = self._clean(pair)
            if isinstance(kept, Rejected):
                dropped.add(kept.reason, f"{chunk.file.source}:{number}", kept.source, kept.target)
            else:
                numbers.append(number)
                sides[0].append(kept[0])
                sides[1].append(kept[1])
        source, target = (b"".join(line + b"\n" for line in side) for side in sides)
        return CleanChunk(
            str(chunk.file.source),
            np.array(numbers, np.uint32),
            source,
            target,
            keys(sides[0]),
            keys(sides[1]),
            dropped,
            len(chunk),
        )

    def _clean(self, pair: list[bytes]) -> "tuple[bytes, bytes] | Rejected":
        if len(pair) != 2:
            return Rejected("columns", _lenient(b"\t".join(pair)), "")
        try:
            source, target = pair[0].decode("utf-8"), pair[1].decode("utf-8")
        except UnicodeDecodeError:
            return Rejected("utf8", _lenient(pair[0]), _lenient(pair[1]))
        reason = self.judge(source, target)
        if reason is None:
            split = self.preprocessors[0].split(source), self.preprocessors[1].split(target)
            reason = self._judge_words(*split)
        if reason is not None:
            return Rejected(reason, source, target)
        return split[0].encode("utf-8"), split[1].encode("utf-8")

    def _judge_words(self, source: str, target: str) -> str | None:
        if not source or not target:
            return "empty"
        if self.settings.length_unit != "words":
            return None
        return self.settings.judge_lengths(source.count(" ") + 1, target.count(" ") + 1)


def _raw_pairs(chunk: RawChunk) -> Iterable[list[bytes]]:
    if chunk.target is None:
        return [line.split(b"\t") for line in chunk.source]
    return map(list, zip(chunk.source, chunk.target, strict=True))


def held_out_pairs(chunk: RawChunk) -> list[tuple[str, str]]:
    """The pairs of a held-out chunk. None may be dropped, so a line that is not a pair is refused."""
    pairs = []
    for number, pair in enumerate(_raw_pairs(chunk), start=chunk.first_line):
        if len(pair) != 2:
            raise InputError(f"line {number:,} of {chunk.file} has {len(pair)} columns, not source, tab, target")
        pairs.append((_lenient(pair[0]), _lenient(pair[1])))
    return pairs


def _lenient(line: bytes) -> str:
    return line.decode("utf-8", "replace")


class WordCounter:
    """Counts the words of every `stride`-th line of some chunks, separately for each side."""

    def __init__(self, stride: int) -> None:
        self.stride = stride

    def __call__(self, chunks: Sequence[SpoolChunk]) -> tuple[dict[str, int], dict[str, int], int, int]:
        """The counts of source and target, the number of lines counted, and the number of pairs."""
        counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        lines_counted = 0
        for chunk in chunks:
            for counter, lines in zip(counts, chunk.read(), strict=True):
                taken = lines[:: self.stride]
                counter.update(" ".join(taken).split(" "))
            lines_counted += len(taken)
        return dict(counts[0]), dict(counts[1]), lines_counted, sum(chunk.pairs for chunk in chunks)


@dataclass(frozen=True)
class EncodedChunk:
    """The ids of the pairs of a chunk that are not too long; and counts of the others."""

    source: Flat
    target: Flat
    dropped: ReasonCounts
    unknown: tuple[int, int]
    pairs_read: int


class Encoder:
    """Splits words into subwords and drops pairs with too many."""

    def __init__(self, tokenizers: TokenizerPair, settings: CleaningSettings, tag: str | None) -> None:
        self.tokenizers, self.settings, self.tag = tokenizers, settings, tag

    def __call__(self, chunk: SpoolChunk) -> EncodedChunk:
        source_lines, target_lines = chunk.read()
        source = self.tokenizers.source.subwords.encode_lines(source_lines)
        target = self.tokenizers.target.subwords.encode_lines(target_lines)
        dropped = ReasonCounts()
        if self.settings.length_unit == "subwords":
            verdicts = [
                self.settings.judge_lengths(len(s) // 4, len(t) // 4) for s, t in zip(source, target, strict=True)
            ]
            for i, reason in enumerate(verdicts):
                if reason is not None:
                    dropped.add(reason, f"{chunk.file}:{chunk.lines[i]}", source_lines[i], target_lines[i])
            source = [ids for ids, reason in zip(source, verdicts, strict=True) if reason is None]
            target = [ids for ids, reason in zip(target, verdicts, strict=True) if reason is None]
        if self.tag is not None:
            prefix = np.array([self.tokenizers.source.tag_id(self.tag)], np.uint32).tobytes()
            source = [prefix + ids for ids in source]
        sides = flatten(source), flatten(target)
        unknown = (int((sides[0][0] == Tokenizer.unk_id).sum()), int((sides[1][0] == Tokenizer.unk_id).sum()))
        return EncodedChunk(*sides, dropped, unknown, chunk.pairs)


def flatten(encoded: list[bytes]) -> Flat:
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded)) // 4
    return np.frombuffer(b"".join(encoded), np.uint32), lengths
