"""What the depth schemes cost: milliseconds a training step and peak memory of each arm of `deepnmt reproduce beyond`.

    python benchmarks/depth.py --json results/beyond/cost.json

Arms with the same layers share a process and its compiled layers. The processes compile side by side; then each takes
the steps of its arms while the others wait, so it has the GPU to itself. The most interesting arms come first, with the
reference before and after them. The file is written anew after every row, and arms that are in it are not measured
again: a run that is cut short, or ended by --seconds, continues.
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
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from deepnmt.analysis.config import TrainingTrial
from deepnmt.analysis.training_speed import measure_training, typical_lengths
from deepnmt.config import Recipe, load_recipe
from deepnmt.reproduction.experiment import EXPERIMENTS
from deepnmt.reproduction.steps import share_compiled_layers
from deepnmt.training.memory import free_memory

ARMS = {arm.label: arm for arm in EXPERIMENTS["beyond"].arms}
FIRST = (
    "DLCL",
    "sparse-dlcl",
    "denseformer",
    "dynamic-dense",
    "dynamic-dense-periodic",
    "dynamic-dlcl",
    "attention-residual-blocks",
    "hyper",
    "scaled",
)
READY = "ready"
VOCABULARY = ["model.source_vocab_size=16384", "model.target_vocab_size=16384"]
WHAT = "whole training steps (forward, backward, fused Adam) in bf16, recorded, with sentence lengths like Europarl's"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=["*"], metavar="LABEL", help="arms of this depth, or patterns")
    parser.add_argument("--depth", type=int, default=30)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=8, help="processes that compile side by side")
    parser.add_argument("--torch-weights", action="store_true", help="torch computes the weights of dynamic mixtures")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs="+", metavar="LABEL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        measure(arguments.child, arguments)
        return
    stored = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {"rows": []}
    reference, done = f"pre {arguments.depth}L", {row["arm"] for row in stored["rows"] if "error" not in row}
    stored |= {"machine": describe_machine(), "reference": reference}
    stored |= {"command": " ".join(["python", *sys.argv]), "what": WHAT}
    for row in rows_of(groups_of(reference, done, arguments), arguments):
        stored["rows"].append(row)
        print(describe(row), flush=True)
        if arguments.json:
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            arguments.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def groups_of(reference: str, done: set[str], arguments: argparse.Namespace) -> list[list[list[str]]]:
    """The arms that are left, those with the same layers together: first those of FIRST, then the others."""
    left = [
        label
        for label, arm in ARMS.items()
        if arm.depth == arguments.depth
        and any(fnmatchcase(label, pattern) for pattern in arguments.arms)
        and label not in done | {reference}
    ]
    first = [label for name in FIRST if (label := f"{name} {arguments.depth}L") in left]
    rounds = []
    for labels in ([reference, *first], [label for label in left if label not in first]):
        groups: dict[str, list[str]] = {}
        for label in labels:
            groups.setdefault(layers_of(recipe_of(label, arguments)), []).append(label)
        rounds.append(list(groups.values()))
    rounds[0][0].append(reference)
    return rounds


def layers_of(recipe: Recipe) -> str:
    model = recipe.model
    return repr([model.sublayer_of(model.encoder), model.sublayer_of(model.decoder), model.norm_kind, model.qk_norm])


def recipe_of(label: str, arguments: argparse.Namespace) -> Recipe:
    sizes = {"dim": arguments.dim, "ffn_dim": 4 * arguments.dim, "num_heads": max(arguments.dim // 64, 1)}
    changes = [*VOCABULARY, f"model.encoder.num_layers={arguments.depth}", "model.dropout=0.1"]
    changes += [f"model.{stack}.{name}={value}" for stack in ("encoder", "decoder") for name, value in sizes.items()]
    return load_recipe(ARMS[label].recipe, [*ARMS[label].overrides, *changes])


def rows_of(rounds: list[list[list[str]]], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Start some, wait until each is ready or has failed, then let them measure in turn."""
    deadline, at_once = time.monotonic() + arguments.seconds, arguments.at_once
    for groups in [whole[i : i + at_once] for whole in rounds for i in range(0, len(whole), at_once)]:
        if time.monotonic() > deadline:
            return
        children = [Child(labels, arguments) for labels in groups]
        try:
            for child in children:
                child.next_line(deadline)
            for child in children:
                yield from child.measured(deadline)
        finally:
            for child in children:
                child.process.kill()


def describe(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['arm']:<32} failed: {row['error']}"
    text = f"{row['arm']:<32}{row['milliseconds_per_step']:8.2f} ms {row['memory_gib']:7.2f} GiB"
    return text + f"  {row['engine']}, first step {row['first_step_seconds']:.1f} s, {row['parameters']:,} parameters"


class Child:
    """A process that prepares the first of its arms, reports that, and measures all of them when its turn comes."""

    def __init__(self, labels: list[str], arguments: argparse.Namespace) -> None:
        self.labels = labels
        command = [sys.executable, __file__, *["--torch-weights"] * arguments.torch_weights]
        for name in ("depth", "dim", "tokens", "steps"):
            command += [f"--{name}", str(getattr(arguments, name))]
        environment = {"TORCHINDUCTOR_COMPILE_THREADS": "4", "OMP_NUM_THREADS": "1", **os.environ}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*command, "--child", *labels], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
        )
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

    def measured(self, deadline: float) -> Iterator[dict[str, Any]]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended, and the next line is empty
        for label in self.labels:
            if not (line := self.next_line(deadline)):
                self.process.wait()
                yield {"arm": label, "error": "".join(self.errors)[-600:].strip()}
                return
            yield json.loads(line)


def measure(labels: list[str], arguments: argparse.Namespace) -> None:
    torch.set_float32_matmul_precision("high")
    share_compiled_layers()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments.torch_weights:
        from deepnmt.model.kernels import position_mixture_triton

        position_mixture_triton.FUSES_NETWORKS = False
    is_ready = False

    def wait_for_turn() -> None:
        nonlocal is_ready
        if not is_ready:
            print(READY, flush=True)
            sys.stdin.readline()
        is_ready = True

    for label in labels:
        recipe, row = recipe_of(label, arguments), {"arm": label, "depth": arguments.depth, "dim": arguments.dim}
        trial = TrainingTrial(tokens=arguments.tokens, steps=arguments.steps, warm_ups=3)
        try:
            speed = measure_training(
                recipe.model, recipe.training, typical_lengths(), trial, device=device, when_warm=wait_for_turn
            )
            row |= dataclasses.asdict(speed)
        except Exception as error:  # one must not cost the others
            wait_for_turn()
            row["error"] = f"{type(error).__name__}: {error}"[:600]
        print(json.dumps(row), flush=True)
        free_memory(torch.device(device))


def describe_machine() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    return f"{device}, torch {torch.__version__}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
