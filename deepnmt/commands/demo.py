"""`deepnmt demo`: from nothing to a translation model of one's own, by the commands a user would type."""

import argparse
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
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from deepnmt.devices import choose_device
from deepnmt.errors import InputError
from deepnmt.files import write_json

if TYPE_CHECKING:
    from deepnmt.analysis.demo_report import Demo

EXAMPLE = "deepnmt demo --target fr --out demo-fr"
TRAINING_SECONDS = {"cpu": 590, "cuda": 25}
OVER_TRIAL = 1.05  # a long run saves and validates as well
RECIPES = {"cpu": "demo", "cuda": "demo-gpu"}
STEPS = {"cpu": (300, 6000), "cuda": (2000, 5000)}  # at least and at most
FIRST_ON_GPU = 1000  # steps, which take less than a trial beforehand would
LOOKS = {"cpu": 2, "cuda": 1}  # validations up to the end of each part
MOST_PROCESSES = 2  # an update has two batches
BASELINES = {"cpu": "demo-baseline", "cuda": "demo-gpu-baseline"}
EXAMPLES = 10
VOCABULARY = 8000
# The target side as its own source besides, so much of it in every epoch: from it a small model learns to copy names
# that it has never seen (https://aclanthology.org/W17-4715/).
COPIED = 0.3


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
                f"{path} is damaged or of another version; remove it and {_run_folder(path)}, or choose another --out"
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
    return int(max(least, min(most, steps))) // 4 * 4


def _run_folder(plan: Path) -> Path:
    return plan.with_name(plan.stem.replace("plan", "run", 1))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="de", metavar="LANGUAGE", help="translate English to this (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="default: demo")
    parser.add_argument("--seconds", type=int, metavar="N", help="for training (590 on a CPU, 25 on a GPU)")
    parser.add_argument("--recipe", metavar="RECIPE", help="train this recipe instead of the demo's")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda where there is one")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.analysis.demo_report import Baseline, Demo, show, write_report

    device = _check(arguments)
    target = arguments.target
    out: Path = arguments.out
    corpus, data, plan_path = out / f"corpus-{target}", out / f"data-{target}", out / f"plan-{target}.json"
    run_folder = _run_folder(plan_path)

    if not (corpus / "corpus.json").is_file():
        _call("corpus", "homeassistant", "--languages", "en", target, "--out", corpus)
    if not (data / "dataset.json").is_file():
        files = [(f"--{prefix}{side}", corpus / f"{split}.{language}")
                 for split, prefix in (("train", ""), ("valid", "valid-"), ("test", "test-"))
                 for side, language in (("source", "en"), ("target", target))]  # fmt: skip
        given = [part for pair in files for part in pair]
        translations = corpus / f"train.{target}"
        given += ["--corpus", "copied", translations, translations]
        given += ["--weight", f"copied={COPIED}", "--keep", "identical"]
        _call("prepare", *given, "--source-lang", "en", "--target-lang", target, "--vocab-size", VOCABULARY, "--joint",
              "--min-frequency", 2, "--out", data)  # fmt: skip
    model = run_folder / "model"
    plan = _plan(arguments, device, data, plan_path)
    if _trained_steps(run_folder) != plan.steps:
        compiling = ", once the GPU's kernels are compiled" if plan.device == "cuda" else ""
        _say(f"training for about {_duration(plan.seconds)}{compiling}")
        begun = time.monotonic()
        if not _train(plan, plan_path, data):
            raise SystemExit(1)
        _say(f"trained in {_duration(time.monotonic() - begun)}")
    baseline = Baseline.stored(target, plan.device) if plan.recipe in RECIPES.values() else None
    demo = Demo(target=target, folder=out, corpus=corpus, run=run_folder, model=model, baseline=baseline)
    result = _evaluate(demo, arguments.device)
    if plan.recipe == BASELINES[plan.device]:
        _keep_baseline(demo, plan, result)
    show(demo, result, EXAMPLES)
    write_report(demo, result, EXAMPLES)
    _next_commands(demo)


def _check(arguments: argparse.Namespace) -> str:
    """Refuse what cannot be done before anything is written; returns the device."""
    if arguments.target == "en":
        raise InputError("--target en: the demo translates from English; choose another language, such as de or fr")
    if arguments.seconds is not None and arguments.seconds < 1:
        raise InputError(f"--seconds is {arguments.seconds}: it must be at least 1")
    return choose_device(arguments.device)


def _train(plan: Plan, path: Path, data: Path) -> bool:
    """In two parts: the first shows how fast the machine stays, and so how long the second can be.

    Returns whether it came to its end; if not, it was asked to stop, and has said how to go on.
    """
    run_folder = _run_folder(path)
    if plan.first:
        _train_to(plan.first, 1, plan, data, run_folder)
        if _trained_steps(run_folder) != plan.first:
            return False
        shutil.rmtree(run_folder / "model")
        plan = plan.with_second(_seconds_per_step(run_folder))
        write_json(path, asdict(plan))
        _say(f"{plan.steps - plan.decay:,} steps done; {plan.decay:,} more in about {_duration(plan.seconds)}")
    _train_to(plan.steps, plan.decay, plan, data, run_folder)
    return _trained_steps(run_folder) == plan.steps


def _train_to(steps: int, decay: int, plan: Plan, data: Path, run_folder: Path) -> None:
    words = [plan.recipe, *plan.schedule(steps, decay), "--data", data, "--out", run_folder, "--device", plan.device]
    words.append("--resume")
    if plan.processes == 1:
        _call("train", *words)
    elif status := _launch(plan.processes, words):
        raise SystemExit(status)  # what went wrong has been said


