"""`deepnmt` in a process of its own, with its own signals and exit status, started without waiting for imports.

The processes are forks of one server, which imports torch once for all tests of a file.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

SECONDS = 240
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["__main__", "torch._dynamo", "torch.distributed.fsdp", "torch.utils.tensorboard", "deepnmt.training.assembly"]
)


class Process:
    """A function of text that returns an exit status, such as `deepnmt.cli.main`; what it prints is in `output`."""

    def __init__(self, main: Callable[[list[str]], int], words: list[str], **environment: str) -> None:
        file, name = tempfile.mkstemp(prefix="deepnmt-", suffix=".log")
        os.close(file)
        self._log = Path(name)
        self._process = CONTEXT.Process(target=_main, args=(main, words, environment, name))
        self._process.start()

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8")

    @property
    def status(self) -> int | None:
        """None while it runs; the negative number of the signal that ended it."""
        return self._process.exitcode

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = SECONDS) -> int:
        self._process.join(seconds)
        assert self.status is not None, f"still running after {seconds} seconds:\n{self.output}"
        return self.status

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing that a test starts outlives it."""
        self.kill()
        self._process.close()
        self._log.unlink()


def _main(main: Callable[[list[str]], int], words: list[str], environment: dict[str, str], log: str) -> None:
    os.environ.update(environment)
    with Path(log).open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    status = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(status)
