"""Reads parallel text: two files with corresponding lines, one file with two columns, or a translation memory.

Lines stay bytes here; cleaning drops those that are not valid UTF-8.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import nan
from pathlib import Path

import numpy as np

from deepnmt.data.memories import iterate_memory
from deepnmt.errors import InputError
from deepnmt.languages import base_language
from deepnmt.progress import say
from deepnmt.text import iterate_lines

CHUNK_PAIRS = 10_000
LEAST_PAIRS, LEAST_SPREAD = 200, 0.05  # that tell whether lengths correlate
ALIGNED = 0.3  # translations correlate by 0.8 and more, unrelated lines hardly
TWO_COLUMNS = "a TSV file needs two tab-separated columns; `cut -f1,2` keeps the first two"


@dataclass(frozen=True)
class ParallelFile:
    """Two files with corresponding lines, or one file with two columns (`target` is None).

    With `languages` it is TMX or XLIFF, and its pairs in these languages count as lines.
    """

    source: Path
    target: Path | None = None
    languages: tuple[str, str] | None = field(default=None, kw_only=True)

    @property
    def paths(self) -> list[Path]:
        return [self.source] if self.target is None else [self.source, self.target]

    def __str__(self) -> str:
        return " and ".join(map(str, self.paths))

    def is_swapped(self, source_lang: str, target_lang: str) -> bool:
        """Whether the names of the two files, such as train.de.gz and train.en, contradict the languages."""
        ends = [[base_language(suffix[1:]) for suffix in path.suffixes] for path in self.paths]
        languages = base_language(target_lang), base_language(source_lang)
        return len(ends) == 2 and all(
            language in own and language not in other
            for language, own, other in zip(languages, ends, reversed(ends), strict=True)
        )


@dataclass(frozen=True)
class RawChunk:
    """Consecutive lines of each file of a ParallelFile, still bytes."""

    file: ParallelFile
    first_line: int
    lines: list[list[bytes]]

    def __len__(self) -> int:
        return len(self.lines[0])

    def numbered(self) -> Iterator[tuple[int, list[bytes]]]:
        """Line numbers and columns; a malformed line of a two-column file has more or fewer than two."""
        split = (line.split(b"\t") for line in self.lines[0])
        columns: Iterable[list[bytes]] = split if len(self.lines) == 1 else map(list, zip(*self.lines, strict=True))
        return enumerate(columns, start=self.first_line)

    def length_correlation(self) -> float:
        """Of the lengths of corresponding lines, as logarithms; NaN if the lines of a side are nearly equally long."""
        lengths = np.log1p([[len(line) for line in lines] for lines in self.lines])
        return float(np.corrcoef(lengths)[0, 1]) if lengths.std(axis=1).min() > LEAST_SPREAD else nan


def parallel_chunks(files: Sequence[ParallelFile], size: int) -> Iterator[RawChunk]:
    """The lines of every file in order, `size` pairs at a time; files of unequal length are an error."""
    for file in files:
        readers, first = [iterate_lines(path) for path in file.paths], 1
        if file.languages is not None:
            readers = [iterate_memory(file.source, *file.languages)]
        while any(lines := [list(islice(reader, size)) for reader in readers]):
            if len(set(map(len, lines))) > 1:
                counts = [
                    first - 1 + len(read) + sum(1 for _ in rest) for read, rest in zip(lines, readers, strict=True)
                ]
                raise InputError(
                    f"{file.source} has {counts[0]:,} lines but {file.target} has {counts[1]:,}; "
                    "line n of one must translate line n of the other"
                )
            yield RawChunk(file, first, lines)
            first += len(lines[0])


def warn_of_misalignment(chunks: Iterable[RawChunk]) -> Iterator[RawChunk]:
    """The chunks; says so at the first one of two files in which long lines do not have long translations."""
    told = None
    for chunk in chunks:
        if chunk.file.target and chunk.file != told and len(chunk) >= LEAST_PAIRS:
            correlation = chunk.length_correlation()
            if correlation < ALIGNED:
                told, last = chunk.file, chunk.first_line + len(chunk) - 1
                say(
                    f"{chunk.file}: the lengths of lines {chunk.first_line:,} to {last:,} hardly correlate "
                    f"({correlation:.2f}); does line n of one translate line n of the other?"
                )
        yield chunk
