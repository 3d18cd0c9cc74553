"""A RUN has one writer: a lock that names its holder, ends with the holder's process, and never blocks a reader.

The lock itself is the kernel's (`flock`), so a process that dies, however it dies, lets go of it; NFS passes it on to
the server, so it holds across hosts. Where a file system has no such locks, the file says who holds the run, and
only a holder on this host can be found to be dead.
"""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from deepnmt.errors import InputError

LOCK = "lock.json"
UNSUPPORTED = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}


@contextmanager
def hold_lock(folder: Path, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock of a RUN folder; refuses, naming the holder, if another process still has it after the wait."""
    path, deadline = folder / LOCK, time.monotonic() + wait_seconds
    while (descriptor := _try(path)) is None:
        if time.monotonic() >= deadline:
            raise InputError(f"{folder} is in use by {_describe(_read(path))}; wait until it has ended, or stop it")
        time.sleep(0.2)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is still held: whoever comes next makes a new file
        os.close(descriptor)


def _try(path: Path) -> int | None:
    """The open file of a lock that is now ours, or None if another process has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            taken = _lock(descriptor, path)
            if taken and _is_at(descriptor, path):
                holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": _now()}
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{json.dumps(holder)}\n".encode(), 0)
                os.fsync(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if not taken:
            return None


def _lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return _is_dead(_read(path))
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the file is still the one of that name: its last holder may have removed it just before it was locked."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _is_dead(holder: dict[str, Any]) -> bool:
    if not holder:
        return True
    if holder.get("host") != socket.gethostname():
        return False
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, KeyError, ValueError):
        return False
    return False


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        holder = json.loads(path.read_text(encoding="utf-8"))
        return holder if isinstance(holder, dict) else {}
    return {}


def _describe(holder: dict[str, Any]) -> str:
    """The holder may be writing its name just now."""
    if not holder:
        return "another process"
    return f"process {holder.get('pid')} on {holder.get('host')} (since {holder.get('since')})"


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
