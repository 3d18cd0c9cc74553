"""Updates built ahead by a thread; the position in the data is that of the last update consumed."""

import queue
import threading
from collections.abc import Iterator
from types import TracebackType

from deepnmt.data.batching import BatchStream, StreamState, Update


class Loader:
    """Iterates a stream's updates, `depth` of them built ahead, in pinned memory if a GPU will copy them.

    The stream belongs to the loader until `close`.
    """

    def __init__(self, stream: BatchStream, *, depth: int = 4, pin_memory: bool = False) -> None:
        self.stream = stream
        self._state = stream.state()
        self._pin_memory = pin_memory
        self._ready: queue.Queue[tuple[Update, StreamState] | BaseException] = queue.Queue(maxsize=max(1, depth))
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="deepnmt-loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Update]:
        return self

    def __next__(self) -> Update:
        if self._closed.is_set():
            raise StopIteration
        ready = self._ready.get()
        if isinstance(ready, BaseException):
            self.close()
            raise ready
        update, self._state = ready
        return update

    def state(self) -> StreamState:
        """The state after the last update consumed, not after those built ahead."""
        return self._state

    def close(self) -> None:
        self._closed.set()
        while self._thread.is_alive():  # it may be waiting for room in the queue
            self._drain()
            self._thread.join(timeout=0.01)

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        try:
            for update in self.stream:
                pinned = update.pin_memory() if self._pin_memory else update
                self._ready.put((pinned, self.stream.state()))
                if self._closed.is_set():
                    return
        except BaseException as error:  # handed to the consumer, who raises it
            self._ready.put(error)

    def _drain(self) -> None:
        while not self._ready.empty():
            self._ready.get_nowait()
