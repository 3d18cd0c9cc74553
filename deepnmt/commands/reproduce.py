"""`deepnmt reproduce`: run the paper's experiments, at its scale or a smaller one, and set the numbers side by side."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepnmt.devices import choose_device
from deepnmt.errors import InputError
from deepnmt.progress import say

if TYPE_CHECKING:
    from deepnmt.data.dataset import Dataset
    from deepnmt.model.config import ModelConfig
    from deepnmt.reproduction.experiment import Experiment
    from deepnmt.reproduction.plan import Budget, Load, PlannedRun
    from deepnmt.reproduction.scales import RecipeLike
    from deepnmt.reproduction.steps import Place
    from deepnmt.reproduction.study import Study, TestSet

EXAMPLE = """deepnmt reproduce table1 figure4 --scale multi30k --data DATASET --out STUDY --minutes 20 --parallel 4
  deepnmt reproduce headline --scale europarl --data DATASET --out STUDY --minutes 60 \\
                    --test newstest2014 newstest2014.en newstest2014.de
  deepnmt reproduce --score-only STUDY      (add scores that were not computed where the runs were made)
  deepnmt reproduce --report-only STUDY     (write the reports again)
  deepnmt reproduce --list                  (the experiments and the scales)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "experiments",
        nargs="*",
        metavar="EXPERIMENT",
        help="one or several of --list, and settings for all arms as section.field=value",
    )
    parser.add_argument("--list", action="store_true", help="what there is to reproduce, and at which scales")
    parser.add_argument(
        "--scale", default="full", metavar="NAME", help="full (the paper's), or a smaller one of --list"
    )
    parser.add_argument("--data", type=Path, metavar="DATASET", help="what `deepnmt prepare` wrote")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder of the study; the same call again goes on")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--minutes", type=_positive, metavar="M", help="device time for all runs together")
    size.add_argument("--tokens", type=_count, metavar="N", help="for every run (default: the scale's)")
    parser.add_argument("--stop-after", type=_positive, metavar="M", help="begin no further run after so many minutes")
    parser.add_argument(
        "--arms",
        nargs="+",
        default=[],
        metavar="LABEL",
        help="only these, by their labels in reports, or as 'DLCL *'",
    )
    parser.add_argument("--seeds", type=_count, metavar="N", help="runs of every arm (default: the scale's)")
    parser.add_argument(
        "--test",
        nargs="+",
        action="append",
        default=[],
        metavar="NAME SOURCE REFERENCE",
        help="a further test set with one reference or several, beside the dataset's own",
    )
    parser.add_argument("--parallel", type=_count, default=1, metavar="N", help="runs at a time on one GPU (1)")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda where there is one")
    parser.add_argument("--keep-checkpoints", action="store_true", help="do not remove them once a run has its model")
    parser.add_argument("--dry-run", action="store_true", help="only print the runs, their sizes and estimated times")
    parser.add_argument("--score-only", type=Path, metavar="DIR", help="compute missing scores of a study, and report")
    parser.add_argument("--report-only", type=Path, metavar="DIR", help="write the reports of a study again")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0")
    return number


def run(arguments: argparse.Namespace) -> None:
    if arguments.list:
        _list()
    elif arguments.report_only is not None or arguments.score_only is not None:
        _report_again(arguments)
    else:
        _reproduce(arguments)


def _list() -> None:
    from deepnmt.reproduction.paper import EXPERIMENTS
    from deepnmt.reproduction.scales import SCALES

    print("experiments:")
    for name, experiment in EXPERIMENTS.items():
        print(f"  {name:<15} {experiment.title} ({len(experiment.arms)} arms)")
    print("scales:")
    for name, scale in SCALES.items():
        print(f"  {name:<15} {scale.about}")


