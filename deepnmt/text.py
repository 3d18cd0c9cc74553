"""Reads lines of text files (plain, .gz, .xz, .bz2, .zst), and rejects files that are not text."""

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from deepnmt.errors import InputError

MAX_LINE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20
_SNIFF_BYTES = 1 << 16
_MAX_BINARY_SHARE = 0.01
_CONTROL_BYTES = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\x1b")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_lines(path: str | Path) -> list[str]:
    """All lines of a UTF-8 file, or of standard input (`-`); an error names the line of an invalid byte."""
    lines = []
    for number, line in enumerate(iterate_lines(Path(path)), start=1):
        try:
            lines.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise _not_utf8(Path(path), number, error.start) from None
    return lines


def read_all(path: str | Path) -> str:
    """A UTF-8 file, or standard input (`-`), as it is, with line ends and byte order mark."""
    content = b"".join(iterate_blocks(Path(path)))
    _checked_start(_name(Path(path)), content)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        raise _not_utf8(Path(path), before.count(b"\n") + 1, len(before) - before.rfind(b"\n") - 1) from None


def _not_utf8(path: Path, line: int, byte: int) -> InputError:
    place = f"{_name(path)}, line {line:,}: not valid UTF-8 at byte {byte + 1}"
    return InputError(f"{place}; convert the file to UTF-8 first")


def joined(lines: Iterable[str]) -> str:
    """The content of a file with these lines."""
    return "".join(f"{line}\n" for line in lines)


def shortened(text: str) -> str:
    """As much of a text as a message should quote."""
    return text if len(text) <= 40 else f"{text[:40]}…"


def _name(path: Path) -> str:
    return "standard input" if str(path) == "-" else str(path)


def iterate_lines(path: Path, *, may_be_empty: bool = False) -> Iterator[bytes]:
    """The lines of a text file, decompressed, without line ends or byte order mark.

    Only a line feed ends a line (a carriage return before it is removed). `str.splitlines` would also split at U+2028
    and a dozen other characters that occur in crawled text, and misalign all following lines.
    """
    return chain.from_iterable(_line_blocks(path, may_be_empty))


def iterate_blocks(path: Path) -> Iterator[bytes]:
    """The decompressed bytes of a file, or of standard input (`-`)."""
    name = _name(path)
    try:
        yield from _blocks(path)
    except EOFError as error:
        raise InputError(f"{name} is truncated: the compressed data ends too early") from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{name} is damaged: {error}") from error
    except OSError as error:
        if error.errno is None:  # bz2 has no exception of its own
            raise InputError(f"{name} is damaged: {error}") from error
        raise


def check_readable(path: Path) -> None:
    """Raise if the path cannot be a text file, without opening it."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a text file")
    if not path.exists():
        raise InputError(f"{path} does not exist")


def _line_blocks(path: Path, may_be_empty: bool) -> Iterator[list[bytes]]:
    name, blocks = _name(path), iterate_blocks(path)
    rest = _checked_start(name, next(blocks, b""))
    if not (rest or may_be_empty):
        raise InputError(f"{name} is empty")
    number = 1
    for block in chain(blocks, [None]):
        *lines, rest = (rest + (block or b"")).split(b"\n")
        if block is None and rest:
            lines.append(rest)
        if max(map(len, lines), default=0) > MAX_LINE_BYTES or len(rest) > MAX_LINE_BYTES:
            number += next((i for i, line in enumerate(lines) if len(line) > MAX_LINE_BYTES), len(lines))
            raise line_too_long(name, number)
        yield [line.removesuffix(b"\r") for line in lines]
        number += len(lines)


def line_too_long(name: str, line: int) -> InputError:
    return InputError(
        f"line {line:,} of {name} is longer than {MAX_LINE_BYTES:,} bytes; is it text with one sentence per line?"
    )


def _checked_start(name: str, block: bytes) -> bytes:
    if block.startswith((b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")):
        encoding = "UTF-32" if b"\x00\x00" in block[:4] else "UTF-16"
        raise InputError(f"{name} is {encoding}; convert it with `iconv -f {encoding} -t UTF-8`")
    start = block[:_SNIFF_BYTES]
    if len(start) - len(start.translate(None, _CONTROL_BYTES)) > _MAX_BINARY_SHARE * len(start):
        raise InputError(f"{name} is a binary file, not text (many control bytes)")
    return block.removeprefix(BYTE_ORDER_MARK)


def _blocks(path: Path) -> Iterator[bytes]:
    if str(path) == "-":
        yield from iter(partial(sys.stdin.buffer.read, _BLOCK_BYTES), b"")
        return
    check_readable(path)
    try:
        file = path.open("rb")
    except PermissionError as error:
        raise InputError(f"{path} cannot be read: permission denied") from error
    with file:
        yield from unpacked(file, path)


def unpacked(file: "BufferedReader[Any]", path: Path) -> Iterator[bytes]:
    """The content of a file in blocks, decompressed according to its first bytes; `path` is its name in messages."""
    start = file.peek(8)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        yield from _unpack_zstandard(file, path)
        return
    opener: Any = next((opener for magic, opener in _OPENERS.items() if start.startswith(magic)), None)
    yield from iter(partial((opener(file) if opener else file).read, _BLOCK_BYTES), b"")


_OPENERS = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}


def _unpack_zstandard(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Concatenated frames; unlike zstandard's own reader, this detects a truncated last frame."""
    try:
        import zstandard
    except ImportError as error:
        raise InputError(f"reading {path} needs zstandard: pip install 'deepnmt[zstd]'") from error
    frame = zstandard.ZstdDecompressor().decompressobj()
    while packed := file.read(_BLOCK_BYTES // 4):
        while packed:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            try:
                block = frame.decompress(packed)
            except zstandard.ZstdError as error:
                raise zlib.error(str(error)) from error
            if block:
                yield block
            packed = frame.unused_data
    if not frame.eof:
        raise EOFError
