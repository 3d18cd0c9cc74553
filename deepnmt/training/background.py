"""Work in a background thread, one task at a time, in order. `wait` raises a task's error."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """A process that ends lets its task finish first, unless it is killed."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._pending: Future[None] | None = None

    def start(self, work: Callable[[], None]) -> None:
        self.wait()
        self._pending = self._thread.submit(work)

    def wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
