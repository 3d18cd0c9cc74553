"""A RUN has one writer: a lock that names its holder, ends with the holder's process, and never blocks a reader.

The lock itself is the kernel's (`flock`), so a process that dies, however it dies, lets go of it; NFS passes it on to
the server, so it holds across hosts. On a file system without such locks, the file names the holder, and only a
holder on this host can be recognised as dead.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from deepnmt.errors import InputError
from deepnmt.files import is_running, lock

LOCK = "lock.json"


@contextmanager
def hold_lock(folder: Path, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock of a RUN folder; refuses, naming the holder, if another process still has it after the wait."""
    path, deadline = folder / LOCK, time.monotonic() + wait_seconds
    while (file := _take(path)) is None:
        if time.monotonic() >= deadline:
            raise InputError(f"{folder} is in use by {_describe(_read(path))}; wait until it has ended, or stop it")
        time.sleep(0.2)
    with file:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # while it is still held: the next process creates a new file


def _take(path: Path) -> TextIO | None:
    """The open file of a lock that is now ours, or None if another process has it."""
    file = path.open("a", encoding="utf-8")
    try:
        is_ours = lock(file) or _is_dead(_read(path))
    except BlockingIOError:
        is_ours = False
    if not is_ours or not _is_at(file, path):
        file.close()
        return _take(path) if is_ours else None
    file.truncate(0)
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    json.dump({"host": socket.gethostname(), "pid": os.getpid(), "since": since}, file)
    file.flush()
    os.fsync(file.fileno())
    return file


def _is_at(file: TextIO, path: Path) -> bool:
    """Whether the file still has that name: its last holder may have removed it just before it was locked."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _is_dead(holder: dict[str, Any]) -> bool:
    return not holder or (holder["host"] == socket.gethostname() and not is_running(holder["pid"]))


def _read(path: Path) -> dict[str, Any]:
    """Who holds the lock; empty while the holder is writing its name."""
    with suppress(OSError, ValueError):
        holder: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return holder
    return {}


def _describe(holder: dict[str, Any]) -> str:
    return f"process {holder['pid']} on {holder['host']} (since {holder['since']})" if holder else "another process"
