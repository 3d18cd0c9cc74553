"""Chunks from pipes and files, and files that survive an interruption."""

import io
import os
import threading
import time

import pytest

from deepnmt.decoding import jobs
from deepnmt.decoding.jobs import ResumableFile, file_chunks, pipe_chunks
from deepnmt.errors import InputError


def test_file_chunks_are_all_lines_in_order(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"a\nb\r\n\nd\xe2\x80\xa8d\ne")
    assert list(file_chunks(path, 2)) == [[b"a", b"b"], [b"", b"d\xe2\x80\xa8d"], [b"e"]]
    assert list(file_chunks(path, 2, skip=3)) == [[b"d\xe2\x80\xa8d", b"e"]]
    path.write_bytes(b"")
    assert list(file_chunks(path, 2)) == []


def test_a_byte_order_mark_is_no_part_of_the_first_line():
    lines = [line for chunk in pipe_chunks(io.BytesIO(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n"), 8) for line in chunk]
    assert lines == [b"one", b"\xef\xbb\xbftwo"]


def test_pipe_chunks_are_all_lines_in_order():
    lines = [b"%d" % i for i in range(1000)]
    chunks = list(pipe_chunks(io.BytesIO(b"\n".join(lines)), 64))
    assert [line for chunk in chunks for line in chunk] == lines
    assert max(map(len, chunks)) <= 64


def test_a_line_in_a_pipe_does_not_wait_for_the_next():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb") as pipe:
        chunks = pipe_chunks(source, 100)
        for text in (b"first\n", b"second\n"):
            pipe.write(text)
            pipe.flush()
            assert next(chunks) == [text.strip()]  # would hang if it waited for a full chunk or the end
        pipe.write(b"last")
        pipe.close()
        assert list(chunks) == [[b"last"]]


def test_what_goes_wrong_in_a_pipe_is_raised_where_it_is_read(monkeypatch):
    monkeypatch.setattr(jobs, "MAX_LINE_BYTES", 10)
    with pytest.raises(InputError, match="line 2 of standard input is longer than 10 bytes"):
        list(pipe_chunks(io.BytesIO(b"short\n" + b"x" * 50), 8))


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


def test_a_job_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "out" / "file"
    first = ResumableFile(path, {"seed": 1})
    first.append(b"one\n", 1)
    first._file.write(b"half of a li")  # a kill here: this was never noted
    first.close()
    assert not path.exists()
    second = ResumableFile(path, {"seed": 1})
    assert second.lines == 1
    second.append(b"two\n", 1)
    second.finish()
    assert path.read_bytes() == b"one\ntwo\n"
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def test_another_job_starts_anew(tmp_path):
    path = tmp_path / "file"
    first = ResumableFile(path, {"seed": 1})
    first.append(b"one\n", 1)
    first.close()
    second = ResumableFile(path, {"seed": 2})
    assert second.lines == 0
    second.append(b"uno\n", 1)
    second.finish()
    assert path.read_bytes() == b"uno\n"


@pytest.mark.parametrize("damage", ["note", "text"])
def test_a_damaged_job_starts_anew(tmp_path, damage):
    path = tmp_path / "file"
    first = ResumableFile(path, {"seed": 1})
    first.append(b"one\n", 1)
    first.close()
    (first.note if damage == "note" else first.partial).write_bytes(b"{")
    second = ResumableFile(path, {"seed": 1})
    assert second.lines == 0
    second.finish()
    assert path.read_bytes() == b""


def test_two_jobs_on_one_file_are_refused(tmp_path):
    first = ResumableFile(tmp_path / "file", {"seed": 1})
    with pytest.raises(InputError, match="is being written by another process"):
        ResumableFile(tmp_path / "file", {"seed": 1})
    first.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder; choose a file"):
        ResumableFile(tmp_path, {})
