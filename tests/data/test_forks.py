import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from deepnmt.data import forks as forks_module
from deepnmt.data.forks import CAN_FORK, ForkedWorkers
from deepnmt.errors import InputError, RunError

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="processes are not forked on this system")


@pytest.fixture
def forks() -> Iterator[ForkedWorkers]:
    unpicklable = threading.Lock()

    def work(number: int) -> int:
        with unpicklable:
            if number == 13:
                raise InputError("thirteen is refused")
            if number == 99:
                os._exit(3)
            return number + 100

    workers = ForkedWorkers(2, work)
    yield workers
    workers.end()


def test_forks_use_what_cannot_be_pickled(forks: ForkedWorkers) -> None:
    assert sorted(forks.as_done(range(10))) == [(number, number + 100) for number in range(10)]
    with pytest.raises(InputError, match="thirteen") as refusal:
        list(forks.as_done([13]))
    assert "In a worker process:\nTraceback" in refusal.value.__notes__[0]
    assert list(forks.as_done([1])) == [(1, 101)]


def test_a_fork_that_dies_is_an_error_not_a_hang(forks: ForkedWorkers) -> None:
    with pytest.raises(RunError, match="try fewer threads"):
        list(forks.as_done([1, 99, 2]))
    assert not forks.start()
    with pytest.raises(RunError, match="no worker processes"):
        list(forks.as_done([1]))


def test_forks_wait_for_threads_at_work(forks: ForkedWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that a thread holds, perhaps inside a library, would stay locked in the fork."""
    monkeypatch.setattr(forks_module, "BUSY_SECONDS", 60.0)
    thread = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"", b"", 3_000_000))  # about a second
    thread.start()
    forks.start()
    thread.join(0.2)
    assert not thread.is_alive()


def test_no_forks_beside_a_thread_that_never_rests(
    forks: ForkedWorkers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forks_module, "BUSY_SECONDS", 0.1)
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert not forks.start()
    finally:
        is_over.set()
        thread.join()
    assert not forks.start()
    assert (
        capsys.readouterr().err == "deepnmt: no worker processes could be forked: threads do their work, more slowly\n"
    )


def test_forks_that_hang_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a library were locked by a thread that sleeps."""
    monkeypatch.setattr(forks_module, "TRIAL_SECONDS", 0.5)
    lock = threading.Lock()
    workers = ForkedWorkers(2, abs, lock.acquire)
    with lock:
        assert not workers.start()
    assert not multiprocessing.active_children()


def test_a_thread_does_the_work_of_a_fork_that_hangs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forks_module, "ASLEEP_SECONDS", 1)
    lock = threading.Lock()

    def work(number: int) -> tuple[int, int]:
        if number == 3:
            with lock:
                time.sleep(0.1)
        return number, os.getpid()

    workers = ForkedWorkers(2, work)
    with lock:
        workers.start()
    found = dict(result for _, result in workers.as_done(range(8)))
    assert found[3] == os.getpid()
    assert len(found) == 8
    assert capsys.readouterr().err == "deepnmt: a worker process has hung: a thread does its work, more slowly\n"
    assert {process for _, (_, process) in workers.as_done(range(4, 40))} > {os.getpid()}
    workers.end()


def test_a_fork_that_computes_is_not_taken_for_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks_module, "ASLEEP_SECONDS", 1)

    def work(_: int) -> int:
        end = time.monotonic() + 4
        while time.monotonic() < end:
            pass
        return os.getpid()

    workers = ForkedWorkers(2, work)
    assert os.getpid() not in {process for _, process in workers.as_done(range(2))}
    workers.end()


def test_what_cannot_be_pickled_is_an_error(forks: ForkedWorkers) -> None:
    workers = ForkedWorkers(2, lambda _: threading.Lock())
    with pytest.raises(TypeError, match="cannot pickle"):
        list(workers.as_done([0]))
    workers.end()
    with pytest.raises(TypeError, match="cannot pickle"):
        list(forks.as_done([threading.Lock()]))
    assert list(forks.as_done([1])) == [(1, 101)]


def test_forks_serve_several_threads_at_once(forks: ForkedWorkers) -> None:
    with ThreadPoolExecutor(5) as threads:
        for found in threads.map(lambda _: sorted(forks.as_done(range(20, 70))), range(5)):
            assert found == [(number, number + 100) for number in range(20, 70)]


def test_an_interrupt_while_forking_leaves_no_fork(forks: ForkedWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs the tests in the background

    class Interrupted(forks_module._Fork):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(forks_module, "_Fork", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        forks.start()
    assert len(forks._forks) == 2  # not before all are known
    forks.end()
    assert not multiprocessing.active_children()


def test_a_program_ends_though_its_forks_were_not_ended() -> None:
    program = "from deepnmt.data.forks import ForkedWorkers; forks = ForkedWorkers(2, abs); print(forks.start())"
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, timeout=60)
    assert ended.stdout == b"True\n"


def test_forks_end_with_their_block_in_the_middle_of_a_task() -> None:
    workers = ForkedWorkers(2, time.sleep)
    flying = workers.as_done([0, 1000, 1000, 1000])
    assert next(flying) == (0, None)
    flying.close()
    workers.end()  # the test's own time limit would end this
