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
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from deepnmt.errors import InputError
from deepnmt.files import write_json

if TYPE_CHECKING:
    from deepnmt.analysis.demo_report import Demo

EXAMPLE = "deepnmt demo --target fr --out demo-fr"
TRAINING_SECONDS = {"cpu": 590, "cuda": 60}
OVER_TRIAL = 1.05  # a long run saves and validates as well
RECIPES = {"cpu": "demo", "cuda": "demo-gpu"}
STEPS = {"cpu": (300, 6000), "cuda": (2000, 5000)}  # at least and at most
LOOKS = 2  # validations in each part
MOST_PROCESSES = 2  # an update has two batches
BASELINE_RECIPE = "demo-baseline"
EXAMPLES = 10
VOCABULARY = 8000
# The target side as its own source besides, so much of it in every epoch: from it a small model learns to copy names
# that it has never seen (https://aclanthology.org/W17-4715/).
COPIED = 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="de", metavar="LANGUAGE", help="translate English to this (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="default: demo")
    parser.add_argument("--seconds", type=int, metavar="N", help="for training (590 on a CPU, 60 on a GPU)")
    parser.add_argument("--recipe", metavar="RECIPE", help="train this recipe instead of the demo's")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda where there is one")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.analysis.demo_report import Baseline, Demo, show, write_report

    target = arguments.target
    if target == "en":
        raise InputError("--target en: the demo translates from English; choose another language, such as de or fr")
    out: Path = arguments.out
    corpus, data, run_folder = out / f"corpus-{target}", out / f"data-{target}", out / f"run-{target}"

    if not (corpus / "corpus.json").is_file():
        _call("corpus", "homeassistant", "--languages", "en", target, "--out", corpus)
    if not (data / "dataset.json").is_file():
        files = [(f"--{prefix}{side}", corpus / f"{split}.{language}")
                 for split, prefix in (("train", ""), ("valid", "valid-"), ("test", "test-"))
                 for side, language in (("source", "en"), ("target", target))]  # fmt: skip
        given = [part for pair in files for part in pair]
        translations = corpus / f"train.{target}"
        given += [
            "--corpus",
            "copied",
            translations,
            translations,
            "--weight",
            f"copied={COPIED}",
            "--keep",
            "identical",
        ]
        _call("prepare", *given, "--source-lang", "en", "--target-lang", target, "--vocab-size", VOCABULARY, "--joint",
              "--min-frequency", 2, "--out", data)  # fmt: skip
    model = run_folder / "model"
    plan_path = out / f"plan-{target}.json"
    plan = _plan(arguments, data, plan_path)
    if _trained_steps(run_folder) != plan["steps"]:
        _say(f"training {plan['steps']:,} steps, about {plan['seconds'] / 60:.0f} minutes on this machine")
        begun = time.monotonic()
        _train(plan, plan_path, data, run_folder)
        if _trained_steps(run_folder) != plan["steps"]:
            raise SystemExit(1)  # it was asked to stop, and has said how to go on
        _say(f"trained in {time.monotonic() - begun:.0f} s")
    baseline = Baseline.stored(target, plan["device"]) if plan["recipe"] in RECIPES.values() else None
    demo = Demo(target=target, folder=out, corpus=corpus, run=run_folder, model=model, baseline=baseline)
    result = _evaluate(demo, arguments.device)
    if plan["recipe"] == BASELINE_RECIPE:
        _keep_baseline(demo, plan, result)
    show(demo, result, EXAMPLES)
    write_report(demo, result, EXAMPLES)
    _next_commands(demo)


def _train(plan: dict[str, Any], path: Path, data: Path, run_folder: Path) -> None:
    """On a CPU in two parts: the first shows how fast the machine stays, and so how long the second can be."""
    if first := plan["first"]:
        _train_to(first, 1, plan, data, run_folder)
        if _trained_steps(run_folder) != first:
            return
        shutil.rmtree(run_folder / "model")
        _plan_second(plan, sum(_times(run_folder)))
        write_json(path, plan)
        _say(f"half way; {plan['decay']:,} more steps, about {plan['seconds'] / 60:.0f} minutes")
    _train_to(plan["steps"], plan["decay"], plan, data, run_folder)


