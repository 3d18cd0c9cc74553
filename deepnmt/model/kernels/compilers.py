"""torch's compiler, started in the background: importing it and starting its processes take seconds."""

from contextlib import suppress
from functools import cache
from threading import Thread


@cache
def start_compilers() -> Thread:
    """Once in a process; returns the thread that does it, to be joined before anything is compiled.

    Until its processes run, torch compiles kernels one after the other in this one.
    """
    thread = Thread(target=_start, name="compilers")
    thread.start()
    return thread


def _start() -> None:
    with suppress(Exception):  # what fails here fails again where it is needed
        import torch._dynamo
        import torch._inductor.compile_fx  # noqa: F401
        from torch._inductor.async_compile import AsyncCompile

        AsyncCompile.wakeup()