def _trained_steps(run: Path) -> int:
    """Of a run that has come to its end and left a model."""
    from deepnmt.training.checkpoint import step_of

    if not (run / "model" / "meta.json").is_file():
        return 0
    return step_of(run / json.loads((run / "last.json").read_text(encoding="utf-8"))["checkpoint"])


def _plan(arguments: argparse.Namespace, device: str, data: Path, path: Path) -> Plan:
    """How long the model is trained, and in how many processes."""
    if path.is_file():
        return Plan.read(path)
    from deepnmt.config import load_recipe

    name = arguments.recipe or RECIPES[device]
    training = load_recipe(name).training
    precision = training.precision
    if device == "cpu" and precision == "bf16" and not _multiplies_bf16():
        precision = "fp32"
    budget = arguments.seconds or TRAINING_SECONDS[device]
    if device == "cuda":
        processes, steps, first, seconds = 1, STEPS[device][1], FIRST_ON_GPU, float(budget)
    else:
        processes, per_step = _try_on_cpu(name, precision, data, path.with_name("trial"))
        steps = _within(budget / per_step, device)
        first, seconds = steps // 2, steps * per_step
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
        seconds=seconds,
    )
    write_json(path, asdict(plan))
    return plan


def _try_on_cpu(name: str, precision: str, data: Path, trial: Path) -> tuple[int, float]:
    """How many processes, and their seconds per update."""
    _say("trying how fast this machine trains")
    processes, per_step = _try_processes(name, precision, data, trial)
    return processes, OVER_TRIAL * (per_step or _try_one(name, precision, data))


def _try_one(name: str, precision: str, data: Path) -> float:
    """Seconds per update in this process."""
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
        tokens_per_batch=recipe.training.tokens_per_update,
        device="cpu",
        graphed=False,
        steps=16,
        warm_ups=3,
    )
    return speed.milliseconds_per_step / 1000


def _try_processes(name: str, precision: str, data: Path, trial: Path) -> tuple[int, float | None]:
    """Several processes, and their seconds per update in a short training that is thrown away; or one process.

    Small models wait less for each other once per update than threads do in every operation, above all on a machine
    that does other things besides.
    """
    from deepnmt.data.workers import available_cores

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
        if _launch(processes, [name, *overrides, "--data", data, "--out", trial, "--device", "cpu"], quietly=True):
            return 1, None  # there are machines on which processes cannot meet; one process always works
        return processes, statistics.median(_times(trial)[1:]) / settings["log_every"]
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def _train_lines(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["kind"] == "train"]


def _times(run: Path) -> list[float]:
    """Seconds from one line of the log to the next, without what is done beside training."""
    return [line["tokens"] / line["tokens_per_second"] for line in _train_lines(run)]


def _seconds_per_step(run: Path) -> float:
    """Without those up to the first line of the log, in which kernels are compiled."""
    steps = [line["step"] for line in _train_lines(run)]
    if len(steps) == 1:
        return _times(run)[0] / steps[0]
    return sum(_times(run)[1:]) / (steps[-1] - steps[0])


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


def _launch(processes: int, words: Sequence[object], quietly: bool = False) -> int:
    """`deepnmt train` in several processes, shown as a user would type it; returns the exit status."""
    from deepnmt.data.workers import available_cores

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


def _keep_baseline(demo: "Demo", plan: Plan, result: dict[str, Any]) -> None:
    """In the form in which the package stores it for the demo to show."""
    from deepnmt.analysis.demo_report import baseline_file

    scores = result["scores"]
    measured = {
        "target": demo.target,
        "device": plan.device,
        "bleu": scores["bleu"]["value"],
        "chrf": scores["chrf"]["value"],
        "signatures": {name: score["signature"] for name, score in scores.items()},
        "recipe": plan.recipe,
        "command": f"deepnmt demo --recipe {plan.recipe} --out {demo.folder}",
        "machine": _machine(plan.device),
        "steps": _trained_steps(demo.run),
        "seconds": sum(_times(demo.run)),
    }
    path = demo.folder / "baseline.json"
    write_json(path, measured)
    _say(f"{path} is the figure that the demo shows, when stored as {baseline_file(plan.device)}")


def _machine(device: str) -> str:
    import platform

    import torch

    return torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} cores, {platform.machine()}"


def _evaluate(demo: "Demo", device: str | None) -> dict[str, Any]:
    """The scores of the model on the test set, as `deepnmt evaluate --json` gives them; kept beside the model."""
    path = demo.run / "scores.json"
    if not path.is_file():
        import contextlib
        import io

        printed = io.StringIO()
        on_device = ["--device", device] if device else []
        with contextlib.redirect_stdout(printed):
            _call("evaluate", demo.model, "--source", demo.corpus / "test.en", "--reference",
                  demo.corpus / f"test.{demo.target}", "--output", demo.hypotheses, "--metrics", "bleu", "chrf",
                  "--confidence", "--json", *on_device)  # fmt: skip
        write_json(path, json.loads(printed.getvalue()))
    return cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))


def _call(name: str, *words: object) -> None:
    """Show a command as a user would type it, and run it here."""
    given = [str(word) for word in words]
    print(f"\n$ deepnmt {name} {shlex.join(given)}", file=sys.stderr, flush=True)
    command = import_module(f"deepnmt.commands.{name}")
    parser = argparse.ArgumentParser(prog=f"deepnmt {name}")
    command.add_arguments(parser)
    command.run(parser.parse_args(given))


def _next_commands(demo: "Demo") -> None:
    print("\nNext:")
    print(f"  echo 'Turn on the light.' | deepnmt translate {demo.model}")
    print(f"  deepnmt serve {demo.model}          # a page to translate on")
    print("  deepnmt prepare --help               # the same with your own text")


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _say(text: str) -> None:
    print(f"deepnmt: {text}", file=sys.stderr, flush=True)
