"""Chunks from pipes and files, and files that survive an interruption."""

import bz2
import errno
import fcntl
import gzip
import io
import os
import threading
import time
from pathlib import Path

import pytest

from deepnmt.decoding import jobs
from deepnmt.decoding.jobs import ResumableFile, count_lines, file_chunks, pipe_chunks
from deepnmt.errors import InputError


def test_file_chunks_are_all_lines_in_order(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"a\nb\r\n\nd\xe2\x80\xa8d\ne")
    chunks = [(0, [b"a", b"b"]), (2, [b"", b"d\xe2\x80\xa8d"]), (4, [b"e"])]
    assert list(file_chunks(path, 2)) == chunks
    assert list(file_chunks(path, 2, done=2)) == chunks[1:]
    assert [list(file_chunks(path, 2, done, rank=0, world_size=2)) for done in (0, 2)] == [chunks[::2], chunks[2:]]


@pytest.mark.parametrize("content", [b"", gzip.compress(b""), b"\xef\xbb\xbf"], ids=["plain", "gzip", "only a mark"])
def test_an_empty_file_has_no_chunks_compressed_or_not(tmp_path, content):
    path = tmp_path / "text.gz"
    path.write_bytes(content)
    assert list(file_chunks(path, 2)) == []


def test_a_byte_order_mark_is_no_part_of_the_first_line():
    chunks = list(pipe_chunks(io.BytesIO(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n"), 8))
    assert chunks == [(0, [b"one", b"\xef\xbb\xbftwo"])]


def test_pipe_chunks_are_all_lines_in_order():
    lines = [b"%d" % i for i in range(1000)]
    chunks = list(pipe_chunks(io.BytesIO(b"\n".join(lines)), 64))
    assert [line for _, chunk in chunks for line in chunk] == lines
    assert max(len(chunk) for _, chunk in chunks) <= 64
    assert [int(chunk[0]) for _, chunk in chunks] == [first for first, _ in chunks]


def test_a_line_in_a_pipe_does_not_wait_for_the_next():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb") as pipe:
        chunks = pipe_chunks(source, 100)
        for text in (b"first\n", b"second\n"):
            pipe.write(text)
            pipe.flush()
            assert next(chunks)[1] == [text.strip()]  # would hang if it waited for a full chunk or the end
        pipe.write(b"last")
        pipe.close()
        assert list(chunks) == [(2, [b"last"])]


def test_what_goes_wrong_in_a_pipe_is_raised_where_it_is_read(monkeypatch):
    monkeypatch.setattr(jobs, "MAX_LINE_BYTES", 10)
    chunks = pipe_chunks(io.BytesIO(b"short\n" + b"x" * 50), 8)
    assert next(chunks) == (0, [b"short"])
    with pytest.raises(InputError, match="line 2 of standard input is longer than"):
        next(chunks)


def test_the_reader_of_a_pipe_is_bounded():
    taken = []

    class Endless(io.RawIOBase):
        def readline(self, size=-1):
            taken.append(1)
            return b"again\n"

    chunks = pipe_chunks(Endless(), 5)
    next(chunks)
    time.sleep(0.2)
    assert len(taken) < 30
    threads = [thread for thread in threading.enumerate() if thread.daemon]
    assert threads, "the reader waits; it does not read on"


def interrupted(path, job, text=b"one\n"):
    """A job that stops after its first chunk; its file, closed."""
    with pytest.raises(KeyboardInterrupt), ResumableFile(path, job) as file:
        file.append(text, 1)
        file._file.write(b"half of a li")  # never noted
        raise KeyboardInterrupt
    assert not path.exists()
    return file


def complete(path, job, *chunks):
    """The number of lines that a second job finds done."""
    with ResumableFile(path, job) as file:
        lines = file.lines
        for chunk in chunks:
            file.append(chunk, 1)
    assert [entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")] == []
    return lines


def test_a_job_resumes_where_it_stopped(tmp_path):
    path = tmp_path / "out" / "file"
    interrupted(path, {"seed": 1})
    assert complete(path, {"seed": 1}, b"two\n") == 1
    assert path.read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize("job", [{"seed": 2}, None])
def test_another_job_starts_anew_and_forgets_the_first(tmp_path, job):
    path = tmp_path / "file"
    interrupted(path, {"seed": 1})
    second = ResumableFile(path, job)
    second._file.write(b"longer than the first\n")  # a kill before it is noted
    second._file.close()
    assert complete(path, {"seed": 1}, b"uno\n") == 0
    assert path.read_bytes() == b"uno\n"


def test_a_job_that_cannot_be_resumed_leaves_nothing(tmp_path):
    interrupted(tmp_path / "file", None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damaged", ["note", "partial"])
def test_a_damaged_job_starts_anew(tmp_path, damaged):
    path = tmp_path / "file"
    getattr(interrupted(path, {"seed": 1}), damaged).write_bytes(b"{")
    assert complete(path, {"seed": 1}) == 0
    assert path.read_bytes() == b""


def test_two_jobs_on_one_file_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "file"
    with ResumableFile(path, {"seed": 1}) as first, pytest.raises(InputError, match="written by another process"):
        ResumableFile(path, {"seed": 1})

    def finish_first(*_):
        first.partial.unlink(missing_ok=True)

    monkeypatch.setattr(fcntl, "flock", finish_first)  # while the second waits for the lock
    with pytest.raises(InputError, match="written by another process"):
        ResumableFile(path, {"seed": 1})
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    interrupted(tmp_path / "file", {"seed": 1})
    assert complete(tmp_path / "file", {"seed": 1}) == 1


def test_a_link_stays_a_link_and_a_folder_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    complete(tmp_path / "link", {}, b"one\n")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"one\n"
    with pytest.raises(InputError, match="is a folder; choose a file"):
        ResumableFile(tmp_path, {})
    with pytest.raises(InputError, match=r"^/proc/out cannot be written: "):
        ResumableFile(Path("/proc/out"), {})


@pytest.mark.parametrize("content", [b"", b"a", b"a\n", b"a\nb", b"a\n\n"])
@pytest.mark.parametrize("pack", [bytes, bz2.compress, gzip.compress])
def test_lines_are_counted_as_they_are_read(tmp_path, content, pack):
    path = tmp_path / "text"
    path.write_bytes(pack(content))
    assert count_lines(path) == (sum(len(chunk) for _, chunk in file_chunks(path, 2)) if content else 0)


def test_a_full_disk_is_reported_with_the_name_of_the_output_and_leaves_nothing(tmp_path):
    with pytest.raises(OSError) as refused, ResumableFile(tmp_path / "out", None) as file:
        file._file.close()
        file._file = Path("/dev/full").open("wb")  # noqa: SIM115
        file.append(b"text", 1)
    assert (refused.value.errno, refused.value.filename) == (errno.ENOSPC, str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []
