"""How `deepnmt serve` holds up under many clients, and what batching across them is worth.

    python benchmarks/serve.py [MODEL] --clients 64 --seconds 60 --json serve.json

Every client sends a sentence, waits for its translation and sends the next, over loopback. Two servers are measured
in turns: as it is, and one request at a time (batches of one). Every answer is checked to be the one to its request.
Without MODEL a small one is made: 12 + 2 layers, width 64, taught the phrase book of the tests for a moment.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "serving"))
import phrasebook  # noqa: E402

ALONE = ["--max-batch-sentences", "1", "--batch-wait", "0"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, metavar="MODEL")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each of the two ways")
    parser.add_argument("--turns", type=int, default=6, help="in so many turns, so that both meet the same machine")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        model = arguments.model or make_model(Path(name) / "small")
        result = compare(arguments, model)
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


def compare(arguments: argparse.Namespace, model: Path) -> dict[str, Any]:
    with served(arguments, model, []) as together, served(arguments, model, ALONE) as alone:
        for server in (together, alone):
            asyncio.run(load(server, range(8), 3.0))  # warm up
            server.turns.clear()
        for turn in range(arguments.turns):
            for server in (together, alone):
                seeds = range(1000 * turn + 1000, 1000 * turn + 1000 + arguments.clients)
                asyncio.run(load(server, seeds, arguments.seconds / arguments.turns))
        ratios = [one.rate / other.rate for one, other in zip(together.turns, alone.turns, strict=True)]
        return {
            "machine": f"{platform.machine()}, {arguments.threads} threads, Python {platform.python_version()}",
            "clients": arguments.clients,
            "batched": together.figures(),
            "one at a time": alone.figures(),
            "times the throughput": round(together.rate / alone.rate, 2),
            "in each turn": [round(ratio, 2) for ratio in ratios],
        }


def make_model(folder: Path) -> Path:
    """12 encoder layers with DLCL, 2 decoder layers, width 64, which learns the phrase book of the tests."""
    import torch

    torch.set_num_threads(1)
    phrasebook.make_model(folder, dim=64)
    return folder


@dataclass
class Turn:
    times: list[float]  # seconds of each request
    wrong: int
    elapsed: float
    memory: list[int]

    @property
    def rate(self) -> float:
        return len(self.times) / self.elapsed


@dataclass
class Server:
    pid: int
    port: int
    turns: list[Turn] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return sum(len(turn.times) for turn in self.turns) / sum(turn.elapsed for turn in self.turns)

    def figures(self) -> dict[str, Any]:
        times = sorted(seconds for turn in self.turns for seconds in turn.times)
        memory = [used for turn in self.turns for used in turn.memory]
        return {
            "requests": len(times),
            "lost or wrong": sum(turn.wrong for turn in self.turns),
            "requests per second": round(self.rate, 1),
            "p50 ms": round(1000 * statistics.median(times), 1),
            "p99 ms": round(1000 * times[int(0.99 * (len(times) - 1))], 1),
            "memory MB after a quarter": memory[len(memory) // 4],
            "memory MB at the end": memory[-1],
        }


@contextmanager
def served(arguments: argparse.Namespace, model: Path, options: list[str]) -> Iterator[Server]:
    command = [sys.executable, "-m", "deepnmt", "serve", str(model), "--port", "0", "--device", "cpu"]
    command += ["--threads", str(arguments.threads), "--precision", arguments.precision, "--cache-megabytes", "0"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            port = next(int(found[1]) for line in lines if (found := re.search(r"open http://[^ ]+:(\d+) to", line)))
            yield Server(process.pid, port)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


async def load(server: Server, seeds: Sequence[int], seconds: float) -> None:
    started = time.monotonic()
    until = started + seconds
    memory = asyncio.ensure_future(watch_memory(server.pid, until))
    results = await asyncio.gather(*(client(server.port, seed, until) for seed in seeds))
    elapsed = time.monotonic() - started
    times = [taken for done, _ in results for taken in done]
    server.turns.append(Turn(times, sum(wrong for _, wrong in results), elapsed, await memory))


async def client(port: int, seed: int, until: float) -> tuple[list[float], int]:
    """The seconds each request took, and how many had no answer or another's."""
    sentences = cycle(source for source, _ in phrasebook.phrases(200, seed))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    done: list[float] = []
    wrong = 0
    while time.monotonic() < until:
        text = next(sentences)
        body = json.dumps({"text": text}).encode()
        head = f"POST /translate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        started = time.monotonic()
        writer.write(head + body)
        status, answer = await read_answer(reader)
        done.append(time.monotonic() - started)
        answered = json.loads(answer)["translations"][0]["sentences"] if status == 200 else []
        wrong += [sentence["source"] for sentence in answered] != [text]
    writer.close()
    return done, wrong


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None, head
    return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length[1]))


async def watch_memory(pid: int, until: float) -> list[int]:
    """The resident memory of the server in MB, every second."""
    seen = []
    while time.monotonic() < until:
        status = Path(f"/proc/{pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        seen.append(int(found[1]) // 1024)
        await asyncio.sleep(1)
    return seen


if __name__ == "__main__":
    main()
