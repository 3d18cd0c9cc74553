"""Lines of text files to score, read strictly: what would silently shift or spoil a score is refused."""

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

from deepnmt.errors import InputError

_UNPACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress, ".bz2": bz2.decompress}


def read_lines(path: str) -> list[str]:
    """The lines of a UTF-8 file (`-`: standard input; .gz, .xz, .bz2 are unpacked) without their ends, LF or CR LF.

    Only the line feed ends a line. `str.splitlines` would also end one at U+2028 and a dozen other characters that
    occur in crawled text, and shift every line after it.
    """
    content = sys.stdin.buffer.read() if path == "-" else _content(Path(path))
    name = "standard input" if path == "-" else path
    raw = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if raw[-1] == b"":
        raw.pop()
    if not raw:
        raise InputError(f"{name} is empty: nothing to score")
    return [_decode(line, name, number) for number, line in enumerate(raw, start=1)]


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a text file")
    try:
        content = path.read_bytes()
        return _UNPACK[path.suffix](content) if path.suffix in _UNPACK else content
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except PermissionError:
        raise InputError(f"{path}: no permission to read it") from None
    except (lzma.LZMAError, zlib.error, EOFError, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be unpacked: {error}") from error


def _decode(line: bytes, name: str, number: int) -> str:
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}, line {number:,}: not valid UTF-8 at byte {error.start + 1}; convert the file to UTF-8 first"
        ) from None
