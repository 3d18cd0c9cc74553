"""Throughput of `deepnmt serve` under many clients, with and without batching, and its behaviour under faults.

    python benchmarks/serve.py [MODEL] --clients 64 --seconds 60 --json serve.json
    python benchmarks/serve.py [MODEL] --clients 64 --seconds 600 --faults

Every client sends a sentence over loopback, waits for its translation and sends the next. Two servers are measured in
turns: one that batches across clients, and one that translates one request at a time. Every answer is checked.
With --faults, three of eight clients misbehave: they vanish, read slowly or not at all, or cut their requests off. The
others must get every answer, and an idle server must have the memory at the end that it had after a warm-up; otherwise
the exit status is 1.
Without MODEL a small one is trained for a moment on the phrase book of the tests: 12 + 2 layers, width 64.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "serving")]
import phrasebook  # noqa: E402

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Fault = Callable[[Reader, Writer, bytes, random.Random], Awaitable[None]]
TOGETHER = ["--cache-megabytes", "0"]
ALONE = [*TOGETHER, "--max-batch-sentences", "1", "--batch-wait", "0"]
CACHE_MB = 1  # under faults: full after a moment
WARM_UP = 180.0  # seconds of the same load before memory is compared; it takes about that long to reach its peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, metavar="MODEL")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each server")
    parser.add_argument("--turns", type=int, default=6, help="the servers take turns, so that both see the same load")
    parser.add_argument("--faults", action="store_true", help="one server; some of the clients misbehave")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        model = arguments.model or make_model(Path(name) / "small")
        result = (endure if arguments.faults else compare)(arguments, model)
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(int(bool(result.get("problems"))))


def compare(arguments: argparse.Namespace, model: Path) -> dict[str, Any]:
    with served(arguments, model, TOGETHER) as together, served(arguments, model, ALONE) as alone:
        for server in (together, alone):
            asyncio.run(load(server, range(8), 3.0))  # warm up
            server.turns.clear()
        for turn in range(arguments.turns):
            for server in (together, alone):
                seeds = range(1000 * turn + 1000, 1000 * turn + 1000 + arguments.clients)
                asyncio.run(load(server, seeds, arguments.seconds / arguments.turns))
        ratios = [one.rate / other.rate for one, other in zip(together.turns, alone.turns, strict=True)]
        return {
            "machine": machine(arguments),
            "clients": arguments.clients,
            "batched": together.figures(),
            "one at a time": alone.figures(),
            "times the throughput": round(together.rate / alone.rate, 2),
            "in each turn": [round(ratio, 2) for ratio in ratios],
        }


def endure(arguments: argparse.Namespace, model: Path) -> dict[str, Any]:
    """One server under faults; what must not happen is listed under "problems"."""
    faults = [vanish, read_slowly, cut_off]
    seeds = range(1000, 1000 + arguments.clients)
    with served(arguments, model, ["--timeout", "30", "--cache-megabytes", str(CACHE_MB)]) as server:
        idle = {"at the start": idle_memory(server)}
        asyncio.run(load(server, seeds, WARM_UP, faults))
        idle["after a warm-up"] = idle_memory(server)
        server.turns.clear()
        counts = asyncio.run(load(server, seeds, arguments.seconds, faults))
        idle["at the end"] = idle_memory(server)
        left = asyncio.run(gauges(server.port, "queue|requests_at|characters_at"))
        (cached,) = asyncio.run(gauges(server.port, "cache_bytes")).values()
        figures, seen = server.figures(), server.turns[0].memory
        asyncio.run(load(server, range(8), 3.0))  # it still serves
        figures["lost or wrong"] += server.turns[-1].wrong
        health, _ = asyncio.run(get(server.port, "/health"))
    tenths = [seen[len(seen) * i // 10 : len(seen) * (i + 1) // 10] for i in range(10)]
    begin, end = idle["after a warm-up"], idle["at the end"]
    problems = [f"{figures['lost or wrong']} answers lost or wrong"] if figures["lost or wrong"] else []
    problems += [f"/health answers {health}"] if health != 200 else []
    problems += [f"work left behind: {left}"] if any(left.values()) else []
    problems += [f"memory grew from {begin} to {end} MB"] if end > 1.05 * begin else []
    return {
        "machine": machine(arguments),
        "clients": arguments.clients,
        "seconds": arguments.seconds,
        **figures,
        "faults": counts,
        "memory MB when idle": idle,
        "of which cached translations": round(cached / 1e6, 1),
        "memory MB in each tenth": [round(statistics.median(part)) for part in tenths if part],
        "problems": problems,
    }


def idle_memory(server: "Server") -> int:
    """The memory in MB when the work at hand is done, or a minute later, and the server has had time to return some."""
    deadline = time.monotonic() + 60
    while any(asyncio.run(gauges(server.port, "queue|requests_at")).values()) and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(10)
    return memory_of(server.pid)


def machine(arguments: argparse.Namespace) -> str:
    return f"{platform.machine()}, {arguments.threads} threads, Python {platform.python_version()}"


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
    command += ["--threads", str(arguments.threads), "--precision", arguments.precision]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            port = next(int(found[1]) for line in lines if (found := re.search(r"open http://[^ ]+:(\d+) to", line)))
            yield Server(process.pid, port)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


async def load(server: Server, seeds: Sequence[int], seconds: float, faults: Sequence[Fault] = ()) -> dict[str, int]:
    """Clients that ask for `seconds`. With faults, three of eight misbehave; returns how often each fault happened."""
    started = time.monotonic()
    until = started + seconds
    memory = asyncio.ensure_future(watch_memory(server.pid, until))
    bad = [(faults[seed % 8], seed) for seed in seeds if seed % 8 < len(faults)]
    counting = [asyncio.ensure_future(misbehave(fault, server.port, seed, until)) for fault, seed in bad]
    good = [seed for seed in seeds if seed % 8 >= len(faults)]
    results = await asyncio.gather(*(client(server.port, seed, until) for seed in good))
    elapsed = time.monotonic() - started
    counts: Counter[str] = Counter()
    for (fault, _), count in zip(bad, await asyncio.gather(*counting), strict=True):
        counts[fault.__name__] += count
    times = [taken for done, _ in results for taken in done]
    server.turns.append(Turn(times, sum(wrong for _, wrong in results), elapsed, await memory))
    return dict(counts)


async def client(port: int, seed: int, until: float) -> tuple[list[float], int]:
    """The seconds each request took, and how many got no answer or a wrong one."""
    sentences = cycle(source for source, _ in phrasebook.phrases(200, seed))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    done: list[float] = []
    wrong = 0
    while time.monotonic() < until:
        text = next(sentences)
        started = time.monotonic()
        writer.write(request({"text": text}))
        status, answer = await read_answer(reader)
        done.append(time.monotonic() - started)
        answered = json.loads(answer)["translations"][0]["sentences"] if status == 200 else []
        wrong += [sentence["source"] for sentence in answered] != [text]
    writer.close()
    return done, wrong


def request(fields: dict[str, Any]) -> bytes:
    body = json.dumps(fields).encode()
    return f"POST /translate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def misbehave(fault: Fault, port: int, seed: int, until: float) -> int:
    """How often a client did this."""
    chance = random.Random(seed)
    count = 0
    while time.monotonic() < until:
        text = "\n".join(source for source, _ in phrasebook.phrases(chance.randint(1, 20), chance.randrange(10**6)))
        fields = {"text": text, "stream": chance.random() < 0.5, "nbest": chance.randint(1, 4), "alignments": True}
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        with suppress(ConnectionError):
            await fault(reader, writer, request(fields), chance)
        writer.transport.abort()
        count += 1
    return count


async def vanish(reader: Reader, writer: Writer, sent: bytes, chance: random.Random) -> None:
    """Send a request and go away before, during or after the answer."""
    writer.write(sent)
    await asyncio.sleep(chance.choice([0.0, 0.01, 0.1, 1.0]))


async def read_slowly(reader: Reader, writer: Writer, sent: bytes, chance: random.Random) -> None:
    """Read nothing, or a little now and then, until the server loses its patience."""
    writer.write(sent)
    size = chance.choice([0, 100, 1000])
    for _ in range(60):
        await asyncio.sleep(0.5)
        if size and not await reader.read(size):
            return


async def cut_off(reader: Reader, writer: Writer, sent: bytes, chance: random.Random) -> None:
    """Send a part of a request, or bytes that are none, and wait a moment or leave."""
    part = sent[: chance.randrange(len(sent))]
    writer.write(chance.choice([part, part, chance.randbytes(2000), sent.replace(b"{", b"[", 1)]))
    await asyncio.sleep(chance.choice([0.0, 0.1, 2.0]))


async def get(port: int, path: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    answer = await read_answer(reader)
    writer.close()
    return answer


async def gauges(port: int, names: str) -> dict[str, float]:
    """The metrics whose names begin with one of these (a regular expression), by name and labels."""
    _, text = await get(port, "/metrics")
    return {name: float(value) for name, value in re.findall(rf"(?m)^deepnmt_((?:{names})\S*) (\S+)$", text.decode())}


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None, head
    return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length[1]))


async def watch_memory(pid: int, until: float) -> list[int]:
    """The memory of the server, every second."""
    seen = []
    while time.monotonic() < until:
        seen.append(memory_of(pid))
        await asyncio.sleep(1)
    return seen


def memory_of(pid: int) -> int:
    """In MB, of the server and its worker processes, what they share counted once."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    shares = [
        re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{each}/smaps_rollup").read_text(), re.M)
        for each in (pid, *children)
    ]
    return sum(int(share[1]) for share in shares if share) // 1024


if __name__ == "__main__":
    main()
