"""`deepnmt demo`: from nothing to a translation model of one's own, by the commands a user would type."""

import argparse
import json
import os
import shlex
import shutil
import sys
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from deepnmt.commands.demo_plan import RECIPES, Plan, launch, run_folder, seconds_per_step, times, write_plan
from deepnmt.devices import choose_device
from deepnmt.errors import InputError
from deepnmt.files import write_json
from deepnmt.progress import say

if TYPE_CHECKING:
    from deepnmt.analysis.demo_report import Demo

EXAMPLE = "deepnmt demo --target fr --out demo-fr"
BASELINES = {"cpu": "demo-baseline", "cuda": "demo-gpu-baseline"}
EXAMPLES = 10
VOCABULARY = 8000
# The target side as its own source besides, so much of it in every epoch: from it a small model learns to copy names
# that it has never seen (https://aclanthology.org/W17-4715/).
COPIED = 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="de", metavar="LANGUAGE", help="translate English to this (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="default: demo")
    parser.add_argument("--seconds", type=int, metavar="N", help="for training (590 on a CPU, 25 on a GPU)")
    parser.add_argument("--recipe", metavar="RECIPE", help="train this recipe instead of the demo's")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda where there is one")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.analysis.demo_report import Baseline, Demo, show, write_report

    _check(arguments)
    device = choose_device(arguments.device)
    target = arguments.target
    out: Path = arguments.out
    corpus, data, plan_path = out / f"corpus-{target}", out / f"data-{target}", out / f"plan-{target}.json"
    run_path = run_folder(plan_path)

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
    model = run_path / "model"
    if not plan_path.is_file():
        write_plan(plan_path, device, arguments.recipe, arguments.seconds, data)
    plan = Plan.read(plan_path)
    if _trained_steps(run_path) != plan.steps:
        compiling = ", once the GPU's kernels are compiled" if plan.device == "cuda" else ""
        say(f"training for about {_duration(plan.seconds)}{compiling}")
        begun = time.monotonic()
        if not _train(plan, plan_path, data):
            raise SystemExit(1)
        say(f"trained in {_duration(time.monotonic() - begun)}")
    baseline = Baseline.stored(target, plan.device) if plan.recipe in RECIPES.values() else None
    demo = Demo(target=target, folder=out, corpus=corpus, run=run_path, model=model, baseline=baseline)
    result = _evaluate(demo, arguments.device)
    if plan.recipe == BASELINES[plan.device]:
        _keep_baseline(demo, plan, result)
    show(demo, result, EXAMPLES)
    write_report(demo, result, EXAMPLES)
    _next_commands(demo)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be done before anything is written."""
    if arguments.target == "en":
        raise InputError("--target en: the demo translates from English; choose another language, such as de or fr")
    if arguments.seconds is not None and arguments.seconds < 1:
        raise InputError(f"--seconds is {arguments.seconds}: it must be at least 1")


def _train(plan: Plan, path: Path, data: Path) -> bool:
    """In two parts: the first shows how fast the machine stays, and so how long the second can be.

    Returns whether it came to its end; if not, it was asked to stop, and has said how to go on.
    """
    run = run_folder(path)
    if plan.first:
        _train_to(plan.first, 1, plan, data, run)
        if _trained_steps(run) != plan.first:
            return False
        shutil.rmtree(run / "model")
        plan = plan.with_second(seconds_per_step(run))
        write_json(path, asdict(plan))
        say(f"{plan.steps - plan.decay:,} steps done; {plan.decay:,} more in about {_duration(plan.seconds)}")
    _train_to(plan.steps, plan.decay, plan, data, run)
    return _trained_steps(run) == plan.steps


def _train_to(steps: int, decay: int, plan: Plan, data: Path, run: Path) -> None:
    words = [plan.recipe, *plan.schedule(steps, decay), "--data", data, "--out", run, "--device", plan.device]
    words.append("--resume")
    if plan.processes == 1:
        _call("train", *words)
    elif status := launch(plan.processes, words):
        raise SystemExit(status)  # what went wrong has been said


def _trained_steps(run: Path) -> int:
    """Of a run that has come to its end and left a model."""
    from deepnmt.training.checkpoint import step_of

    if not (run / "model" / "meta.json").is_file():
        return 0
    return step_of(run / json.loads((run / "last.json").read_text(encoding="utf-8"))["checkpoint"])


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
        "seconds": sum(times(demo.run)),
    }
    path = demo.folder / "baseline.json"
    write_json(path, measured)
    say(f"{path} is the figure that the demo shows, when stored as {baseline_file(plan.device)}")


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
