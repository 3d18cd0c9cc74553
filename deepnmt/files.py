"""Atomic writes: files are written under a temporary name and renamed, so that a kill leaves nothing half-written.

Also locks, and the reading of JSON and TOML.
"""

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

from deepnmt.errors import InputError, RunError

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux's renameat2
WITHOUT_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path` (file or folder); rename it to `path` when the block succeeds.

    An existing file or folder is replaced; for a symbolic link, its target is. On an exception nothing changes.
    """
    path = path.resolve()
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{path} is a device or a pipe and cannot be replaced; choose a file")
    aside = path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{token_hex(2)}.partial")
    missing = [folder for folder in path.parents if not folder.exists()]
    base = next(folder for folder in path.parents if folder.exists())
    if not base.is_dir():
        raise InputError(f"{base} is a file, so {path} cannot be written; choose another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield aside
        _sync(aside, *aside.rglob("*"))  # or the rename could reach the disk before the content
        if path.is_dir():
            _exchange(aside, path)  # the old content is now aside, and is removed below
        else:
            aside.replace(path)
        _sync(path.parent)
    except BaseException as error:
        _name_final(error, aside, path)
        with suppress(OSError):  # such as a read-only file system, which the first error names
            _remove(aside)
        for folder in missing:
            with suppress(OSError):  # something else may be in it by now
                folder.rmdir()
        raise
    _remove(aside)


def _name_final(error: BaseException, aside: Path, path: Path) -> None:
    """Let the error name what was to be written, instead of nothing or its temporary name."""
    if isinstance(error, OSError) and error.errno is not None:
        error.filename = str(error.filename or path).replace(str(aside), str(path))
    elif isinstance(error, RunError):
        error.args = (str(error).replace(str(aside), str(path)),)


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes of this host left next to `path`, but nothing of a running process."""
    beginning = f".{path.name}.{_host()}-"
    for aside in path.parent.glob(f"{escape(beginning)}*.partial"):
        process = aside.name.removeprefix(beginning).partition("-")[0]
        if process.isdecimal() and not is_running(int(process)):
            with suppress(OSError):  # another process may be removing it too
                _remove(aside)


def is_running(process: int) -> bool:
    """Whether a process of this host, by its number, still runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        pass
    return True


def _host() -> str:
    """A short name of this host, or container: others may write to the same volume, with the same process numbers."""
    processes = ""
    with suppress(OSError):
        processes = str(Path("/proc/self/ns/pid").readlink())  # containers may share the name of their host
    return hashlib.blake2b(os.fsencode(socket.gethostname() + processes), digest_size=3).hexdigest()


def lock(file: IO[Any], *, wait: bool = False) -> bool:
    """Lock an open file until it is closed; False if its file system has no locks.

    Unless it may wait, raises BlockingIOError if another process has locked the file.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        return False
    return True


def _exchange(one: Path, other: Path) -> None:
    """Swap the names of two folders, atomically where the system supports it."""
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        swapped = False
    else:
        swapped = exchange(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0
    if not swapped:
        between = one.with_name(f"{one.name}.outgoing")
        other.rename(between)
        one.rename(other)
        between.rename(one)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, content: Any) -> None:
    """Indented UTF-8; the bytes of a file name that are not UTF-8 are escaped."""
    text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    write_text(path, text.encode("utf-8", "backslashreplace").decode("utf-8"))


def read_json(path: Path, remedy: str = "") -> dict[str, Any]:
    """The object in a JSON file; an error ends with the remedy."""
    remedy = remedy and f"; {remedy}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist{remedy}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not JSON: {error}{remedy}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a JSON object{remedy}")
    return content


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # with or without a byte order mark
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from error


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(*paths: Path) -> None:
    """Flush files and folders to disk."""
    for path in paths:
        if not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def check_out(out: Path, overwrite: bool, kind: str, *files: str) -> None:
    """Raise if `out` exists, unless it may be overwritten and has the files of this kind of folder."""
    if Path.cwd().is_relative_to(out.resolve()):
        raise InputError(f"{str(out)!r} is the current folder or contains it; choose another `out`")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise InputError(f"{out} already exists; choose another `out` or pass `overwrite=True`")
    if not all((out / name).is_file() for name in files):
        raise InputError(f"{out} is not {kind} and will not be overwritten; choose another `out`")
