"""The work of `prepare` on a chunk of pairs: cleaning, counting words, encoding."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deepnmt.data.cleaning import Judge, Keys, ReasonCounts, keys
from deepnmt.data.dataset import Side
from deepnmt.data.parallel import RawChunk
from deepnmt.data.prepare_settings import CleaningSettings
from deepnmt.data.tokenizer import Preprocessor, TokenizerPair

Numbers = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class CleanChunk:
    """The kept pairs of a chunk, preprocessed; and counts of the dropped ones."""

    file: str
    numbers: Numbers
    lines: tuple[list[bytes], list[bytes]]
    keys: tuple[Keys, Keys]
    dropped: ReasonCounts


class Cleaner:
    """Decodes and cleans pairs, and splits them into words."""

    def __init__(self, settings: CleaningSettings, preprocessors: Sequence[Preprocessor]) -> None:
        self.settings, self.preprocessors = settings, preprocessors
        self.languages = [preprocessor.language for preprocessor in preprocessors]
        self.judge = Judge(settings, self.languages)

    def __call__(self, chunk: RawChunk) -> CleanChunk:
        dropped = ReasonCounts()
        numbers: list[int] = []
        source: list[bytes] = []
        target: list[bytes] = []
        for number, columns in chunk.numbered():
            reason, source_text, target_text = self._clean(columns)
            if reason is not None:
                dropped.add(reason, f"{chunk.file.source}:{number}", source_text, target_text)
                continue
            numbers.append(number)
            source.append(source_text.encode("utf-8"))
            target.append(target_text.encode("utf-8"))
        kept, hashed = np.array(numbers, np.uint32), (keys(source), keys(target))
        return CleanChunk(str(chunk.file.source), kept, (source, target), hashed, dropped)

    def _clean(self, columns: list[bytes]) -> tuple[str | None, str, str]:
        """The reason to drop a pair, or None; and its text or words."""
        if len(columns) != 2:
            return "columns", b"\t".join(columns).decode("utf-8", "replace"), ""
        try:
            source, target = columns[0].decode("utf-8"), columns[1].decode("utf-8")
        except UnicodeDecodeError:
            return "utf8", columns[0].decode("utf-8", "replace"), columns[1].decode("utf-8", "replace")
        if reason := self.judge(source, target):
            return reason, source, target
        source_words, target_words = self.preprocessors[0].split(source), self.preprocessors[1].split(target)
        if not source_words or not target_words:
            return "empty", source, target
        if self.settings.length_unit == "words":
            reason = self.settings.judge_lengths(source_words.count(" ") + 1, target_words.count(" ") + 1)
        return (reason, source, target) if reason else (None, source_words, target_words)


@dataclass(frozen=True)
class SpoolChunk:
    """Cleaned pairs between passes: a file of source lines, then target lines; and their line numbers in the input."""

    path: Path
    input_file: str
    numbers: Numbers

    def read(self) -> tuple[list[str], list[str]]:
        lines = self.path.read_bytes().decode("utf-8").split("\n")
        return lines[: len(self.numbers)], lines[len(self.numbers) : -1]


def count_words(
    stride: int, longest: float, chunks: Sequence[tuple[int, SpoolChunk]]
) -> tuple[dict[str, int], dict[str, int], int]:
    """The word counts of source and target in every `stride`-th pair of the corpora, and the number of these pairs.

    Each chunk comes with the number of pairs before it. Words of more than `longest` characters are left out: a single
    line of encoded data would fill a vocabulary with its pieces.
    """
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    counted = 0
    for before, chunk in chunks:
        for counter, lines in zip(counts, chunk.read(), strict=True):
            if taken := lines[-before % stride :: stride]:
                counter.update(" ".join(taken).split(" "))
        counted += len(taken)
    source, target = ({word: n for word, n in counter.items() if len(word) <= longest} for counter in counts)
    return source, target, counted


def encode(
    tokenizers: TokenizerPair, settings: CleaningSettings, tag: str | None, chunk: SpoolChunk
) -> tuple[Side, Side, ReasonCounts]:
    """The ids of both sides of the pairs that do not have too many subwords, and counts of the other pairs."""
    texts, dropped = chunk.read(), ReasonCounts()
    sides = tokenizers.source, tokenizers.target
    encoded = zip(*(side.subwords.encode_lines(lines) for side, lines in zip(sides, texts, strict=True)), strict=True)
    kept: list[tuple[bytes, bytes]] = []
    for i, (source, target) in enumerate(encoded):
        reason = None if source and target else "empty"  # a SentencePiece model may normalise a text to nothing
        if reason is None and settings.length_unit == "subwords":
            reason = settings.judge_lengths(len(source) // 4, len(target) // 4)
        if reason is None:
            kept.append((source, target))
        else:
            dropped.add(reason, f"{chunk.input_file}:{chunk.numbers[i]}", texts[0][i], texts[1][i])
    openings = (array("I", opening).tobytes() for opening in (sides[0].opening(tag or ""), sides[1].opening()))
    source_ids, target_ids = (flatten(opening + pair[i] for pair in kept) for i, opening in enumerate(openings))
    return source_ids, target_ids, dropped


def flatten(encoded: Iterable[bytes]) -> Side:
    """The ids of all lines, which are bytes of native unsigned ints, end to end."""
    lines = list(encoded)
    return Side.joined(np.frombuffer(b"".join(lines), np.uint32), [len(ids) // 4 for ids in lines])
