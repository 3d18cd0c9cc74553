"""One run, from training to translations. A finished step leaves a file, and is skipped if the file exists."""

import math
import shutil
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from deepnmt.analysis.config import Workload
from deepnmt.analysis.generation_speed import measure_generation
from deepnmt.analysis.weights import learned_weights
from deepnmt.api.train import train
from deepnmt.config import Recipe, load_recipe
from deepnmt.data.dataset import Dataset
from deepnmt.decoding.translator import Translator
from deepnmt.devices import device_name
from deepnmt.files import write_json, write_text
from deepnmt.model.storage import load_model
from deepnmt.reproduction.runs import PlannedRun, count_parameters
from deepnmt.reproduction.scales import Scale
from deepnmt.reproduction.study import HYPOTHESES, MODEL, TRAINING, Study, read_step
from deepnmt.text import joined
from deepnmt.training.averaging import all_checkpoints, write_average
from deepnmt.training.curves import read_log, seconds_of
from deepnmt.training.diagnosis import TrainingError
from deepnmt.training.memory import free_memory

CALIBRATION_STEPS = 80
COMPILED_VARIANTS = 64  # widths, norms, rates of dropout
CURVE_POINTS = 60
GRADIENT_POINTS = 8


@dataclass(frozen=True)
class Setup:
    """The environment of the runs of a study."""

    study: Study
    scale: Scale
    dataset: Dataset
    device: str
    keep_checkpoints: bool = False
    parallel: int = 1

    @property
    def precision(self) -> str:
        """For decoding; training has the recipe's."""
        return "bf16" if self.device == "cuda" else "fp32"


def do_run(run: PlannedRun, setup: Setup) -> None:
    """Execute the unfinished steps of a run."""
    folder = setup.study.runs / run.name
    makers = {"train": _train, "decode": _decode, "weights": _read_weights, "speed": _measure_speed}
    try:
        while step := next_step(run, setup.study):
            write_json(folder / f"{step}.json", makers[step](run, folder, setup))
        if not setup.keep_checkpoints:
            shutil.rmtree(folder / TRAINING / "checkpoints", ignore_errors=True)
            shutil.rmtree(folder / TRAINING / "model", ignore_errors=True)
    finally:
        free_memory(torch.device(setup.device))  # for the next model


def next_step(run: PlannedRun, study: Study) -> str | None:
    """The next step; None if only scoring is left, which needs no device."""
    folder = study.runs / run.name
    needed = ["train"] if run.trains else []
    if run.trains and (trained := read_step(folder, "train")) and trained["status"] == "done":
        needed += ["decode"] if run.measures & {"scores", "weights"} else []
        needed += ["weights"] if "weights" in run.measures else []
    needed += ["speed"] if "speed" in run.measures else []
    missing = [step for step in needed if not (folder / f"{step}.json").exists()]
    if "decode" in needed and "scores" in run.measures and (decoded := read_step(folder, "decode")):
        missing += ["decode"] if set(study.test_names()) - decoded["tests"].keys() else []  # a later call added one
    has_weights = any(place.is_dir() for place in (folder / MODEL, folder / TRAINING / "checkpoints"))
    if {"decode", "weights"} & set(missing) and not has_weights:
        return "train"  # only its small files were copied here, before the rest was done
    return missing[0] if missing else None


def share_compiled_layers() -> None:
    """Keep the compiled layers of many models, so that the next seed or depth can reuse them."""
    import torch._dynamo.config  # slow to load, and only needed where layers are compiled

    torch._dynamo.config.recompile_limit = COMPILED_VARIANTS


def _train(run: PlannedRun, folder: Path, setup: Setup) -> dict[str, Any]:
    recipe = run.recipe if run.seconds is None else _timed_recipe(run, folder, setup)
    training = folder / TRAINING
    for step in ("train", "decode", "weights", "scores"):  # of an earlier model, which is gone
        (folder / f"{step}.json").unlink(missing_ok=True)
    shutil.rmtree(folder / HYPOTHESES, ignore_errors=True)
    status, reason, steps = "done", "", 0
    try:
        done = train(recipe, setup.dataset, training, resume=True, device=setup.device)
    except TrainingError as error:
        status, reason = "failed", str(error)
    else:
        if not done.is_finished:
            raise SystemExit(143)  # stopped by a signal: training has saved a checkpoint and reported it
        steps = done.step
    return {
        "status": status,
        "reason": reason,
        "recipe": Path(run.recipe_name).name,
        "overrides": run.overrides,
        "seed": run.seed,
        "parameters": count_parameters(recipe.model),
        "steps": steps,
        **read_curves(training, recipe.model.encoder.num_layers),
        "machine": describe_machine(setup.device),
        "parallel": setup.parallel,
    }


