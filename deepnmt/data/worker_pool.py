"""Work in several new processes, with results in order."""

import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from typing import Any, TypeVar

from deepnmt.errors import RunError

Task = TypeVar("Task")
Result = TypeVar("Result")

# Not fork: a forked copy of a process that has threads may hang.
_context = multiprocessing.get_context("spawn")
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
                    with delayed_interrupt():  # the first call starts the processes
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


@contextmanager
def delayed_interrupt() -> Iterator[None]:
    """Processes that are started inside never see Ctrl-C, not even while they import; this one sees it afterwards."""
    ensure_running()  # multiprocessing's own process, whose start would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker() -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
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
