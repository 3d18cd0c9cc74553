"""Requests to stop: the first SIGTERM or Ctrl-C takes effect after the step, a second Ctrl-C at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """`signal` is the signal that asked the process to stop, or None."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)


@contextmanager
def heed_signals() -> Iterator[Interruption]:
    """Python handles signals in the main thread alone; training in another thread cannot be interrupted this way."""
    interruption = Interruption()
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT) if is_main else ()
    before = {number: signal.signal(number, interruption.note) for number in numbers}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
