"""Lines of parallel text from the files people have (plain, .gz, .xz, .bz2, .zst, two columns), and their refusals.

Lines stay bytes here: whether a line is valid UTF-8 is a question of cleaning, not of reading.
"""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from deepnmt.errors import InputError

MAX_LINE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20
_SNIFF_BYTES = 1 << 16
_MAX_BINARY_SHARE = 0.01
_CONTROL_BYTES = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\x1b")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class ParallelFile:
    """Two files line by line beside each other, or one file of two columns (`target` is None)."""

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
    lines, first = read_lines(file.source), 1
    while chunk := list(islice(lines, size)):
        yield RawChunk(file, first, chunk, None)
        first += len(chunk)


def _paired_chunks(file: ParallelFile, target: Path, size: int) -> Iterator[RawChunk]:
    sides, first = (read_lines(file.source), read_lines(target)), 1
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


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a text file, decompressed by its content, without line ends or byte order mark."""
    return chain.from_iterable(_line_blocks(path))


def _line_blocks(path: Path) -> Iterator[list[bytes]]:
    with _opened(path) as file, _refusing_damage(path):
        rest = _first_block(path, file)
        number = 1
        while True:
            block = file.read(_BLOCK_BYTES)
            *lines, rest = (rest + block).split(b"\n")
            if not block and rest:
                lines.append(rest)
            if max(map(len, lines), default=0) > MAX_LINE_BYTES or len(rest) > MAX_LINE_BYTES:
                raise InputError(_too_long(path, number, lines))
            yield [line[:-1] if line.endswith(b"\r") else line for line in lines]
            number += len(lines)
            if not block:
                return


def _too_long(path: Path, first: int, lines: list[bytes]) -> str:
    number = first + next((i for i, line in enumerate(lines) if len(line) > MAX_LINE_BYTES), len(lines))
    return f"line {number:,} of {path} is longer than {MAX_LINE_BYTES:,} bytes; is it text with one sentence per line?"


def _first_block(path: Path, file: BinaryIO) -> bytes:
    block = file.read(_SNIFF_BYTES)
    if not block:
        raise InputError(f"{path} is empty")
    if block.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path} is UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`")
    controls = len(block) - len(block.translate(None, _CONTROL_BYTES))
    if controls > _MAX_BINARY_SHARE * len(block):
        raise InputError(f"{path} is a binary file, not text (many control bytes)")
    return block.removeprefix(_BYTE_ORDER_MARK)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if path.is_dir():
        raise InputError(f"{path} is a directory, not a text file")
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except PermissionError as error:
        raise InputError(f"{path} may not be read: permission denied") from error
    with file:
        start = file.peek(8)
        for magic, opener in _OPENERS.items():
            if start.startswith(magic):
                with opener(path, file) as unpacked:
                    yield unpacked
                return
        yield file


@contextmanager
def _refusing_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except EOFError as error:
        raise InputError(f"{path} is cut short: the compressed data ends too early") from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    except OSError as error:
        if error.errno is None:  # bz2 has no exception of its own
            raise InputError(f"{path} is damaged: {error}") from error
        raise


def _open_zstandard(path: Path, file: BinaryIO) -> BinaryIO:
    try:
        import zstandard
    except ImportError as error:
        raise InputError(f"reading {path} needs zstandard: pip install 'deepnmt[zstd]'") from error
    return cast(BinaryIO, BufferedReader(_Zstandard(zstandard, file), _BLOCK_BYTES))


class _Zstandard(RawIOBase):
    """Frames end to end; unlike zstandard's own reader it notices when the last one is cut short."""

    def __init__(self, zstandard: Any, file: BinaryIO) -> None:
        self._zstandard, self._file = zstandard, file
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._ready = b""
        self._packed = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._packed or self._file.read(_BLOCK_BYTES // 4)
            if self._frame.eof and packed:
                self._frame = self._zstandard.ZstdDecompressor().decompressobj()
            if not packed:
                if not self._frame.eof:
                    raise EOFError
                return 0
            try:
                self._ready = self._frame.decompress(packed)
            except self._zstandard.ZstdError as error:
                raise zlib.error(str(error)) from error
            self._packed = self._frame.unused_data
        taken, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


_OPENERS: dict[bytes, Any] = {
    b"\x1f\x8b": lambda path, file: gzip.GzipFile(fileobj=file),
    b"\xfd7zXZ\x00": lambda path, file: lzma.LZMAFile(file),  # noqa: SIM115
    b"BZh": lambda path, file: bz2.BZ2File(file),
    b"\x28\xb5\x2f\xfd": _open_zstandard,
}
