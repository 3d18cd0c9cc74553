"""What the depth schemes cost: milliseconds a training step and peak memory of each arm of `deepnmt reproduce beyond`.

    python benchmarks/depth.py --json results/beyond/cost.json

Every arm has a process of its own. They compile and record side by side; then each takes its timed steps while the
others wait, so it has the GPU to itself. The reference is timed first and last. The file is written anew after every
group, and arms that are in it are not measured again: a run that is cut short continues.
"""

import argparse
import dataclasses
import json
import os
import platform
import queue
import subprocess
import sys
import threading
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from deepnmt.analysis.config import TrainingTrial
from deepnmt.analysis.training_speed import measure_training, typical_lengths
from deepnmt.config import load_recipe
from deepnmt.reproduction.experiment import EXPERIMENTS

ARMS = {arm.label: arm for arm in EXPERIMENTS["beyond"].arms}
READY = "ready"
VOCABULARY = ["model.source_vocab_size=32768", "model.target_vocab_size=32768"]
WHAT = "whole training steps (forward, backward, fused Adam) in bf16, recorded, with the sentence lengths of Europarl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=["*"], metavar="LABEL", help="arms of this depth, or patterns")
    parser.add_argument("--depth", type=int, default=30)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=12, help="arms prepared side by side")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", metavar="LABEL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        measure(arguments)
        return
    stored = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {"rows": []}
    done = {row["arm"] for row in stored["rows"] if "error" not in row}
    labels = [name for name, arm in ARMS.items() if arm.depth == arguments.depth and matches(name, arguments.arms)]
    waiting, deadline = [name for name in labels if name not in done], time.monotonic() + arguments.seconds
    reference = f"pre {arguments.depth}L"
    while waiting and time.monotonic() < deadline:
        group = [name for name in waiting if name != reference][: arguments.at_once]
        waiting = waiting[len(group) :] if group else []
        stored["rows"] += measure_group([reference, *group, reference], arguments, deadline)
        stored |= {
            "machine": describe_machine(),
            "reference": reference,
            "command": " ".join(["python", *sys.argv]),
            "what": WHAT,
        }
        if arguments.json:
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            arguments.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def matches(label: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(label, pattern) for pattern in patterns)


def measure_group(labels: list[str], arguments: argparse.Namespace, deadline: float) -> list[dict[str, Any]]:
    """Start all, wait until each is ready or has failed, then time them in turn."""
    children = [Child(label, arguments) for label in labels]
    try:
        for child in children:
            child.next_line(deadline)
        rows = []
        for child in children:
            rows.append(child.timed(deadline))
            print(describe(rows[-1]), flush=True)
    finally:
        for child in children:
            child.process.kill()
    return rows


def describe(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['arm']:<32} failed: {row['error']}"
    text = f"{row['arm']:<32}{row['milliseconds_per_step']:8.2f} ms {row['memory_gib']:7.2f} GiB"
    return text + f"  {row['engine']}, first step {row['first_step_seconds']:.1f} s, {row['parameters']:,} parameters"


class Child:
    """A process that prepares an arm, says so, and takes the timed steps when it is told to."""

    def __init__(self, label: str, arguments: argparse.Namespace) -> None:
        self.label = label
        command = [sys.executable, __file__, "--child", label]
        for name in ("depth", "dim", "tokens", "steps"):
            command += [f"--{name}", str(getattr(arguments, name))]
        environment = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1", **os.environ}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
        self.lines: queue.Queue[str] = queue.Queue()
        self.errors: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def next_line(self, deadline: float) -> str:
        """Empty when the process has ended, or has run out of time and is ended."""
        try:
            return self.lines.get(timeout=max(min(deadline - time.monotonic(), threading.TIMEOUT_MAX), 0))
        except queue.Empty:
            self.process.kill()
            self.errors.append("out of time")
            return ""

    def timed(self, deadline: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            row = json.loads(self.next_line(deadline))
        except (OSError, ValueError):
            self.process.wait()
            return {"arm": self.label, "error": "".join(self.errors)[-600:].strip()}
        return {"arm": self.label, **row}


def measure(arguments: argparse.Namespace) -> None:
    arm = ARMS[arguments.child]
    sizes = {"dim": arguments.dim, "ffn_dim": 4 * arguments.dim, "num_heads": max(arguments.dim // 64, 1)}
    changes = [*VOCABULARY, f"model.encoder.num_layers={arguments.depth}", "model.dropout=0.1"]
    changes += [f"model.{stack}.{name}={value}" for stack in ("encoder", "decoder") for name, value in sizes.items()]
    recipe = load_recipe(arm.recipe, [*arm.overrides, *changes])
    torch.set_float32_matmul_precision("high")

    def wait_for_turn() -> None:
        print(READY, flush=True)
        sys.stdin.readline()

    speed = measure_training(
        recipe.model, recipe.training, typical_lengths(), device="cuda" if torch.cuda.is_available() else "cpu",
        trial=TrainingTrial(tokens=arguments.tokens, steps=arguments.steps, warm_ups=3), when_warm=wait_for_turn,
    )  # fmt: skip
    sizes = {"depth": arguments.depth, "dim": arguments.dim}
    print(json.dumps({**sizes, **dataclasses.asdict(speed)}), flush=True)


def describe_machine() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    return f"{device}, torch {torch.__version__}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
