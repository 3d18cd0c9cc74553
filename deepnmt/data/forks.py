"""Work in forked processes, which share the memory of this one: nothing is loaded twice, nothing need be pickled."""

import gc
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from deepnmt.data.worker_pool import delayed_interrupt, end_with_parent
from deepnmt.devices import return_memory
from deepnmt.errors import RunError
from deepnmt.progress import say

Task = TypeVar("Task")
Result = TypeVar("Result")

IDLE_SECONDS = 5.0  # after which a fork returns unused memory to the system
BUSY_SECONDS = 2.0  # that threads may keep a fork waiting
TRIAL_SECONDS = 30.0  # until every fork has shown that it works
ASLEEP_SECONDS = 10  # that a fork may sleep over a task before it is given up
CAN_FORK = sys.platform == "linux"  # elsewhere system libraries do not survive it
_READY = "ready"


class ForkedWorkers:
    """Processes that are forked from this one, to call a function on its memory as it is then. The function must start
    no threads of torch's.

    A lock that another thread holds at the time of the fork stays locked in it. So forks wait until the other threads
    sleep, and each must first complete `trial`, which uses the libraries that the function will use. A fork that
    nevertheless comes to such a lock sleeps forever: a thread of this process then does its work.
    """

    def __init__(
        self, num_workers: int, function: Callable[[Any], Any], trial: Callable[[], object] = lambda: None
    ) -> None:
        self._function, self._trial, self._num_workers = function, trial, num_workers
        self._forks: list[_Fork] = []
        self._idle: SimpleQueue[_Fork] = SimpleQueue()
        self._threads = ThreadPoolExecutor(num_workers)  # each waits for a fork
        self._starting = threading.Lock()
        self._works: bool | None = None  # None: not started

    def start(self) -> bool:
        """Fork, the first time. False: no worker can be used: other threads never rest, or a worker has died."""
        with self._starting:
            if self._works is None:
                try:
                    self._works = _others_sleep(BUSY_SECONDS) and self._fork()
                except OSError:  # too many processes
                    self._works = False
                if not self._works:
                    self.end()
                    say("no worker processes could be forked: threads do their work, more slowly")
            return self._works

    def _fork(self) -> bool:
        with delayed_interrupt(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            for _ in range(self._num_workers):
                self._forks.append(_Fork(self._function, self._trial))
                self._idle.put(self._forks[-1])
        end = time.monotonic() + TRIAL_SECONDS
        return all(fork.is_ready(end - time.monotonic()) for fork in self._forks)

    def as_done(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """Each task and its result, in the order in which they are done."""
        if not self.start():
            raise RunError("no worker processes: other threads of this process keep working, or a worker has died")
        yield from as_done(lambda task: self._threads.submit(self._call, task), tasks)

    def _call(self, task: Any) -> Any:
        fork = self._idle.get()
        try:
            if not fork.is_stuck:
                return fork.call(task)
        except _AsleepError:
            say("a worker process has hung: a thread does its work, more slowly")
        except _DiedError as error:
            self._works = False
            raise RunError("a worker process died, perhaps for lack of memory: try fewer threads") from error
        finally:
            self._idle.put(fork)
        return self._function(task)

    def end(self) -> None:
        for fork in self._forks:
            fork.end()
        self._threads.shutdown(cancel_futures=True)


class _AsleepError(Exception):
    pass


class _DiedError(Exception):
    pass


class _Fork:
    def __init__(self, function: Callable[[Any], Any], trial: Callable[[], object]) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, there = context.Pipe()
        self._process = context.Process(target=_work, args=(function, trial, there))
        self.is_stuck = False
        self._process.start()
        there.close()  # so that reading ends when the fork dies
        # Called once; at the exit of this process too, which would wait for the fork.
        self.end = Finalize(self, _end, (self._process,), exitpriority=0)

    def is_ready(self, seconds: float) -> bool:
        try:
            return self._connection.poll(max(seconds, 0)) and self._connection.recv() == _READY
        except (EOFError, OSError):
            return False

    def call(self, task: Any) -> Any:
        try:
            self._connection.send(task)
            self._wait()
            if not self._connection.poll():  # it has died, and another fork keeps its end of the pipe open
                raise EOFError
            error, result = self._connection.recv()
        except (EOFError, OSError) as broken:
            raise _DiedError from broken
        if error is not None:
            raise error
        return result

    def _wait(self) -> None:
        """For the result. A task only computes, so a fork that uses no time while it sleeps waits for a lost lock."""
        thread = Path(f"/proc/{self._process.pid}/task/{self._process.pid}")
        asleep, before = 0, None
        while not wait([self._connection, self._process.sentinel], timeout=1):
            now = _activity(thread)
            asleep = asleep + 1 if now == before and now is not None and now[0] == "S" else 0
            before = now
            if asleep >= ASLEEP_SECONDS:
                self.is_stuck = True
                self.end()
                raise _AsleepError


def _end(process: BaseProcess) -> None:
    process.kill()
    process.join()


def as_done(submit: Callable[[Task], Future[Result]], tasks: Iterable[Task]) -> Iterator[tuple[Task, Result]]:
    """Each task and its result, in the order in which they are done."""
    futures = {submit(task): task for task in tasks}
    done: SimpleQueue[Future[Result]] = SimpleQueue()  # a Condition, as in `as_completed`, does not survive Ctrl-C
    for future in futures:
        future.add_done_callback(done.put)
    try:
        for _ in futures:
            future = done.get()
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


def _others_sleep(seconds: float) -> bool:
    """Wait until all other threads of this process sleep, and say whether they do.

    That includes threads that were joined but are still ending: forks made then found MKL's memory manager locked.
    """
    end = time.monotonic() + seconds
    own = str(threading.get_native_id())
    while any(_is_busy(task) for task in Path("/proc/self/task").glob("*") if task.name != own):
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def _is_busy(task: Path) -> bool:
    activity = _activity(task)
    return activity is not None and activity[0] in "RD"


def _activity(task: Path) -> tuple[str, str, str] | None:
    """State of a thread and its time in user and system mode; None: it has ended."""
    try:
        fields = (task / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], fields[11], fields[12]


_idle_since = math.inf  # in a fork; math.inf: it is working, or has returned its memory


def _work(function: Callable[[Any], Any], trial: Callable[[], object], connection: Connection) -> None:
    """The life of a fork."""
    global _idle_since
    gc.freeze()  # so that collecting garbage does not write to what is shared
    # Another thread may have been printing at the moment of the fork.
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a signal to all processes of a service: the parent decides
    for helper in (end_with_parent, _return_memory_when_idle):
        threading.Thread(target=helper, daemon=True).start()
    trial()
    connection.send(_READY)
    while True:
        _idle_since = time.monotonic()
        task = connection.recv()
        _idle_since = math.inf
        try:
            connection.send((None, function(task)))
        except Exception as error:
            error.add_note(f"In a worker process:\n{traceback.format_exc()}")
            connection.send((error, None))


def _return_memory_when_idle() -> None:
    global _idle_since
    while True:
        time.sleep(IDLE_SECONDS)
        if time.monotonic() - _idle_since > IDLE_SECONDS:
            _idle_since = math.inf
            return_memory()
