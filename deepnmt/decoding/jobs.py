"""Jobs over lines of text: chunks from files and pipes, and output files that survive an interruption."""

import fcntl
import hashlib
import json
import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from deepnmt.errors import InputError
from deepnmt.files import sha256, write_json
from deepnmt.text import BYTE_ORDER_MARK, MAX_LINE_BYTES, iterate_lines

PIPE_WAIT_SECONDS = 0.05
CHUNK_LINES = {"cpu": 1024, "cuda": 16_384}


def chunk_lines(asked: int | None, device: str) -> int:
    """The number of lines that are sorted by length and translated together; by default, one that suits the device."""
    if asked is not None and asked < 1:
        raise InputError(f"chunk = {asked} must be at least 1")
    return asked or CHUNK_LINES.get(device, CHUNK_LINES["cpu"])


def file_chunks(path: Path, size: int, skip: int = 0) -> Iterator[list[bytes]]:
    """The lines of a file, `size` at a time, after the first `skip`. An empty file has none."""
    if path.is_file() and path.stat().st_size == 0:
        return
    lines = islice(iterate_lines(path), skip, None)
    while chunk := list(islice(lines, size)):
        yield chunk


def pipe_chunks(pipe: BinaryIO, size: int) -> Iterator[list[bytes]]:
    """The lines of a pipe as they arrive, at most `size` at a time, without waiting for more.

    While one chunk is being translated, the next one accumulates, so a fast pipe makes large chunks.
    """
    waiting: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=2 * size)

    def read() -> None:
        try:
            for line in _pipe_lines(pipe):
                waiting.put(line)
            waiting.put(None)
        except BaseException as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    ended = False
    while not ended:
        chunk: list[bytes] = []
        deadline = None
        while len(chunk) < size:
            try:
                item = waiting.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0))
            except queue.Empty:
                break
            if isinstance(item, BaseException):
                raise item
            if item is None:
                ended = True
                break
            deadline = deadline or time.monotonic() + PIPE_WAIT_SECONDS
            chunk.append(item)
        if chunk:
            yield chunk


def _pipe_lines(pipe: BinaryIO) -> Iterator[bytes]:
    number = 0
    while line := pipe.readline(MAX_LINE_BYTES + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            raise InputError(
                f"line {number:,} of standard input is longer than {MAX_LINE_BYTES:,} bytes; "
                "is it text with one sentence per line?"
            )
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def count_lines(path: Path) -> int | None:
    """The number of lines of a plain file, for the progress bar; None for compressed files."""
    with path.open("rb") as file:
        if b"\0" in file.read(512):
            return None
        file.seek(0)
        blocks = iter(lambda: file.read(1 << 20), b"")
        return sum(block.count(b"\n") for block in blocks)


def fingerprint(models: Iterable[Path], inputs: Iterable[Path], settings: dict[str, Any]) -> dict[str, Any]:
    """The identity of a job, needed to resume it: the models, the input files and every setting."""
    files = [file for model in models for file in sorted(model.iterdir()) if file.suffix in (".json", ".safetensors")]
    return {
        "models": {str(file): sha256(file) for file in files},
        "inputs": [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in inputs],
        "settings": settings,
    }


def short_digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


class ResumableFile:
    """A file written chunk by chunk beside its place; a second job with the same `job` resumes it.

    `.NAME.partial` holds the text, and `.NAME.partial.json` how much of it is valid. The text is on disk before this
    note is written, so a kill at any instant loses one chunk at most.
    """

    def __init__(self, path: Path, job: dict[str, Any], is_resumable: bool = True) -> None:
        if path.is_dir():
            raise InputError(f"{path} is a folder; choose a file for the output")
        self.path, self.job, self.is_resumable = path, job, is_resumable
        self.partial = path.with_name(f".{path.name}.partial")
        self.note = path.with_name(f".{path.name}.partial.json")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.partial.open("ab")
        except (PermissionError, FileExistsError, NotADirectoryError) as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise InputError(f"{path} is being written by another process") from error
        self.lines, size = self._resumed()
        self._file.truncate(size)
        self._file.seek(0, os.SEEK_END)

    def _resumed(self) -> tuple[int, int]:
        try:
            note = json.loads(self.note.read_text(encoding="utf-8"))
            same = note["job"] == json.loads(json.dumps(self.job))
            lines, size = int(note["lines"]), int(note["bytes"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0, 0
        return (lines, size) if same and self.partial.stat().st_size >= size else (0, 0)

    def append(self, text: bytes, lines: int) -> None:
        """Add the output of `lines` lines of the input."""
        self._file.write(text)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.lines += lines
        write_json(self.note, {"job": self.job, "lines": self.lines, "bytes": self._file.tell()})

    def __enter__(self) -> "ResumableFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.close(self.is_resumable)

    def finish(self) -> None:
        self.partial.replace(self.path)
        self._file.close()
        self.note.unlink(missing_ok=True)

    def close(self, keep: bool = True) -> None:
        """Keep the files to resume from, if asked to and if anything was written; otherwise remove them."""
        self._file.close()
        if not keep or not self.note.exists():
            self.partial.unlink(missing_ok=True)
            self.note.unlink(missing_ok=True)
