"""Work on chunks in all cores, with results in the order of the chunks, whatever the number of processes."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from deepnmt.errors import RunError

Task = TypeVar("Task")
Result = TypeVar("Result")

# Not fork: a forked copy of a process that has threads may hang.
_context = multiprocessing.get_context("spawn")
_DIED = "a worker process died (was it out of memory?); try fewer --workers"


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    make: Callable[..., Callable[[Task], Result]], arguments: tuple[Any, ...], tasks: Iterable[Task], num_workers: int
) -> Iterator[Result]:
    """Results of `make(*arguments)(task)` in the order of `tasks`; each process makes the function once.

    Few tasks are in flight at a time, so memory stays bounded. One worker means this process, and no other.
    """
    if num_workers == 1:
        yield from map(make(*arguments), tasks)
        return
    pool = ProcessPoolExecutor(num_workers, _context, _initialise, (make, arguments))
    flying: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            flying.append(pool.submit(_work, task))
            if len(flying) > 2 * num_workers:
                yield flying.popleft().result()
        while flying:
            yield flying.popleft().result()
    except BrokenProcessPool as error:
        raise RunError(_DIED) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_function: Callable[[Any], Any]


def _initialise(make: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    global _function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the pool
    try:
        _function = make(*arguments)
    except Exception as error:
        _function = _Failing(error)


class _Failing:
    """Hands an error of the making to whoever waits for a result: raised in an initialiser it would break the pool."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, task: Any) -> Any:
        raise self.error


def _work(task: Any) -> Any:
    return _function(task)


def apart(function: Callable[..., Result], *arguments: Any, waiting: Callable[[], None]) -> Result:
    """Run a long call of a C++ library in a process of its own, so that Ctrl-C ends it at once.

    `waiting` is called several times a second meanwhile.
    """
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_send_result, args=(sender, function, arguments), daemon=True)
    process.start()
    sender.close()
    try:
        while not receiver.poll(0.2):
            waiting()
        kind, value = receiver.recv()
    except EOFError as error:
        raise RunError(_DIED) from error
    finally:
        process.terminate()
        process.join()
        receiver.close()
    if kind == "error":
        raise value
    result: Result = value
    return result


def _send_result(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        sender.send(("result", function(*arguments)))
    except Exception as error:
        sender.send(("error", error))