def _timed_recipe(run: PlannedRun, folder: Path, setup: Setup) -> Recipe:
    """The recipe with as many updates as fit into its seconds, based on the speed of a short throw-away run."""
    assert run.seconds is not None
    if not (measured := read_step(folder, "calibration")):
        measured = _calibrate(run, folder, setup)
        write_json(folder / "calibration.json", measured)
    steps = max(round(run.seconds / measured["seconds_per_update"]), 1)
    before = run.recipe.training
    names = ("warmup_steps", "validate_every", "save_every")
    scaled = {name: max(round(getattr(before, name) / before.max_steps * steps), 1) for name in names}
    log_every = max(min(steps // CURVE_POINTS, 100), 1)
    return _with_training(run.recipe, {**scaled, "max_steps": steps, "log_every": log_every})


def _calibrate(run: PlannedRun, folder: Path, setup: Setup) -> dict[str, float]:
    trial = folder / "calibration"
    shutil.rmtree(trial, ignore_errors=True)
    every = CALIBRATION_STEPS // 8
    brief = {"max_steps": CALIBRATION_STEPS, "log_every": every, "validate_every": 10**9, "save_every": 10**9}
    brief["validation_lines"] = 0
    train(_with_training(run.recipe, brief), setup.dataset, trial, resume=True, device=setup.device)
    lines = read_log(trial, "train")
    seconds = [seconds_of(line) / every for line in lines[len(lines) // 2 :]]
    shutil.rmtree(trial)
    return {"seconds_per_update": statistics.median(seconds)}


def _with_training(recipe: Recipe, settings: dict[str, int]) -> Recipe:
    return load_recipe(recipe, {f"training.{name}": value for name, value in settings.items()})


def read_curves(training: Path, layers: int) -> dict[str, Any]:
    """A subset of the log of a run: loss, validation, and the gradient of every encoder layer."""
    train, valid = read_log(training, "train"), read_log(training, "validation")
    seconds = sum(map(seconds_of, train))
    tokens = sum(line["tokens"] for line in train)
    names = [f"encoder.layers.{depth}" for depth in range(layers)]
    return {
        "target_tokens": tokens,
        "train_seconds": round(seconds, 2),
        "tokens_per_second": round(tokens / seconds) if seconds else None,
        "memory_gib": max((line["memory_gib"] or 0 for line in train), default=0) or None,
        "valid": {k: v for k, v in valid[-1].items() if k not in ("samples", "kind")} if valid else None,
        "curve": [[line["step"], round(line["nll"], 4)] for line in _thin(train, CURVE_POINTS)],
        "valid_curve": [[line["step"], round(line["nll"], 4)] for line in valid],
        "gradients": [
            {"step": line["step"], "norms": [float(f"{line['layers'].get(name, math.nan):.3g}") for name in names]}
            for line in _thin(train, GRADIENT_POINTS)
        ],
    }


def _thin(lines: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """At most `count` lines, evenly spaced, with the first and the last."""
    if len(lines) <= count:
        return lines
    return [lines[round(i * (len(lines) - 1) / (count - 1))] for i in range(count)]


def _make_model(folder: Path, setup: Setup) -> None:
    """Average the last checkpoints: epochs at full scale, as in the paper, else evenly spaced steps."""
    training = folder / TRAINING
    there = all_checkpoints(training)
    of_kind = [path for path in there if path.name.startswith("epoch" if setup.scale.is_full else "step")]
    write_average(training, of_kind[-setup.scale.averaged :] or there[-1:], folder / MODEL)


def _decode(run: PlannedRun, folder: Path, setup: Setup) -> dict[str, Any]:
    if not (folder / MODEL).is_dir():
        _make_model(folder, setup)
    decoding = run.recipe.decoding
    translator = Translator(folder / MODEL, setup.device, setup.precision)
    found = (read_step(folder, "decode") or {"tests": {}})["tests"]
    for test in setup.study.tests():
        if test.name in found:
            continue
        started = time.perf_counter()
        lines = translator.translate(test.source, beam=decoding.beam, length_penalty=decoding.length_penalty)
        found[test.name] = {"seconds": round(time.perf_counter() - started, 2), "lines": len(lines)}
        path = setup.study.translations(run.name, test.name)
        write_text(path, joined(" ".join(line.split()) for line in lines))
    return {"beam": decoding.beam, "length_penalty": decoding.length_penalty, "tests": found}


def _read_weights(run: PlannedRun, folder: Path, setup: Setup) -> list[dict[str, Any]]:
    return [asdict(weights) for weights in learned_weights(load_model(folder / MODEL))]


def _measure_speed(run: PlannedRun, folder: Path, setup: Setup) -> dict[str, Any]:
    """Generation as in the paper's figure 5 and table 5."""
    model = run.recipe.model
    workload = Workload() if setup.device == "cuda" else Workload(batch=4, length=8, repeats=1)
    found = measure_generation(model, workload, device=setup.device, precision=setup.precision)
    return {
        **asdict(found),
        "workload": asdict(workload),
        "precision": setup.precision,
        "parameters": count_parameters(model),
        "machine": describe_machine(setup.device),
    }


def describe_machine(device: str) -> dict[str, Any]:
    return {"device": device_name(device), "torch": torch.__version__, "python": sys.version.split()[0]}
