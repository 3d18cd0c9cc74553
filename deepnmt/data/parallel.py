"""Parallel text from the files people have: two files line by line, or one of two columns.

Lines stay bytes here: whether a line is valid UTF-8 is a question of cleaning, not of reading.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from deepnmt.errors import InputError
from deepnmt.text import iterate_lines


@dataclass(frozen=True)
class ParallelFile:
    """Two files with corresponding lines, or one file with two columns (`target` is None)."""

    source: Path
    target: Path | None = None

    def __str__(self) -> str:
        return str(self.source) if self.target is None else f"{self.source} and {self.target}"


@dataclass(frozen=True)
class RawChunk:
    """Consecutive lines of a ParallelFile, still bytes. A two-column chunk has no target lines of its own."""

    file: ParallelFile
    first_line: int
    source: list[bytes]
    target: list[bytes] | None

    def __len__(self) -> int:
        return len(self.source)


def parallel_chunks(files: Sequence[ParallelFile], size: int) -> Iterator[RawChunk]:
    """The lines of every file in order, `size` pairs at a time; unequal numbers of lines are refused."""
    for file in files:
        if file.target is None:
            yield from _column_chunks(file, size)
        else:
            yield from _paired_chunks(file, file.target, size)


def _column_chunks(file: ParallelFile, size: int) -> Iterator[RawChunk]:
    lines, first = iterate_lines(file.source), 1
    while chunk := list(islice(lines, size)):
        yield RawChunk(file, first, chunk, None)
        first += len(chunk)


def _paired_chunks(file: ParallelFile, target: Path, size: int) -> Iterator[RawChunk]:
    sides, first = (iterate_lines(file.source), iterate_lines(target)), 1
    while True:
        source_lines, target_lines = (list(islice(side, size)) for side in sides)
        if len(source_lines) != len(target_lines):
            done = first - 1
            source_count = done + len(source_lines) + sum(1 for _ in sides[0])
            target_count = done + len(target_lines) + sum(1 for _ in sides[1])
            raise InputError(
                f"{file.source} has {source_count:,} lines but {target} has {target_count:,}; "
                "parallel text needs one line per line"
            )
        if not source_lines:
            return
        yield RawChunk(file, first, source_lines, target_lines)
        first += len(source_lines)