def _plan_second(plan: dict[str, Any], spent: float) -> None:
    """As many further steps as the rest of the time has room for."""
    first, per_step = plan["first"], OVER_TRIAL * spent / plan["first"]
    room = first + max(plan["budget"] / per_step - first, first // 2)  # it needs some to come to rest
    steps = _within(room, plan["device"])
    plan |= {"first": 0, "steps": steps, "decay": steps - first, "seconds": (steps - first) * per_step}


def _within(steps: float, device: str) -> int:
    least, most = STEPS[device]
    return int(max(least, min(most, steps))) // (2 * LOOKS) * (2 * LOOKS)


def _train_to(steps: int, decay: int, plan: dict[str, Any], data: Path, run_folder: Path) -> None:
    words = [plan["recipe"], *_schedule(steps, decay, plan), "--data", data, "--out", run_folder, "--device"]
    words += [plan["device"], "--resume"]
    if plan["processes"] == 1:
        _call("train", *words)
    elif status := _launch(plan["processes"], words):
        raise SystemExit(status)  # what went wrong has been said


def _schedule(steps: int, decay: int, plan: dict[str, Any]) -> list[str]:
    """The rate falls in a straight line to zero over the last `decay` steps, wherever the time puts the end."""
    settings = {"max_steps": steps, "warmup_steps": plan["warmup"], "decay_steps": decay}
    settings |= {"validate_every": max(steps // LOOKS, 1), "precision": plan["precision"]}
    return [f"training.{name}={value}" for name, value in settings.items()]


def _trained_steps(run: Path) -> int:
    """Of a run that has come to its end and left a model."""
    from deepnmt.training.checkpoint import step_of

    if not (run / "model" / "meta.json").is_file():
        return 0
    return step_of(run / json.loads((run / "last.json").read_text(encoding="utf-8"))["checkpoint"])


def _plan(arguments: argparse.Namespace, data: Path, path: Path) -> dict[str, Any]:
    """How many steps fit into the time, by trying a few; decided once, so that an interrupted demo goes on."""
    if path.is_file():
        return cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))
    import torch

    from deepnmt.config import load_recipe

    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    name = arguments.recipe or RECIPES[device]
    training = load_recipe(name).training
    precision = training.precision
    if device == "cpu" and precision == "bf16" and not _multiplies_bf16():
        precision = "fp32"
    _say("trying how fast this machine trains")
    processes, per_step = (
        _try_processes(name, precision, data, path.with_name("trial")) if device == "cpu" else (1, None)
    )
    per_step = OVER_TRIAL * (per_step or _try_one(name, precision, data, device))
    budget = arguments.seconds or TRAINING_SECONDS[device]
    steps = _within(budget / per_step, device)
    first = steps // 2 if device == "cpu" else 0
    plan = {
        "recipe": name,
        "device": device,
        "precision": precision,
        "processes": processes,
        "budget": budget,
        "steps": steps,
        "first": first,
        "decay": steps - steps // 2,
        "warmup": min(training.warmup_steps, steps // 6),  # a slow machine's run is short
        "seconds": steps * per_step,
    }
    write_json(path, plan)
    return plan


def _try_one(name: str, precision: str, data: Path, device: str) -> float:
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
        device=device,
        graphed=device == "cuda",
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


def _times(run: Path) -> list[float]:
    """Seconds from one line of the log to the next, without what is done beside training."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["tokens"] / line["tokens_per_second"] for line in lines if line["kind"] == "train"]


def _launch(processes: int, words: Sequence[object], quietly: bool = False) -> int:
    """`deepnmt train` in several processes, shown as a user would type it; returns the exit status."""
    from deepnmt.data.workers import available_cores

    given = [str(word) for word in words]
    if not quietly:
        shown = f"torchrun --standalone --nproc-per-node {processes} --no-python deepnmt train {shlex.join(given)}"
        print(f"\n$ {shown}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
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


def _keep_baseline(demo: "Demo", plan: dict[str, Any], result: dict[str, Any]) -> None:
    """In the form in which the package stores it for the demo to show."""
    import platform

    scores = result["scores"]
    measured = {
        "target": demo.target,
        "device": plan["device"],
        "bleu": scores["bleu"]["value"],
        "chrf": scores["chrf"]["value"],
        "signatures": {name: score["signature"] for name, score in scores.items()},
        "recipe": plan["recipe"],
        "command": f"deepnmt demo --recipe {plan['recipe']} --out {demo.folder}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "steps": plan["steps"],
        "seconds": sum(_times(demo.run)),
    }
    write_json(demo.folder / "baseline.json", measured)
    _say(f"{demo.folder / 'baseline.json'} is the figure that the demo shows, when stored in deepnmt/analysis/")


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


def _say(text: str) -> None:
    print(f"deepnmt: {text}", file=sys.stderr, flush=True)
