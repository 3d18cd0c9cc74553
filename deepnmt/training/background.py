"""Work beside training: one piece at a time, in order. What goes wrong with it is raised where it is waited for."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """A thread of its own. A process that ends lets it finish first, unless it is killed."""

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
