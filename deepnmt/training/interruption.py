"""Ctrl-C and SIGTERM, which end a run after the step, with a checkpoint."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STANDARD_ERROR = 2


class Interruption:
    """The first SIGTERM or Ctrl-C takes effect after the step, a second Ctrl-C at once."""

    def __init__(self, speaks: bool = True) -> None:
        """speaks: says on standard error that it was noticed, since a step may take long"""
        self.signal: signal.Signals | None = None  # the one that asked the process to stop
        self.speaks = speaks

    def note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.speaks and self.signal is None:
            again = "; press Ctrl-C again to stop at once" if number == signal.SIGINT else ""
            os.write(STANDARD_ERROR, f"\ndeepnmt: stopping after this step{again}\n".encode())  # safe in a handler
        self.signal = signal.Signals(number)


@contextmanager
def heed_signals(speaks: bool = True) -> Iterator[Interruption]:
    """Python handles signals in the main thread alone; training in another thread cannot be interrupted this way."""
    interruption = Interruption(speaks)
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT) if is_main else ()
    before = {number: signal.signal(number, interruption.note) for number in numbers}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
