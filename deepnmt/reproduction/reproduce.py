"""A call of `deepnmt reproduce` from its request to its reports."""

import os
import shlex
from pathlib import Path

import torch

from deepnmt.data.dataset import Dataset
from deepnmt.devices import choose_device
from deepnmt.errors import InputError
from deepnmt.evaluation.scores import check_lengths
from deepnmt.reproduction.experiment import Experiment
from deepnmt.reproduction.paper import EXPERIMENTS
from deepnmt.reproduction.processes import start_workers, work
from deepnmt.reproduction.request import Request
from deepnmt.reproduction.results import collect
from deepnmt.reproduction.runs import (
    Budget,
    PlannedRun,
    choose_arms,
    choose_experiments,
    describe_plan,
    fixed_budget,
    plan_runs,
    set_budget,
)
from deepnmt.reproduction.scales import SCALES
from deepnmt.reproduction.scoring import score_study, write_reports
from deepnmt.reproduction.steps import InterruptedTrainingError, Setup
from deepnmt.reproduction.study import Study, TestSet
from deepnmt.settings import did_you_mean
from deepnmt.text import read_lines

Experiments = dict[str, Experiment]


def reproduce(request: Request) -> None:
    """Do all runs of the experiments that are not done yet, in as many processes as asked for; score and report."""
    if request.out is None:
        raise InputError("--out is missing: the folder of the study")
    experiments, dataset, device, runs, budget, study = _planned(request)
    _begin(request, study, experiments, dataset, budget)
    for name in experiments:
        collect(study, name, runs)  # so that --report-only knows the plan, however early this call ends
    gpus = _gpus(device)
    if len(gpus) * request.parallel > 1:
        start_workers(request.words(), gpus, request.parallel, runs, study.runs, study.folder / "workers")
    else:
        _work(request, study, dataset, device, runs)
    score_study(study)
    write_reports(study, list(experiments))


def work_alone(request: Request) -> None:
    """A worker's part: runs that nobody else is doing, until none is left."""
    _, dataset, device, runs, _, study = _planned(request)
    _work(request, study, dataset, device, runs)


def preview(request: Request) -> str:
    """The runs, with their sizes and estimated times; nothing is written."""
    _, _, device, runs, _, _ = _planned(request)
    return describe_plan(runs, device, len(_gpus(device)) * request.parallel)


def report_again(folder: Path, *, with_scores: bool) -> None:
    """Write the reports of a study, with the scores that were still missing if `with_scores`."""
    study = Study(folder)
    names = study.read()["experiments"]
    if with_scores:
        score_study(study)
    write_reports(study, names)


def describe_all() -> str:
    """The experiments and the scales, a line each."""
    experiments = (f"  {name:<15} {found.title} ({len(found.arms)} arms)" for name, found in EXPERIMENTS.items())
    scales = (f"  {name:<15} {scale.about}" for name, scale in SCALES.items())
    return "\n".join(["experiments:", *experiments, "scales:", *scales])


def _planned(request: Request) -> tuple[Experiments, Dataset, str, list[PlannedRun], Budget, Study]:
    experiments = choose_experiments(request.experiments)
    if request.scale not in SCALES:
        nearest = did_you_mean(request.scale, SCALES)
        raise InputError(f"unknown scale {request.scale!r}{nearest}; one of {', '.join(SCALES)}")
    if request.data is None:
        raise InputError("--data is missing: a DATASET that `deepnmt prepare` wrote")
    for test in request.tests:
        if len(test) < 3:
            raise InputError(f"--test {' '.join(test)}: a test set is NAME SOURCE REFERENCE [REFERENCE ...]")
    dataset, device = Dataset.open(request.data), choose_device(request.device)
    study = Study(request.out or Path("-"))
    budget, runs = _plan(request, choose_arms(experiments, request.arms), study, dataset, device)
    return experiments, dataset, device, runs, budget, study


def _plan(
    request: Request, experiments: Experiments, study: Study, dataset: Dataset, device: str
) -> tuple[Budget, list[PlannedRun]]:
    """The runs, with the budget that the study was started with, if it was."""
    seeds = request.seeds or SCALES[request.scale].seeds

    def planned(budget: Budget) -> list[PlannedRun]:
        return plan_runs(experiments, request.scale, seeds, budget, request.settings, dataset)

    if request.tokens is not None:
        budget = fixed_budget(experiments, request.scale, request.tokens)
        return budget, planned(budget)
    stored = study.read() if (study.folder / "study.json").exists() else None
    timed = any(experiment.equal == "time" for experiment in experiments.values())
    if stored is not None and (stored["seconds"] is not None or not timed):
        budget = Budget(stored["fixed"]["tokens"], stored["seconds"])
    else:
        budget = set_budget(experiments, request.scale, request.minutes, device, planned)
        if stored is not None:
            budget = Budget(stored["fixed"]["tokens"], budget.seconds)
    return budget, planned(budget)


def _begin(request: Request, study: Study, experiments: Experiments, dataset: Dataset, budget: Budget) -> None:
    """Write down what the study is, and its test sets."""
    pair = dataset.tokenizers
    fixed = {
        "scale": request.scale,
        "data": dataset.folder.name,
        "vocabularies": [pair.source.vocab_size, pair.target.vocab_size],
        "pairs": sum(len(corpus) for corpus in dataset.train.values()),
        "settings": list(request.settings),
        "tokens": budget.tokens,
    }
    tests = _tests(request, dataset)
    if not tests and any("scores" in experiment.measures for experiment in experiments.values()):
        raise InputError(f"{dataset.folder} has no test set: prepare it with --test-source, or give one with --test")
    command = f"deepnmt reproduce {shlex.join(request.words())}"
    languages = [pair.source.language, pair.target.language]
    study.begin(fixed, budget.seconds, languages, command, list(experiments))
    study.keep_tests(tests)


def _tests(request: Request, dataset: Dataset) -> list[TestSet]:
    tests = []
    if dataset.test_text is not None:
        source, target = dataset.test_text
        tests.append(TestSet("test", source, [target]))
    for name, source_path, *paths in request.tests:
        lines = read_lines(source_path)
        references = [(path, read_lines(path)) for path in paths]
        check_lengths([(source_path, lines)], references)
        tests.append(TestSet(name, lines, [text for _, text in references]))
    return tests


def _work(request: Request, study: Study, dataset: Dataset, device: str, runs: list[PlannedRun]) -> None:
    scale = SCALES[request.scale]
    setup = Setup(study, scale, dataset, device, request.keep_checkpoints, request.parallel)
    try:
        work(runs, setup, request.stop_after)
    except InterruptedTrainingError:
        raise SystemExit(143) from None  # training said so, and saved


def _gpus(device: str) -> list[str]:
    """The GPUs to use, by their numbers; a CPU counts as one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if device == "cpu":
        return [visible or ""]
    return visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
