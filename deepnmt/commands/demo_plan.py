"""How the demo's model is trained: for how many steps, in which precision, and in how many processes."""

import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from deepnmt.errors import InputError
from deepnmt.files import write_json
from deepnmt.progress import say

RECIPES = {"cpu": "demo", "cuda": "demo-gpu"}
TRAINING_SECONDS = {"cpu": 590, "cuda": 25}
OVER_TRIAL = 1.05  # a long run saves and validates as well
STEPS = {"cpu": (300, 6000), "cuda": (2000, 5000)}  # at least and at most
FIRST_ON_GPU = 1000  # steps, which take less than a trial beforehand would
LOOKS = {"cpu": 2, "cuda": 1}  # validations up to the end of each part
MOST_PROCESSES = 2  # an update has two batches


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How the model is trained; made once, so that an interrupted demo goes on."""

    recipe: str
    device: str
    precision: str
    processes: int
    budget: float  # seconds for training
    steps: int
    first: int  # of them, those before the second part is planned; none once it is
    decay: int  # the last ones, over which the rate falls
    warmup: int
    seconds: float  # that what is left should take

    @classmethod
    def read(cls, path: Path) -> "Plan":
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise InputError(
                f"{path} is damaged or of another version; remove it and {run_folder(path)}, or choose another --out"
            ) from None

    def with_second(self, per_step: float) -> "Plan":
        """A step of the first part took so many seconds: as many further ones as the rest of the time has room for."""
        per_step *= OVER_TRIAL
        room = self.first + max(self.budget / per_step - self.first, self.first // 2)  # it needs some to come to rest
        steps = _within(room, self.device)
        decay = steps - self.first
        return replace(self, first=0, steps=steps, decay=decay, seconds=decay * per_step)

    def schedule(self, steps: int, decay: int) -> list[str]:
        """The rate falls in a straight line to zero over the last `decay` steps, wherever the time puts the end."""
        settings: dict[str, Any] = {"max_steps": steps, "warmup_steps": self.warmup, "decay_steps": decay}
        settings |= {"validate_every": max(steps // LOOKS[self.device], 1), "precision": self.precision}
        return [f"training.{name}={value}" for name, value in settings.items()]


def _within(steps: float, device: str) -> int:
    least, most = STEPS[device]
    return int(max(least, min(most, steps))) // 4 * 4  # parts are halves, and so is what lies between validations


def run_folder(plan: Path) -> Path:
    return plan.with_name(plan.stem.replace("plan", "run", 1))


def write_plan(path: Path, device: str, recipe: str | None, seconds: int | None, data: Path) -> None:
    """A CPU is tried beforehand, a GPU is measured in the first part."""
    from deepnmt.config import load_recipe

    name = recipe or RECIPES[device]
    training = load_recipe(name).training
    precision = training.precision
    if device == "cpu" and precision == "bf16" and not _multiplies_bf16():
        precision = "fp32"
    budget = seconds or TRAINING_SECONDS[device]
    if device == "cuda":
        processes, steps, first, expected = 1, STEPS[device][1], FIRST_ON_GPU, float(budget)
    else:
        processes, per_step = _try_on_cpu(name, precision, data, path.with_name("trial"))
        steps = _within(budget / per_step, device)
        first, expected = steps // 2, steps * per_step
    plan = Plan(
        recipe=name,
        device=device,
        precision=precision,
        processes=processes,
        budget=budget,
        steps=steps,
        first=first,
        decay=steps // 2,
        warmup=min(training.warmup_steps, steps // 6),  # a slow machine's run is short
        seconds=expected,
    )
    write_json(path, asdict(plan))


def _try_on_cpu(name: str, precision: str, data: Path, trial: Path) -> tuple[int, float]:
    """How many processes, and their seconds per update."""
    say("trying how fast this machine trains")
    processes, per_step = _try_processes(name, precision, data, trial)
    return processes, OVER_TRIAL * (per_step or _try_one(name, precision, data))


def _try_one(name: str, precision: str, data: Path) -> float:
    """Seconds per update in this process."""
    from deepnmt.analysis.config import TrainingTrial
    from deepnmt.analysis.training_speed import measure_training
    from deepnmt.config import load_recipe
    from deepnmt.data.dataset import Dataset

    dataset = Dataset.open(data)
    sizes = {"source": dataset.tokenizers.source.vocab_size, "target": dataset.tokenizers.target.vocab_size}
    recipe = load_recipe(name, [f"model.{side}_vocab_size={size}" for side, size in sizes.items()])
    corpus = dataset.train["train"]
    speed = measure_training(
        recipe.model,
        replace(recipe.training, precision=cast(Any, precision)),
        (corpus.source_lengths, corpus.target_lengths),
        TrainingTrial(tokens=recipe.training.tokens_per_update, steps=16, warm_ups=3),
        device="cpu",
    )
    return speed.milliseconds_per_step / 1000


def _try_processes(name: str, precision: str, data: Path, trial: Path) -> tuple[int, float | None]:
    """Several processes, and their seconds per update in a short training that is thrown away; or one process.

    Small models wait less for each other once per update than threads do in every operation, above all on a machine
    that does other things besides.
    """
    from deepnmt.devices import available_cores

    processes = min(available_cores(), MOST_PROCESSES)
    if processes == 1:
        return 1, None
    settings: dict[str, Any] = {
        "max_steps": 24,
        "warmup_steps": 1,
        "decay_steps": 1,
        "log_every": 6,
        "validation_lines": 0,
    }
    settings |= {"validate_every": 10**6, "save_every": 10**6, "precision": precision}
    overrides = [f"training.{key}={value}" for key, value in settings.items()]
    shutil.rmtree(trial, ignore_errors=True)
    try:
        if launch(processes, [name, *overrides, "--data", data, "--out", trial, "--device", "cpu"], quietly=True):
            return 1, None  # there are machines on which processes cannot meet; one process always works
        return processes, statistics.median(times(trial)[1:]) / settings["log_every"]
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def _train_lines(run: Path) -> list[dict[str, Any]]:
    from deepnmt.training.curves import read_log

    return [line for line in read_log(run) if line["kind"] == "train"]


def times(run: Path) -> list[float]:
    """Seconds from one line of the log to the next, without what is done beside training."""
    return [line["tokens"] / line["tokens_per_second"] for line in _train_lines(run)]


def seconds_per_step(run: Path) -> float:
    """Without those up to the first line of the log, in which kernels are compiled."""
    steps = [line["step"] for line in _train_lines(run)]
    if len(steps) == 1:
        return times(run)[0] / steps[0]
    return sum(times(run)[1:]) / (steps[-1] - steps[0])


# torchrun, but for its warnings and traceback when it is asked to stop: the training says what there is to say.
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
    """`deepnmt train` in several processes, shown as a user would type it; returns the exit status."""
    from deepnmt.devices import available_cores

    given = [str(word) for word in words]
    if not quietly:
        shown = f"torchrun --standalone --nproc-per-node {processes} --no-python deepnmt train {shlex.join(given)}"
        print(f"\n$ {shown}", file=sys.stderr, flush=True)
    command = [sys.executable, "-c", TORCHRUN, "--standalone", "--nproc-per-node", str(processes)]
    output = subprocess.DEVNULL if quietly else None
    with subprocess.Popen(
        [*command, "-m", "deepnmt", "train", *given],
        env={**os.environ, "OMP_NUM_THREADS": str(max(available_cores() // processes, 1))},
        stdout=output,
        stderr=output,
    ) as process:
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()  # it was asked to stop as well, and saves first
            raise
        finally:
            signal.signal(signal.SIGTERM, before)


def _multiplies_bf16() -> bool:
    """Whether this CPU has instructions for it: where it is emulated, it is slower than fp32."""
    import torch

    def seconds(dtype: torch.dtype) -> float:
        matrix = torch.ones(512, 512, dtype=dtype)
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            matrix @ matrix
            times.append(time.perf_counter() - begun)
        return min(times)

    return seconds(torch.bfloat16) < seconds(torch.float32)
