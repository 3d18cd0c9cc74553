"""Executes a call of `deepnmt reproduce`, from the request to the reports."""

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import torch

from deepnmt.data.dataset import Dataset
from deepnmt.devices import choose_device
from deepnmt.errors import InputError, RunError
from deepnmt.evaluation import metrics
from deepnmt.evaluation.scores import read_parallel
from deepnmt.reproduction.experiment import EXPERIMENTS, Experiment
from deepnmt.reproduction.processes import start_workers, work
from deepnmt.reproduction.request import Request
from deepnmt.reproduction.results import collect
from deepnmt.reproduction.runs import Budget, Plan, PlannedRun, choose, describe_plan
from deepnmt.reproduction.scales import SCALES
from deepnmt.reproduction.scoring import score_study, write_reports
from deepnmt.reproduction.steps import Setup
from deepnmt.reproduction.study import STUDY, Study, TestSet
from deepnmt.settings import did_you_mean


def reproduce(request: Request) -> None:
    """Execute the unfinished runs, in as many processes as requested; then score and report."""
    if request.out is None:
        raise InputError("--out is missing: name a folder for the study")
    setup, experiments, budget, runs = _planned(request)
    study = setup.study
    _begin(request, setup, experiments, budget)
    for name in experiments:
        # Already here, so that --report-only knows the plan even if this call is interrupted.
        collect(study, name, experiments[name], runs)
    gpus = _gpus(setup.device)
    failure: RunError | None = None
    try:
        if len(gpus) * request.parallel > 1:
            start_workers(request.words(), gpus, request.parallel, runs, study)
        else:
            work(runs, setup, request.stop_after)
    except RunError as error:
        failure = error  # of some runs; the others are reported
    if not request.no_scores:
        score_study(study)
        write_reports(study, list(experiments))
    if failure:
        raise failure


def work_alone(request: Request) -> None:
    """In a worker: execute runs that no other process has claimed, until none is left."""
    setup, _, _, runs = _planned(request)
    work(runs, setup, request.stop_after)


def preview(request: Request) -> str:
    """List the runs with their sizes and estimated times, without writing anything."""
    setup, _, _, runs = _planned(request)
    return describe_plan(runs, setup.device, len(_gpus(setup.device)) * request.parallel)


def report_again(folder: Path, *, with_scores: bool) -> None:
    """Rewrite the reports of a study; `with_scores` first computes missing scores."""
    study = Study(folder)
    names = study.read()["experiments"]
    if with_scores:
        score_study(study)
    write_reports(study, names)


def describe_all() -> str:
    """List the experiments and the scales."""
    lines = ["experiments:"]
    for name, found in EXPERIMENTS.items():
        arms = "1 arm" if len(found.arms) == 1 else f"{len(found.arms)} arms"
        lines.append(f"  {name:<15} {found.title} ({arms})")
    lines += ["  FILE.toml       your own, as described in docs/study.md", "scales:"]
    return "\n".join([*lines, *(f"  {name:<15} {it.about} (seeds: {it.seeds})" for name, it in SCALES.items())])


def _planned(request: Request) -> tuple[Setup, dict[str, Experiment], Budget, list[PlannedRun]]:
    experiments = choose(request.experiments, request.arms)
    if request.scale not in SCALES:
        nearest = did_you_mean(request.scale, SCALES)
        raise InputError(f"unknown scale {request.scale!r}{nearest} (one of {', '.join(SCALES)})")
    scale = SCALES[request.scale]
    if request.data is None:
        raise InputError("--data is missing: name a DATASET written by `deepnmt prepare`")
    for test in request.tests:
        if len(test) < 3 or not re.fullmatch(r"\w[\w.-]*", test[0]):
            raise InputError(
                f"--test {' '.join(test)}: a test set is NAME SOURCE REFERENCE [REFERENCE ...]; a name has letters, "
                "digits, '_', '-' and '.'"
            )
    dataset, device = Dataset.open(request.data), choose_device(request.device)
    study = Study(request.out or Path("-"))
    seeds = request.seeds or scale.seeds
    plan = Plan(
        experiments=experiments, scale=scale, seeds=seeds, settings=request.settings, arms=request.arms, dataset=dataset
    )
    # A study keeps its initial budget; its first experiment of equal time adds the seconds.
    stored = study.read() if request.tokens is None and (study.folder / STUDY).exists() else None
    timed = any(experiment.equal == "time" for experiment in experiments.values())
    if stored is None or (timed and stored["seconds"] is None):
        budget = plan.budget(device, request.tokens, request.minutes)
    else:
        budget = Budget(seconds=stored["seconds"])
    if stored is not None:
        budget = replace(budget, tokens=stored["fixed"]["tokens"])
    setup = Setup(study, scale, dataset, device, request.keep_checkpoints, request.parallel)
    return setup, experiments, budget, plan.runs(budget)


def _begin(request: Request, setup: Setup, experiments: dict[str, Experiment], budget: Budget) -> None:
    """Store the settings and the test sets of the study."""
    dataset, pair = setup.dataset, setup.dataset.tokenizers
    languages = pair.source.language, pair.target.language
    if len(dataset.meta.get("directions", ())) > 1:
        raise InputError(f"{dataset.folder} has several directions, and a study has one; prepare a dataset with one")
    tests = _tests(request, dataset)
    if not tests and any("scores" in experiment.measures for experiment in experiments.values()):
        raise InputError(f"{dataset.folder} has no test set: prepare it with --test-source, or give one with --test")
    for name in experiments.keys() - EXPERIMENTS:
        _check_metric(name, experiments[name], metrics.Languages(*languages))
    fixed = {
        "scale": request.scale,
        "data": dataset.folder.name,
        "vocabularies": [pair.source.vocab_size, pair.target.vocab_size],
        "pairs": sum(len(corpus) for corpus in dataset.train.values()),
        "settings": list(request.settings),
        "tokens": budget.tokens,
    }
    call = {
        "fixed": fixed,
        "seconds": budget.seconds,
        "languages": list(languages),
        "experiments": list(experiments),
        "commands": [f"deepnmt reproduce {shlex.join(request.words())}"],
    }
    setup.study.begin(call, tests)


def _check_metric(name: str, experiment: Experiment, languages: metrics.Languages) -> None:
    """Before hours of training: the table of a user's experiment is about a score that exists for these languages."""
    computed = metrics.choose(languages)
    suitable = [metric for metric in computed if not metrics.METRICS[metric].lower_is_better]
    if "scores" in experiment.measures and experiment.metric not in suitable:
        raise InputError(f"{name}: metric = {experiment.metric!r} is not one of {', '.join(suitable)}")


def _tests(request: Request, dataset: Dataset) -> list[TestSet]:
    tests = []
    if dataset.test_text is not None:
        source, target = dataset.test_text
        tests.append(TestSet("test", source, [target]))
    for name, *paths in request.tests:
        source, *references = read_parallel(*paths)
        tests.append(TestSet(name, source, references))
    return tests


def _gpus(device: str) -> list[str]:
    """The GPUs to use, by number; a CPU counts as one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if device == "cpu":
        return [visible or ""]
    return visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
