"""Prefetches updates in a thread; the position in the data is that of the last consumed update."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from deepnmt.data.batching import BatchStream, StreamState, Update


class Loader:
    """Iterates a stream's updates, prefetching `depth` of them, in pinned memory if a GPU will copy them.

    The loader owns the stream until `close`.
    """

    def __init__(self, stream: BatchStream, *, depth: int = 4, pin_memory: bool = False) -> None:
        self.stream = stream
        self._state = stream.state()
        self._pin_memory = pin_memory
        self._thread = ThreadPoolExecutor(1, "deepnmt-loader")
        self._ahead: deque[Future[tuple[Update, StreamState]]] = deque(
            self._thread.submit(self._build) for _ in range(depth)
        )

    def _build(self) -> tuple[Update, StreamState]:
        update = next(self.stream)
        return update.pin_memory() if self._pin_memory else update, self.stream.state()

    def __iter__(self) -> Iterator[Update]:
        return self

    def __next__(self) -> Update:
        if not self._ahead:
            raise StopIteration
        self._ahead.append(self._thread.submit(self._build))
        try:
            update, self._state = self._ahead.popleft().result()
        except BaseException:
            self.close()
            raise
        return update

    def state(self) -> StreamState:
        """The state after the last consumed update, regardless of prefetched ones."""
        return self._state

    def close(self) -> None:
        self._ahead.clear()
        self._thread.shutdown(cancel_futures=True)

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
