"""Lines of the text files people have (plain, .gz, .xz, .bz2, .zst), and the refusal of what is not text."""

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, RawIOBase
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from deepnmt.errors import InputError

MAX_LINE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20
_SNIFF_BYTES = 1 << 16
_MAX_BINARY_SHARE = 0.01
_CONTROL_BYTES = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\x1b")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_lines(path: str | Path) -> list[str]:
    """All lines of a UTF-8 file, or of standard input (`-`); an invalid byte is refused with its line."""
    name = _name(Path(path))
    return [_decode(line, name, number) for number, line in enumerate(iterate_lines(Path(path)), start=1)]


def _name(path: Path) -> str:
    return "standard input" if str(path) == "-" else str(path)


def _decode(line: bytes, name: str, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}, line {number:,}: not valid UTF-8 at byte {error.start + 1}; convert the file to UTF-8 first"
        ) from None


def iterate_lines(path: Path) -> Iterator[bytes]:
    """The lines of a text file, decompressed by its content, without line ends or byte order mark.

    Only a line feed ends a line (and a carriage return before it goes with it). `str.splitlines` would also split at
    U+2028 and a dozen other characters that occur in crawled text, and shift every line after them.
    """
    return chain.from_iterable(_line_blocks(path))


def check_readable(path: Path) -> None:
    """Refuse what is certainly no text file, without opening it."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a text file")
    if not path.exists():
        raise InputError(f"{path} does not exist")


def _line_blocks(path: Path) -> Iterator[list[bytes]]:
    name = _name(path)
    with _opened(path) as file, _refusing_damage(name):
        rest = _first_block(name, file)
        number = 1
        while True:
            block = file.read(_BLOCK_BYTES)
            *lines, rest = (rest + block).split(b"\n")
            if not block and rest:
                lines.append(rest)
            if max(map(len, lines), default=0) > MAX_LINE_BYTES or len(rest) > MAX_LINE_BYTES:
                raise InputError(_too_long(name, number, lines))
            yield [line[:-1] if line.endswith(b"\r") else line for line in lines]
            number += len(lines)
            if not block:
                return


def _too_long(name: str, first: int, lines: list[bytes]) -> str:
    number = first + next((i for i, line in enumerate(lines) if len(line) > MAX_LINE_BYTES), len(lines))
    return f"line {number:,} of {name} is longer than {MAX_LINE_BYTES:,} bytes; is it text with one sentence per line?"


def _first_block(name: str, file: BinaryIO) -> bytes:
    block = file.read(_SNIFF_BYTES)
    if not block:
        raise InputError(f"{name} is empty")
    if block.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{name} is UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`")
    controls = len(block) - len(block.translate(None, _CONTROL_BYTES))
    if controls > _MAX_BINARY_SHARE * len(block):
        raise InputError(f"{name} is a binary file, not text (many control bytes)")
    return block.removeprefix(BYTE_ORDER_MARK)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    check_readable(path)
    try:
        file = path.open("rb")
    except PermissionError as error:
        raise InputError(f"{path} cannot be read: permission denied") from error
    with file:
        start = file.peek(8)
        for magic, opener in _OPENERS.items():
            if start.startswith(magic):
                with opener(path, file) as unpacked:
                    yield unpacked
                return
        yield file


@contextmanager
def _refusing_damage(name: str) -> Iterator[None]:
    try:
        yield
    except EOFError as error:
        raise InputError(f"{name} is cut short: the compressed data ends too early") from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{name} is damaged: {error}") from error
    except OSError as error:
        if error.errno is None:  # bz2 has no exception of its own
            raise InputError(f"{name} is damaged: {error}") from error
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
