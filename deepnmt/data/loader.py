"""Building updates ahead of their use, in a thread or in processes; what counts as position is what was consumed."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from types import TracebackType

from deepnmt.data.batching import BatchStream, StreamState, Update
from deepnmt.data.workers import in_order


class Loader:
    """Iterates a stream's updates, `depth` of them built ahead, in pinned memory if a GPU will copy them.

    One thread is enough to gather and lay out: a few large numpy calls, which let go of the interpreter. BPE-dropout
    is another matter; for that, `num_workers` processes build the updates, and the thread only puts them in order.
    The stream belongs to the loader until `close`.
    """

    def __init__(self, stream: BatchStream, *, depth: int = 4, pin_memory: bool = False, num_workers: int = 1) -> None:
        self.stream = stream
        self._state = stream.state()
        self._pin_memory = pin_memory
        self._num_workers = num_workers
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
        """The state after the last update that was handed out, whatever was built ahead."""
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
            with closing(self._updates()) as updates:  # type: ignore[type-var]
                for update in updates:
                    pinned = update.pin_memory() if self._pin_memory else update
                    self._ready.put((pinned, self.stream.state_after(update)))
                    if self._closed.is_set():
                        return
        except BaseException as error:  # handed to the consumer, who raises it
            self._ready.put(error)

    def _updates(self) -> Iterator[Update]:
        if self._num_workers <= 1:
            yield from self.stream
        else:
            for update in in_order(_builder, (self.stream,), self.stream.positions(), self._num_workers):
                yield replace(update, batches=[batch.to_tensors() for batch in update.batches])

    def _drain(self) -> None:
        while not self._ready.empty():
            self._ready.get_nowait()


def _builder(stream: BatchStream) -> Callable[[tuple[int, int]], Update]:
    def build(position: tuple[int, int]) -> Update:
        update = stream.update(*position)
        return replace(update, batches=[batch.to_arrays() for batch in update.batches])

    return build
