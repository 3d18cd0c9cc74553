"""How `deepnmt serve` holds up under many clients, and what batching across them is worth.

    python benchmarks/serve.py [MODEL] --clients 64 --seconds 60 --json serve.json

Every client sends a sentence, waits for its translation and sends the next, over loopback. The same is measured twice
in one run: as the server is, and one request at a time (batches of one). Every answer is checked to be the one to its
request. Without MODEL a small one with random weights is made: its translations are as long as they may be (twice the
source and 20 subwords more), so it is harder work than a trained model of its size.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, metavar="MODEL")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each of the two measurements")
    parser.add_argument("--words", type=int, nargs=2, default=[5, 20], metavar=("FEWEST", "MOST"), help="of a sentence")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        model = arguments.model or make_model(Path(name) / "small")
        together = measure(arguments, model, [])
        alone = measure(arguments, model, ["--max-batch-sentences", "1", "--batch-wait", "0"])
    result = {
        "machine": f"{platform.machine()}, {arguments.threads} threads, Python {platform.python_version()}",
        "clients": arguments.clients,
        "batched": together,
        "one at a time": alone,
        "times the throughput": round(together["requests per second"] / alone["requests per second"], 2),
    }
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


def vocabulary() -> list[str]:
    text = " ".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    return sorted(set(re.findall(r"[A-Za-z]{2,12}", text)))


def make_model(folder: Path) -> Path:
    """12 encoder layers with DLCL, 2 decoder layers, width 128, 2,000 subwords of this project's own documentation."""
    import torch

    from deepnmt.data.sentence_pieces import SentencePieces, train
    from deepnmt.data.tokenizer import Tokenizer, TokenizerPair, Writing
    from deepnmt.model.config import ModelConfig, StackConfig
    from deepnmt.model.connections.dlcl import DlclConfig
    from deepnmt.model.storage import save_model
    from deepnmt.model.transformer import Transformer

    words = Counter(vocabulary())
    pieces = train(dict(words), vocab_size=2000, subwords="bpe", byte_fallback=True, character_coverage=1.0)
    pair = TokenizerPair(*(Tokenizer(SentencePieces(pieces), Writing(language)) for language in ("en", "de")))
    torch.manual_seed(1)
    stack = {"dim": 128, "ffn_dim": 512, "num_heads": 4, "connection": DlclConfig()}
    config = ModelConfig(
        source_vocab_size=pair.source.vocab_size,
        target_vocab_size=pair.target.vocab_size,
        share_embeddings=True,
        encoder=StackConfig(**stack, num_layers=12),
        decoder=StackConfig(**stack, num_layers=2),
    )
    save_model(folder, Transformer(config).eval())
    pair.save(folder)
    return folder


def measure(arguments: argparse.Namespace, model: Path, options: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "deepnmt", "serve", str(model), "--port", "0", "--device", "cpu"]
    command += ["--threads", str(arguments.threads), "--precision", arguments.precision, "--cache-sentences", "0"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            assert server.stderr is not None
            lines = iter(server.stderr.readline, "")
            port = next(int(found[1]) for line in lines if (found := re.search(r"open http://[^ ]+:(\d+) to", line)))
            return asyncio.run(load(arguments, server.pid, port))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


async def load(arguments: argparse.Namespace, pid: int, port: int) -> dict[str, Any]:
    words = vocabulary()
    await asyncio.gather(*(client(port, words, arguments, seed, time.monotonic() + 3) for seed in range(8)))  # warm up
    started = time.monotonic()
    until = started + arguments.seconds
    memory = asyncio.ensure_future(watch_memory(pid, until))
    seeds = range(1000, 1000 + arguments.clients)
    results = await asyncio.gather(*(client(port, words, arguments, seed, until) for seed in seeds))
    elapsed = time.monotonic() - started
    times = sorted(seconds for done, _ in results for seconds in done)
    used = await memory
    return {
        "requests": len(times),
        "lost or wrong": sum(wrong for _, wrong in results),
        "requests per second": round(len(times) / elapsed, 1),
        "p50 ms": round(1000 * statistics.median(times), 1),
        "p99 ms": round(1000 * times[int(0.99 * (len(times) - 1))], 1),
        "memory MB after a quarter": used[len(used) // 4],
        "memory MB at the end": used[-1],
    }


async def client(
    port: int, words: list[str], arguments: argparse.Namespace, seed: int, until: float
) -> tuple[list[float], int]:
    """The seconds each request took, and how many had no answer or another's."""
    rng = random.Random(seed)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    done: list[float] = []
    wrong = 0
    while time.monotonic() < until:
        text = " ".join(rng.choices(words, k=rng.randint(*arguments.words))) + "."
        body = json.dumps({"text": text}).encode()
        head = f"POST /translate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        started = time.monotonic()
        writer.write(head + body)
        status, answer = await read_answer(reader)
        done.append(time.monotonic() - started)
        sentences = json.loads(answer)["translations"][0]["sentences"] if status == 200 else []
        wrong += [sentence["source"] for sentence in sentences] != [text]
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
