"""What is written aside appears whole or not at all."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from pytest import fixture, mark, raises

from deepnmt.errors import InputError, RunError
from deepnmt.files import remove_leftovers, replacing, sha256, write_json


@fixture(params=["file", "folder"])
def write(request):
    """Write a file, or a folder with a file in it; what is read back tells which."""

    def write(path, content):
        if request.param == "file":
            path.write_text(content)
        else:
            path.mkdir()
            (path / "inside").write_text(content)

    return write


def read(path):
    return path.read_text() if path.is_file() else (path / "inside").read_text()


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_new_and_replaced(tmp_path, write):
    path = tmp_path / "deeper" / "thing"
    for content in ("one", "two"):
        with replacing(path) as aside:
            assert aside.parent == path.parent, "renaming is atomic only within a file system"
            write(aside, content)
            assert not path.exists() or read(path) == "one"
        assert read(path) == content
        assert names(path.parent) == ["thing"]


def test_a_failure_leaves_the_old_and_nothing_else(tmp_path, write):
    path = tmp_path / "thing"
    write(path, "old")
    with raises(RuntimeError), replacing(path) as aside:
        write(aside, "half")
        raise RuntimeError
    assert read(path) == "old"
    assert names(tmp_path) == ["thing"]


def test_a_failure_leaves_no_folder_that_was_not_there(tmp_path, unchanged):
    with unchanged(tmp_path), raises(RuntimeError), replacing(tmp_path / "deeper" / "still" / "thing"):
        raise RuntimeError


def test_a_symbolic_link_stays(tmp_path, write):
    target, link = tmp_path / "there" / "thing", tmp_path / "link"
    link.symlink_to(target)
    for content in ("one", "two"):
        with replacing(link) as aside:
            write(aside, content)
        assert link.is_symlink()
        assert read(target) == content
        assert names(target.parent) == ["thing"]


def test_a_device_or_a_pipe_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with raises(InputError, match="pipe is a device or a pipe and cannot be replaced"):
        write_json(tmp_path / "pipe", {})
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_that_should_be_a_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    with (
        raises(InputError, match=r"file is a file, so .*/file/deep/new cannot be written"),
        replacing(tmp_path / "file" / "deep" / "new"),
    ):
        pass


def test_an_error_names_the_file_and_not_its_temporary_name(tmp_path):
    with raises(PermissionError) as refused, replacing(tmp_path / "new") as aside:
        raise PermissionError(13, "Permission denied", str(aside / "part"))
    assert refused.value.filename == str(tmp_path / "new" / "part")
    with raises(OSError) as refused, replacing(tmp_path / "new"):
        raise OSError(28, "No space left on device")
    assert refused.value.filename == str(tmp_path / "new")
    with raises(RunError, match=f"^cannot write {tmp_path}/new/part$"), replacing(tmp_path / "new") as aside:
        raise RunError(f"cannot write {aside / 'part'}")


def test_a_read_only_file_system_is_the_error_and_not_what_could_not_be_removed(tmp_path, monkeypatch):
    def refuse(path, **_):
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with raises(OSError) as refused, replacing(tmp_path / "new") as aside:
        refuse(aside)
    assert refused.value.filename == str(tmp_path / "new")


def test_two_hosts_with_the_same_process_number_do_not_share_a_temporary_name(tmp_path, write, monkeypatch):
    path = tmp_path / "thing"
    with replacing(path) as ours:
        write(ours, "ours")
        monkeypatch.setattr(socket, "gethostname", lambda: "another")
        with replacing(path) as theirs:
            write(theirs, "theirs")
        assert read(path) == "theirs"
        with replacing(path) as again:  # nor do two threads
            assert len({ours, theirs, again}) == 3
            write(again, "again")
    assert read(path) == "ours"
    assert names(tmp_path) == ["thing"]


def test_leftovers_of_dead_processes_of_this_host_are_removed(tmp_path, write, monkeypatch):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    number, path = dead.stdout.strip(), tmp_path / "th[1]"
    others = [f".th[1].{number}.partial", ".th[1].notes.partial"]  # of `deepnmt translate`, which resumes them
    for name in others:
        write(tmp_path / name, "half")
    with replacing(path) as running:
        here = running.name.replace(str(os.getpid()), number)
        write(running, "whole")
        write(tmp_path / here, "half")
        monkeypatch.setattr(socket, "gethostname", lambda: "another")
        with suppress(RuntimeError), replacing(path) as aside:
            there = aside.name.replace(str(os.getpid()), number)
            raise RuntimeError
        write(tmp_path / there, "half")
        monkeypatch.undo()
        remove_leftovers(path)
        assert sorted(names(tmp_path)) == sorted([running.name, there, *others])


def test_containers_that_share_the_name_of_their_host_are_told_apart(tmp_path, monkeypatch):
    with replacing(tmp_path / "thing") as ours:
        ours.touch()
        monkeypatch.setattr(Path, "readlink", lambda path: Path("pid:[1]"))
        with replacing(tmp_path / "thing") as theirs:
            theirs.touch()
    assert ours.name.split("-")[0] != theirs.name.split("-")[0]


def test_the_name_of_a_host_may_be_any_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "b\udcfcro/1")
    write_json(tmp_path / "thing", {})
    assert names(tmp_path) == ["thing"]


def replace_folder(path, content):
    with replacing(path) as aside:
        aside.mkdir()
        (aside / "inside").write_text(content)


@mark.skipif(sys.platform != "linux", reason="only Linux can swap two folders at once")
def test_a_folder_is_swapped_at_once(tmp_path, monkeypatch):
    """A reader that looks all the time never misses it."""
    path, missed, done = tmp_path / "thing", [], threading.Event()
    replace_folder(path, "0")

    def look():
        while not done.is_set():
            if not path.exists():
                missed.append(True)

    reader = threading.Thread(target=look)
    reader.start()
    for i in range(30):
        replace_folder(path, str(i))
    done.set()
    reader.join()
    assert not missed


def test_a_folder_is_replaced_where_the_system_cannot_swap(tmp_path, monkeypatch):
    replace_folder(tmp_path / "thing", "old")
    monkeypatch.setattr("deepnmt.files.ctypes.CDLL", lambda *_, **__: object())
    replace_folder(tmp_path / "thing", "new")
    assert read(tmp_path / "thing") == "new"
    assert names(tmp_path) == ["thing"]


KILLED = """
import os, signal, sys
from pathlib import Path
from deepnmt.files import replacing
with replacing(Path(sys.argv[1])) as aside:
    aside.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_the_old_whole(tmp_path):
    path = tmp_path / "thing"
    path.write_text("old")
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert path.read_text() == "old"


def test_json_is_readable_by_people(tmp_path):
    write_json(tmp_path / "x.json", {"name": "Füße", "list": [1, 2]})
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert "Füße" in text
    assert text.endswith("}\n")
    assert json.loads(text) == {"name": "Füße", "list": [1, 2]}


@mark.parametrize("content", [b"", b"abc", bytes(1_000_000)], ids=["empty", "short", "long"])
def test_sha256_is_sha256(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    assert sha256(tmp_path / "x") == hashlib.sha256(content).hexdigest()
