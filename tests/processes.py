"""`deepnmt` in a process of its own, with its own signals and exit status, started without waiting for imports.

The processes are forks of one server, which imports torch once for all tests of a file.
"""

import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from deepnmt import cli

SECONDS = 240
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["__main__", "torch._dynamo", "torch.distributed.fsdp", "sacrebleu.metrics", "deepnmt.api.train"]
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


# `deepnmt` for a shell script: hands its arguments, folder and open files to `fork_commands`, and passes signals on.
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [json.dumps([os.getcwd(), sys.argv[1:]]).encode()], [0, 1, 2])
pid = int(server.recv(8, socket.MSG_WAITALL))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(pid, number))
sys.exit(int(server.recv(8, socket.MSG_WAITALL)))
"""


def fork_commands(words: list[str]) -> NoReturn:
    """Run each command that a `CLIENT` asks for, at the address given, in a fork of this process."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{words[0]}.new")
        listening.listen()
        Path(f"{words[0]}.new").rename(words[0])
        while True:
            client, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _serve(client)
            client.close()


def _serve(client: socket.socket) -> NoReturn:
    request, files, *_ = socket.recv_fds(client, 2**16, 3)
    folder, words = json.loads(request)
    pid = os.fork()
    if pid == 0:
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.chdir(folder)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.exit(cli.main(words))
    client.send(b"%8d" % pid)
    _, status = os.waitpid(pid, 0)
    client.send(b"%8d" % os.waitstatus_to_exitcode(status))
    os._exit(0)
