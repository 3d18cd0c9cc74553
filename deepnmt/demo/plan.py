"""Fits the demo's training into its time budget: number of updates, precision, number of processes."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from deepnmt.config import load_recipe
from deepnmt.devices import available_cores, multiplies_bf16
from deepnmt.errors import InputError
from deepnmt.files import write_json
from deepnmt.progress import say
from deepnmt.training.curves import read_log, seconds_of

MINUTES = {"cpu": 12.0, "cuda": 1.0}
# Seconds for everything but training: preparing data, measuring speed, translating and scoring the test set.
RESERVE = {"cpu": 90.0, "cuda": 35.0}
LEAST_SHARE = 0.4  # of the time, for training
STEPS = {"cpu": (100, 12_000), "cuda": (2000, 30_000)}  # at least and at most
FIRST_ON_GPU = 1000  # updates, faster than a separate trial
OVERHEAD = 1.05  # a long run also saves and validates
TRIAL_STEPS, TRIAL_LOG_EVERY = 20, 5
VALIDATIONS = {"cpu": 2, "cuda": 1}  # up to the end of each part
MAX_PROCESSES = 2  # an update has two batches


def training_seconds(minutes: float, device: str) -> float:
    """The part of the total time that is for training."""
    return max(60 * minutes - RESERVE[device], LEAST_SHARE * 60 * minutes)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model is trained; stored, so that an interrupted demo resumes."""

    recipe: str
    device: str
    minutes: float  # for the whole demo
    precision: str
    processes: int
    steps: int
    first: int  # updates of the first part, whose speed determines the rest; 0 once that is done
    decay: int  # updates at the end in which the learning rate falls to zero
    warmup: int
    seconds: float  # expected for the rest

    @classmethod
    def read(cls, path: Path) -> "Plan":
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise InputError(
                f"{path} is damaged or was written by another version; remove {path.parent}, or choose another --out"
            ) from None

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))

    def with_rest(self, seconds_per_step: float) -> "Plan":
        """Plan the rest of the run from the speed of its first part: as many updates as fit into the time."""
        per_step = OVERHEAD * seconds_per_step
        budget = training_seconds(self.minutes, self.device)
        rest = max(budget / per_step - self.first, self.first // 2)  # the decay needs some updates
        steps = _within(self.first + rest, self.device)
        decay = steps - self.first
        return replace(self, first=0, steps=steps, decay=decay, seconds=decay * per_step)

    def overrides(self, steps: int, decay: int) -> list[str]:
        """The learning rate decays linearly to zero over the last `decay` updates."""
        settings: dict[str, Any] = {"max_steps": steps, "warmup_steps": self.warmup, "decay_steps": decay}
        settings |= {"validate_every": max(steps // VALIDATIONS[self.device], 1), "precision": self.precision}
        return [f"training.{name}={value}" for name, value in settings.items()]


def _within(steps: float, device: str) -> int:
    least, most = STEPS[device]
    return int(max(least, min(most, steps))) // 4 * 4  # divisible by two parts and two validations


def make_plan(
    recipe: str, device: str, minutes: float, data: Path, trial: Path, max_processes: int = MAX_PROCESSES
) -> Plan:
    """Measure the speed in the temporary folder `trial` on a CPU; on a GPU the first part measures it."""
    training = load_recipe(recipe).training
    precision = training.precision
    if device == "cpu" and precision == "auto":
        precision = "bf16" if multiplies_bf16() else "fp32"
    seconds = training_seconds(minutes, device)
    if device == "cuda":
        processes, steps, first = 1, STEPS[device][1], FIRST_ON_GPU
    else:
        say(f"measuring how fast this machine trains {recipe}")
        processes = min(available_cores(), max_processes)
        per_step = try_speed(recipe, precision, processes, data, trial)
        if per_step is None:  # on some machines processes cannot connect
            processes = 1
            per_step = try_speed(recipe, precision, processes, data, trial)
        if per_step is None:
            raise SystemExit(1)  # training has printed why
        steps = _within(seconds / (OVERHEAD * per_step), device)
        first = steps // 2
    return Plan(
        recipe=recipe,
        device=device,
        minutes=minutes,
        precision=precision,
        processes=processes,
        steps=steps,
        first=first,
        decay=steps // 2,
        warmup=min(training.warmup_steps, steps // 6),  # a short run has no time for a long one
        seconds=seconds,
    )


def try_speed(recipe: str, precision: str, processes: int, data: Path, trial: Path) -> float | None:
    """Seconds per update in a short throw-away run; None if it fails."""
    settings: dict[str, Any] = {"max_steps": TRIAL_STEPS, "warmup_steps": 1, "decay_steps": 1, "validation_lines": 0}
    settings |= {"log_every": TRIAL_LOG_EVERY, "validate_every": 10**6, "save_every": 10**6, "precision": precision}
    overrides = [f"training.{key}={value}" for key, value in settings.items()]
    shutil.rmtree(trial, ignore_errors=True)
    try:
        words = [recipe, *overrides, "--data", data, "--out", trial, "--device", "cpu"]
        if launch(processes, words, quietly=processes > 1):  # with one process, its output shows why it failed
            return None
        return seconds_per_step(trial)
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def seconds_per_step(run: Path) -> float:
    """Seconds per update, without those before the first line of the log, which include compilation."""
    lines = read_log(run, "train")
    steps, seconds = [line["step"] for line in lines], [seconds_of(line) for line in lines]
    return seconds[0] / steps[0] if len(steps) == 1 else sum(seconds[1:]) / (steps[-1] - steps[0])


# torchrun without its warnings and traceback on SIGTERM, since training has printed a message.
TORCHRUN = """import logging, sys
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.run import main
logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
try:
    main()
except SignalException as stopped:
    sys.exit(128 + stopped.sigval)
"""


def launch(processes: int, words: Sequence[object], quietly: bool = False) -> int:
    """Run `deepnmt train` in one or several processes, print the command, and return the exit status. SIGTERM is
    passed on and ends this process too.

    Processes synchronise once per update, threads in every operation, so several processes are faster for a small
    model, especially on a busy machine.
    """
    given = [str(word) for word in words]
    start = ["-m"]
    logs = tempfile.TemporaryDirectory()  # torchrun would make one, and leave it behind
    shown = f"deepnmt train {shlex.join(given)}"
    if processes > 1:
        start = ["-c", TORCHRUN, "--standalone", "--nproc-per-node", str(processes), "--log-dir", logs.name, "-m"]
        shown = f"torchrun --standalone --nproc-per-node {processes} --no-python {shown}"
    if not quietly:
        print(f"\n$ {shown}", file=sys.stderr, flush=True)
    output = subprocess.DEVNULL if quietly else None
    process: subprocess.Popen[bytes] | None = None
    is_stopped = False

    def stop(*_: object) -> None:
        nonlocal is_stopped
        is_stopped = True
        if process:
            process.terminate()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with logs:
            process = subprocess.Popen(
                [sys.executable, *start, "deepnmt", "train", *given],
                env={**os.environ, "OMP_NUM_THREADS": str(max(available_cores() // processes, 1))},
                stdout=output,
                stderr=output,
            )
            if is_stopped:  # before it had a name
                process.terminate()
            try:
                status = process.wait()
            except KeyboardInterrupt:
                process.wait()  # interrupted too; it saves a checkpoint first
                raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if is_stopped:
        raise SystemExit(128 + signal.SIGTERM)
    return status