def _reproduce(arguments: argparse.Namespace) -> None:
    from deepnmt.commands.study_results import score_study, write_reports
    from deepnmt.data.dataset import Dataset
    from deepnmt.reproduction.plan import choose_arms, choose_experiments, describe_plan
    from deepnmt.reproduction.results import collect
    from deepnmt.reproduction.study import Study
    from deepnmt.reproduction.workers import start_workers

    settings = [text for text in arguments.experiments if "=" in text]
    experiments = choose_experiments([text for text in arguments.experiments if "=" not in text])
    _check(arguments, experiments)
    dataset = Dataset.open(arguments.data)
    device, gpus = _devices(arguments.device)
    study = Study(arguments.out or Path("-"))
    load = _loader(arguments.data, dataset)
    budget, runs = _plan(arguments, choose_arms(experiments, arguments.arms), settings, study, load, device)
    if arguments.dry_run:
        print(describe_plan(runs, device, len(gpus) * arguments.parallel))
        return
    place = _place(arguments, study, dataset, load, device)
    if arguments.worker:
        _work(runs, place, arguments.stop_after)
        return
    _begin(arguments, study, experiments, settings, dataset, budget)
    for name in experiments:
        collect(study, name, runs)  # so that --report-only knows the plan, however early this call ends
    if len(gpus) * arguments.parallel > 1:
        start_workers(_as_argv(arguments), gpus, arguments.parallel, runs, study.runs, study.folder / "workers")
    else:
        _work(runs, place, arguments.stop_after)
    score_study(study)
    write_reports(study, list(experiments))


def _check(arguments: argparse.Namespace, experiments: "dict[str, Experiment]") -> None:
    from deepnmt.reproduction.scales import SCALES
    from deepnmt.settings import did_you_mean

    if not experiments:
        raise InputError("name at least one experiment (deepnmt reproduce --list shows them)")
    if arguments.scale not in SCALES:
        raise InputError(
            f"unknown scale {arguments.scale!r}{did_you_mean(arguments.scale, SCALES)}; one of {', '.join(SCALES)}"
        )
    if arguments.data is None:
        raise InputError("--data is missing: a DATASET that `deepnmt prepare` wrote")
    if arguments.out is None and not arguments.dry_run:
        raise InputError("--out is missing: the folder of the study")
    for test in arguments.test:
        if len(test) < 3:
            raise InputError(f"--test {' '.join(test)}: a test set is NAME SOURCE REFERENCE [REFERENCE ...]")


def _devices(asked: str | None) -> tuple[str, list[str]]:
    """The kind of device, and the GPUs to be used by their numbers (a CPU counts as one)."""
    import os

    import torch

    device = choose_device(asked)
    if device == "cpu":
        return device, [os.environ.get("CUDA_VISIBLE_DEVICES", "")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return device, visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]


def _loader(data: Path, dataset: "Dataset") -> "Load":
    """Recipes with the dataset's vocabularies."""
    from deepnmt.api.train import resolve_recipe

    def load(name: str, overrides: Sequence[str]) -> "RecipeLike":
        return resolve_recipe(name, dataset, overrides)

    return load


def _plan(
    arguments: argparse.Namespace,
    experiments: "dict[str, Experiment]",
    settings: list[str],
    study: "Study",
    load: "Load",
    device: str,
) -> "tuple[Budget, list[PlannedRun]]":
    """The runs, with the budget that the study began with, if it did."""
    from deepnmt.reproduction.plan import Budget, fixed_budget, plan_runs, set_budget
    from deepnmt.reproduction.scales import SCALES

    seeds = arguments.seeds or SCALES[arguments.scale].seeds

    def planned(budget: "Budget") -> "list[PlannedRun]":
        return plan_runs(experiments, arguments.scale, seeds, budget, settings, load)

    if arguments.tokens is not None:
        budget = fixed_budget(experiments, arguments.scale, arguments.tokens)
        return budget, planned(budget)
    stored = study.read() if (study.folder / "study.json").exists() else None
    timed = any(experiment.equal == "time" for experiment in experiments.values())
    if stored is not None and (stored["seconds"] is not None or not timed):
        budget = Budget(stored["fixed"]["tokens"], stored["seconds"])
    else:
        budget = set_budget(experiments, arguments.scale, arguments.minutes, device, planned)
        if stored is not None:
            budget = Budget(stored["fixed"]["tokens"], budget.seconds)
    return budget, planned(budget)


def _begin(
    arguments: argparse.Namespace,
    study: "Study",
    experiments: "dict[str, Experiment]",
    settings: list[str],
    dataset: "Dataset",
    budget: "Budget",
) -> None:
    """Write down what the study is, and its test sets."""
    import shlex

    fixed = {
        "scale": arguments.scale,
        "data": dataset.folder.name,
        "vocabularies": [dataset.tokenizers.source.vocab_size, dataset.tokenizers.target.vocab_size],
        "pairs": sum(len(corpus) for corpus in dataset.train.values()),
        "settings": settings,
        "tokens": budget.tokens,
    }
    command = f"deepnmt reproduce {shlex.join(_as_argv(arguments))}"
    languages = [dataset.tokenizers.source.writing.language, dataset.tokenizers.target.writing.language]
    study.begin(fixed, budget.seconds, languages, command, list(experiments))
    tests = _tests(arguments, dataset)
    if not tests and any("scores" in experiment.measures for experiment in experiments.values()):
        raise InputError(f"{dataset.folder} has no test set: prepare it with --test-source, or give one with --test")
    study.keep_tests(tests)


