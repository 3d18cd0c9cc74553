"""Work in several processes: new ones for chunks, with results in order, and forks that share the memory."""

import gc
import math
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing.resource_tracker import ensure_running
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any, TypeVar

from deepnmt.devices import return_memory
from deepnmt.errors import RunError
from deepnmt.progress import say

Task = TypeVar("Task")
Result = TypeVar("Result")

# Not fork: a forked copy of a process that has threads may hang.
_context = multiprocessing.get_context("spawn")
IDLE_SECONDS = 5.0  # after which a fork returns unused memory to the system
BUSY_SECONDS = 2.0  # that threads may keep a fork waiting
TRIAL_SECONDS = 30.0  # until every fork has shown that it works
CAN_FORK = sys.platform == "linux"  # elsewhere system libraries do not survive it
_DIED = (
    "a worker process died, perhaps for lack of memory: try fewer workers; "
    'or because a script calls deepnmt outside `if __name__ == "__main__":`'
)


class WorkerPool:
    """Worker processes for several passes. With one worker, everything runs in this process."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self._pool = ProcessPoolExecutor(num_workers, _context, _begin_worker) if num_workers > 1 else None

    def in_order(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield `function(task)` in the order of `tasks`; each process loads the function once.

        Few tasks are in flight at a time, so memory is bounded.
        """
        if self._pool is None:
            yield from map(function, tasks)
            return
        flying: deque[Future[Result]] = deque()
        # Passed in a file, which each worker reads once, because it may hold large tables.
        with tempfile.NamedTemporaryFile(prefix="deepnmt-") as file:
            pickle.dump(function, file)
            file.flush()
            try:
                for task in tasks:
                    with _delayed_interrupt():  # the first call starts the processes
                        flying.append(self._pool.submit(_work, file.name, task))
                    if len(flying) > 2 * self.num_workers:
                        yield flying.popleft().result()
                while flying:
                    yield flying.popleft().result()
            except BrokenProcessPool as error:
                raise RunError(_DIED) from error
            finally:
                for future in flying:
                    future.cancel()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._pool is None:
            return
        for process in list((self._pool._processes or {}).values()) if kind else ():
            process.terminate()  # or the pool would wait for the current calls to end
        self._pool.shutdown(cancel_futures=True)


class ForkedWorkers:
    """Processes that are forked from this one, to call a function on its memory as it is then: nothing is loaded twice,
    and what cannot be pickled is there. The function must start no threads of torch's.

    A lock that another thread holds at the time of the fork stays locked in it. So forks wait until the other threads
    sleep, and each must first complete `trial`, which uses the libraries that the function will use.
    """

    def __init__(
        self, num_workers: int, function: Callable[[Any], Any], trial: Callable[[], object] = lambda: None
    ) -> None:
        context = multiprocessing.get_context("fork")
        self._num_workers, self._num_ready = num_workers, context.Semaphore(0)
        self._pool = ProcessPoolExecutor(num_workers, context, _begin_fork, (function, trial, self._num_ready))
        self._starting = threading.Lock()
        self._works: bool | None = None  # None: not started

    def start(self) -> bool:
        """Fork, the first time. False: no worker can be used: other threads never rest, or a worker has died."""
        with self._starting:
            if self._works is None:
                self._works = _others_sleep(BUSY_SECONDS) and self._fork()
                if not self._works:
                    self.end()
                    say("no worker processes could be forked: threads do their work, more slowly")
            return self._works

    def _fork(self) -> bool:
        with _delayed_interrupt(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            self._pool.submit(int)
        end = time.monotonic() + TRIAL_SECONDS
        return all(self._num_ready.acquire(timeout=max(end - time.monotonic(), 0)) for _ in range(self._num_workers))

    def as_done(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """Each task and its result, in the order in which they are done."""
        if not self.start():
            raise RunError("no worker processes: other threads of this process keep working, or a worker has died")
        try:
            yield from as_done(lambda task: self._pool.submit(_call_inherited, task), tasks)
        except BrokenProcessPool as error:
            self._works = False
            raise RunError("a worker process died, perhaps for lack of memory: try fewer threads") from error

    def end(self) -> None:
        for process in list((self._pool._processes or {}).values()):
            process.kill()
        self._pool.shutdown(cancel_futures=True)


def as_done(submit: Callable[[Task], Future[Result]], tasks: Iterable[Task]) -> Iterator[tuple[Task, Result]]:
    """Each task and its result, in the order in which they are done."""
    futures = {submit(task): task for task in tasks}
    try:
        for future in as_completed(futures):
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
    try:
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # it has ended
        return False
    return state in "RD"


@contextmanager
def _delayed_interrupt() -> Iterator[None]:
    """Processes that are started inside never see Ctrl-C, not even while they import; this one sees it afterwards."""
    ensure_running()  # multiprocessing's own process, whose start would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()


_inherited: Callable[[Any], Any]  # of a fork
_idle_since = math.inf  # math.inf: it is working, or has returned its memory


def _begin_fork(function: Callable[[Any], Any], trial: Callable[[], object], num_ready: Semaphore) -> None:
    global _inherited
    _inherited = function
    gc.freeze()  # so that collecting garbage does not write to what is shared
    # Another thread may have been printing at the moment of the fork.
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a signal to all processes of a service: the parent decides
    _begin_worker()
    threading.Thread(target=_return_memory_when_idle, daemon=True).start()
    trial()
    num_ready.release()


def _call_inherited(task: Any) -> Any:
    global _idle_since
    _idle_since = math.inf
    try:
        return _inherited(task)
    finally:
        _idle_since = time.monotonic()


def _return_memory_when_idle() -> None:
    global _idle_since
    while True:
        time.sleep(IDLE_SECONDS)
        if time.monotonic() - _idle_since > IDLE_SECONDS:
            _idle_since = math.inf
            return_memory()


def _end_with_parent() -> None:
    """A killed parent cannot end its workers, which would wait for tasks forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@lru_cache(maxsize=1)
def _function(stored: str) -> Any:
    """In a worker: loaded for the first task of a pass and kept for the others."""
    return pickle.loads(Path(stored).read_bytes())


def _work(stored: str, task: Any) -> Any:
    return _function(stored)(task)
