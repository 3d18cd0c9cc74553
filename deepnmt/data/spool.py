"""Cleaned text between the passes of `prepare`: written chunk by chunk to the disk, read back by the workers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class SpoolChunk:
    """A chunk of pairs: byte ranges in the files of both sides, and the line numbers in the user's file."""

    paths: tuple[Path, Path]
    starts: tuple[int, int]
    sizes: tuple[int, int]
    pairs: int
    file: str
    lines: Numbers

    def read(self) -> tuple[list[str], list[str]]:
        source, target = (self._read_side(side) for side in (0, 1))
        return source, target

    def _read_side(self, side: int) -> list[str]:
        with self.paths[side].open("rb") as file:
            file.seek(self.starts[side])
            return file.read(self.sizes[side]).decode("utf-8").split("\n")[:-1]


class Spool:
    """The cleaned pairs of one corpus."""

    def __init__(self, folder: Path, name: str) -> None:
        self.chunks: list[SpoolChunk] = []
        self.pairs = 0
        self._paths = (folder / f"{name}.source.spool", folder / f"{name}.target.spool")
        self._files = [path.open("wb") for path in self._paths]
        self._ends = [0, 0]

    def append(self, source: bytes, target: bytes, file: str, lines: Numbers) -> None:
        """Add pairs as lines, each ended by a line feed."""
        if not len(lines):
            return
        starts = (self._ends[0], self._ends[1])
        for side, text in enumerate((source, target)):
            self._files[side].write(text)
            self._ends[side] += len(text)
        self.chunks.append(
            SpoolChunk(self._paths, starts, (len(source), len(target)), len(lines), file, lines.astype(np.uint32))
        )
        self.pairs += len(lines)

    def finish(self) -> None:
        for file in self._files:
            file.close()

    def remove(self) -> None:
        self.finish()
        for path in self._paths:
            path.unlink(missing_ok=True)

    def __iter__(self) -> Iterator[SpoolChunk]:
        return iter(self.chunks)

    def __enter__(self) -> "Spool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()
