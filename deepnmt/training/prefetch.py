"""Updates made ahead of their use by a thread, each with the stream's state after it, so that a restart skips none."""

import queue
import threading
from collections.abc import Iterator
from typing import NamedTuple

from deepnmt.data.batching import BatchStream, StreamState, Update


class Fetched(NamedTuple):
    update: Update
    state: StreamState


class Prefetch:
    """Iterates (update, state after it); `close` ends the thread."""

    def __init__(self, stream: BatchStream, ahead: int, pin: bool) -> None:
        self._stream, self._pin = stream, pin
        self._queue: queue.Queue[Fetched | BaseException] = queue.Queue(ahead)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Fetched]:
        return self

    def __next__(self) -> Fetched:
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closing.is_set():
            item: Fetched | BaseException
            try:
                update = next(self._stream)
                item = Fetched(update.pin_memory() if self._pin else update, self._stream.state())
            except BaseException as error:  # handed over: the loop raises it where it can be seen
                item = error
            while not self._closing.is_set():
                try:
                    self._queue.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(item, BaseException):
                return
