import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from deepnmt.data.worker_pool import WorkerPool
from deepnmt.errors import InputError, RunError


def add(amount: int, number: int) -> int:
    if number == 13:
        raise InputError("thirteen is refused")
    if number == 99:
        os._exit(3)
    return number + amount


@pytest.mark.parametrize("num_workers", [1, 3])
def test_results_come_in_the_order_of_the_tasks(num_workers: int) -> None:
    tasks = [5, 3, 8, 1, 0, 2, 2, 40, 6, 7, 4]
    with WorkerPool(num_workers) as workers:
        for amount in (10, 20):
            assert list(workers.in_order(partial(add, amount), tasks)) == [task + amount for task in tasks]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_refusal_inside_a_worker_reaches_the_user(num_workers: int) -> None:
    with pytest.raises(InputError, match="thirteen"), WorkerPool(num_workers) as workers:
        list(workers.in_order(partial(add, 1), [1, 13]))


def test_a_worker_that_dies_is_an_error_not_a_hang() -> None:
    with pytest.raises(RunError, match="worker process died"), WorkerPool(2) as workers:
        list(workers.in_order(partial(add, 1), [1, 99, 2]))


def sees_interrupts(_: int) -> bool:
    return signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_workers_leave_ctrl_c_to_their_parent_from_the_beginning() -> None:
    with WorkerPool(2) as workers:
        assert list(workers.in_order(sees_interrupts, range(4))) == 4 * [False]
    assert sees_interrupts(0)


def test_tasks_are_drawn_only_as_they_are_needed() -> None:
    drawn = 0

    def tasks() -> Iterator[int]:
        nonlocal drawn
        while drawn < 100:
            drawn += 1
            yield 0

    with WorkerPool(2) as workers:
        next(workers.in_order(partial(add, 1), tasks()))
        assert drawn < 10


def test_an_interrupt_ends_a_long_task_at_once() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs the tests in the background
    with pytest.raises(KeyboardInterrupt), WorkerPool(2) as workers:
        threading.Timer(1, signal.pthread_kill, [threading.get_ident(), signal.SIGINT]).start()
        list(workers.in_order(time.sleep, [1000]))


KILLED = """
import os, signal, time
from deepnmt.data.worker_pool import WorkerPool

def number(task):
    time.sleep(0.5)
    return os.getpid()

if __name__ == "__main__":
    with WorkerPool(2) as workers:
        print(*set(workers.in_order(number, range(4))), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(KILLED)
    ended = subprocess.run([sys.executable, tmp_path / "script.py"], stdout=subprocess.PIPE, check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    processes = [Path("/proc") / number for number in ended.stdout.decode().split()]
    assert processes
    while any(process.exists() for process in processes):  # the test's own time limit ends this
        time.sleep(0.1)
