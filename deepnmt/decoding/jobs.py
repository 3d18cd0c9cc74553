"""Jobs over lines of text: chunks from files and pipes, and output files that survive an interruption."""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from deepnmt.errors import InputError
from deepnmt.files import lock, replacing, sha256, write_json
from deepnmt.text import BYTE_ORDER_MARK, MAX_LINE_BYTES, iterate_blocks, iterate_lines, line_too_long

PIPE_WAIT_SECONDS = 0.05
CHUNK_LINES = {"cpu": 1024, "cuda": 16_384}


def chunk_lines(asked: int | None, device: str) -> int:
    """The number of lines that are sorted by length and translated together; by default, one that suits the device."""
    if asked is not None and asked < 1:
        raise InputError(f"chunk = {asked} must be at least 1")
    return asked or CHUNK_LINES.get(device, CHUNK_LINES["cpu"])


def file_chunks(
    path: Path, size: int, done: int = 0, rank: int = 0, world_size: int = 1
) -> Iterator[tuple[int, list[bytes]]]:
    """The lines of a file, `size` at a time, with the number of lines before them. An empty file has none.

    Only every `world_size`-th chunk, and of these only those after the first `done` lines.
    """
    lines = iterate_lines(path, may_be_empty=True)
    for number, chunk in enumerate(iter(lambda: list(islice(lines, size)), [])):
        if number % world_size == rank:
            if done <= 0:
                yield number * size, chunk
            done -= len(chunk)


def pipe_chunks(pipe: BinaryIO, size: int) -> Iterator[tuple[int, list[bytes]]]:
    """The lines of a pipe as they arrive, at most `size` at a time, with the number of lines before them.

    While one chunk is being translated, the next one accumulates, so a fast pipe makes large chunks.
    """
    waiting: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=2 * size)

    def read(_stdin: object = sys.stdin) -> None:  # kept alive: closing it at exit, during a read, would abort Python
        try:
            for line in _pipe_lines(pipe):
                waiting.put(line)
            waiting.put(None)
        except BaseException as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    first = 0
    while True:
        item, chunk, deadline = waiting.get(), list[bytes](), time.monotonic() + PIPE_WAIT_SECONDS
        with suppress(queue.Empty):
            while isinstance(item, bytes):
                chunk.append(item)
                if len(chunk) == size:
                    break
                item = waiting.get(timeout=max(deadline - time.monotonic(), 0))
        if chunk:
            yield first, chunk
            first += len(chunk)
        if isinstance(item, BaseException):
            raise item
        if item is None:
            return


def _pipe_lines(pipe: BinaryIO) -> Iterator[bytes]:
    lines = iter(partial(pipe.readline, MAX_LINE_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            raise line_too_long("standard input", number)
        text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        yield text.removesuffix(b"\n").removesuffix(b"\r")


def count_lines(path: Path) -> int:
    """The number of lines of a text file, compressed or not; the last one may lack its line end."""
    count, last = 0, b"\n"
    for block in iterate_blocks(path):
        count, last = count + block.count(b"\n"), block
    return count + (not last.endswith(b"\n"))


def fingerprint(models: Iterable[Path], inputs: Iterable[Path], settings: dict[str, Any]) -> dict[str, Any]:
    """The identity of a job, needed to resume it: the models, the input files and every setting."""
    files = [file for model in models for file in sorted(model.iterdir()) if file.suffix in (".json", ".safetensors")]
    return {
        "models": {str(file): sha256(file) for file in files},
        "inputs": [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in inputs],
        "settings": settings,
    }


class ResumableFile:
    """A file written chunk by chunk beside its place; a second job with the same `job` resumes it, unless that is None.

    `.NAME.partial` holds the text, and `.NAME.partial.json` how much of it is valid. The text is on disk before this
    note is written, so a kill at any instant loses one chunk at most. Without a note, a failed job leaves nothing.
    What is written this way may also be the parts of a result, which `finish` then puts in their place.
    """

    def __init__(self, path: Path, job: dict[str, Any] | None) -> None:
        if path.is_dir():
            raise InputError(f"{path} is a folder; choose a file for the output")
        self.path, self.job = path.resolve() if path.is_symlink() else path, job
        self.partial, self.note = (self.path.with_name(f".{self.path.name}.partial{end}") for end in ("", ".json"))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.partial.open("ab")
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from error
        try:
            lock(self._file)
            if not os.path.samestat(os.fstat(self._file.fileno()), self.partial.stat()):
                raise FileNotFoundError  # another process has renamed it since it was opened here
        except (BlockingIOError, FileNotFoundError) as error:
            self._file.close()
            raise InputError(f"{path} is being written by another process") from error
        self._is_finished = False
        self.lines, size = self._resumed()
        self._file.truncate(size)
        self._file.seek(0, os.SEEK_END)

    def _resumed(self) -> tuple[int, int]:
        try:
            note = json.loads(self.note.read_text(encoding="utf-8"))
            lines, size = int(note["lines"]), int(note["bytes"])
            if note["job"] == json.loads(json.dumps(self.job)) and self.partial.stat().st_size >= size:
                return lines, size
        except (OSError, ValueError, KeyError, TypeError):
            pass
        self.note.unlink(missing_ok=True)  # it says nothing about the text that will now be written
        return 0, 0

    def append(self, text: bytes, lines: int) -> None:
        """Add the output of `lines` lines of the input."""
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            error.filename = str(self.path)
            raise
        self.lines += lines
        if self.job is not None:
            os.fsync(self._file.fileno())
            write_json(self.note, {"job": self.job, "lines": self.lines, "bytes": self._file.tell()})

    def resumed(self) -> Iterator[bytes]:
        """The lines of text that an interrupted job has left."""
        yield from self.partial.read_bytes().splitlines()

    def finish(self, text: bytes) -> None:
        """Write the file itself, instead of all that was appended."""
        with replacing(self.path) as aside:
            aside.write_bytes(text)
        self._is_finished = True

    def __enter__(self) -> "ResumableFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None and not self._is_finished:
            os.fsync(self._file.fileno())
            self.partial.replace(self.path)
        with suppress(OSError):  # a full disk, which `append` has reported
            self._file.close()
        if kind is None or not self.note.exists():
            self.note.unlink(missing_ok=True)
            self.partial.unlink(missing_ok=True)
