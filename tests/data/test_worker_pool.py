import os
import time
from collections.abc import Iterator
from functools import partial

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


def divide(first: int, second: int) -> float:
    if second == 99:
        os._exit(1)
    return first / second


@pytest.mark.parametrize(("second", "outcome"), [(0, ZeroDivisionError), (99, RunError)], ids=["exception", "death"])
def test_a_call_in_a_worker_gives_its_result_or_its_error(second: int, outcome: type[Exception]) -> None:
    with WorkerPool(2) as workers:
        assert workers.call(divide, 2, 4, waiting=lambda: None) == 0.5
        with pytest.raises(outcome):
            workers.call(divide, 2, second, waiting=lambda: None)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_ends_a_call_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), WorkerPool(2) as workers:
        workers.call(time.sleep, 1000, waiting=interrupt)