def _tests(arguments: argparse.Namespace, dataset: "Dataset") -> "list[TestSet]":
    from deepnmt.evaluation.reading import read_lines
    from deepnmt.evaluation.scores import check_lengths
    from deepnmt.reproduction.study import TestSet

    tests = []
    if dataset.test_text is not None:
        source, target = dataset.test_text
        tests.append(TestSet("test", source, [target]))
    for name, source_path, *paths in arguments.test:
        lines = read_lines(source_path)
        references = [(path, read_lines(path)) for path in paths]
        check_lengths([(source_path, lines)], references)
        tests.append(TestSet(name, lines, [text for _, text in references]))
    return tests


def _as_argv(arguments: argparse.Namespace) -> list[str]:
    """The call as words, without what only concerns this process."""
    words = [*arguments.experiments, "--scale", arguments.scale, "--data", str(arguments.data)]
    words += ["--out", str(arguments.out)] if arguments.out else []
    for name in ("minutes", "tokens", "stop-after", "seeds", "device"):
        value = getattr(arguments, name.replace("-", "_"))
        words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)] if value is not None else []
    words += ["--parallel", str(arguments.parallel)] if arguments.parallel > 1 else []
    words += ["--arms", *arguments.arms] if arguments.arms else []
    words += ["--keep-checkpoints"] if arguments.keep_checkpoints else []
    for test in arguments.test:
        words += ["--test", *map(str, test)]
    return words


def _place(
    arguments: argparse.Namespace,
    study: "Study",
    dataset: "Dataset",
    load: "Load",
    device: str,
) -> "Place":
    from deepnmt.analysis.weights import storable_weights
    from deepnmt.reproduction.scales import SCALES
    from deepnmt.reproduction.steps import Place, Tools

    precision = "bf16" if device == "cuda" else "fp32"
    tools = Tools(
        load=load,
        train=_trainer(dataset, device),
        speed=_speedometer(device, precision),
        weights=storable_weights,
    )
    return Place(
        study=study,
        scale=SCALES[arguments.scale],
        tools=tools,
        device=device,
        precision=precision,
        keep_checkpoints=arguments.keep_checkpoints,
        parallel=arguments.parallel,
    )


def _trainer(dataset: "Dataset", device: str) -> "Callable[[RecipeLike, Path], None]":
    from deepnmt.api import train as api

    def train(recipe: "RecipeLike", out: Path) -> None:
        api.train(recipe, dataset, out, resume=True, device=device)  # type: ignore[arg-type]

    return train


def _speedometer(device: str, precision: str) -> "Callable[[ModelConfig], Mapping[str, Any]]":
    """Generation as in the paper's figure 5 and table 5."""
    from deepnmt.analysis.config import Workload
    from deepnmt.analysis.generation_speed import measure_generation
    from deepnmt.reproduction.plan import count_parameters
    from deepnmt.reproduction.steps import describe_machine

    workload = Workload(batch=32, beam=4) if device == "cuda" else Workload(batch=4, beam=4, length=8, repeats=1)

    def measure(model: "ModelConfig") -> Mapping[str, Any]:
        found = measure_generation(model, workload, device=device, precision=precision)
        return {
            **asdict(found),
            "workload": asdict(workload),
            "precision": precision,
            "parameters": count_parameters(model),
            "machine": describe_machine(device),
        }

    return measure


def _work(runs: "list[PlannedRun]", place: "Place", stop_after: float | None) -> None:
    from deepnmt.reproduction.steps import InterruptedTrainingError
    from deepnmt.reproduction.workers import work

    try:
        work(runs, place, say, stop_after)
    except InterruptedTrainingError:
        raise SystemExit(143) from None  # training said so, and what there is was saved


def _report_again(arguments: argparse.Namespace) -> None:
    from deepnmt.commands.study_results import score_study, write_reports
    from deepnmt.reproduction.study import Study

    study = Study(arguments.score_only or arguments.report_only)
    names = study.read()["experiments"]
    if arguments.score_only is not None:
        score_study(study)
    write_reports(study, names)
