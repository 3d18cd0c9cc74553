"""The scores, p-values and reports of a study, which need no GPU."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from deepnmt import devices
from deepnmt.data.worker_pool import WorkerPool
from deepnmt.evaluation.metrics import Languages, build, choose
from deepnmt.evaluation.paired_tests import Values, bootstrap_p, resample
from deepnmt.evaluation.scores import score
from deepnmt.files import write_json, write_text
from deepnmt.progress import progress, say
from deepnmt.reproduction.blocks import write_report
from deepnmt.reproduction.experiment import Experiment
from deepnmt.reproduction.report import report
from deepnmt.reproduction.results import RESULTS, ArmResult, by_arm, experiment_in, read_results, refresh
from deepnmt.reproduction.study import HYPOTHESES, Study, read_step
from deepnmt.text import joined, read_lines


def score_study(study: Study) -> None:
    """Compute missing scores from the study's folder alone, of several runs at a time (TER takes a minute)."""
    about = study.read()
    suitable = choose(Languages(*about["languages"]))
    wanted = [experiment_in(read_results(study, name)).metric for name in about["experiments"]]
    names = [name for name in dict.fromkeys([*wanted, *suitable]) if name in suitable]
    folders = [path for path in sorted(study.runs.glob("*")) if (path / HYPOTHESES).is_dir()]
    score_run = partial(_score_run, study, names, about["languages"])
    missing: set[str] = set()
    with (
        progress("score", total=len(folders), unit="runs") as shown,
        WorkerPool(min(devices.available_cores(), len(folders))) as workers,
    ):
        for not_installed in workers.in_order(score_run, folders):
            missing |= set(not_installed)
            shown.advance()
    if missing:
        say(f"not computed, because packages are missing: {', '.join(sorted(missing))}")


def _score_run(study: Study, names: Sequence[str], languages: Sequence[str | None], folder: Path) -> list[str]:
    """Return the metrics whose packages are not installed; they can be computed later."""
    scores: dict[str, Any] = read_step(folder, "scores") or {}
    missing = []
    for test in study.tests():
        path = study.translations(folder.name, test.name)
        if not path.exists():
            continue
        hypotheses = read_lines(path)
        of_test = scores.setdefault(test.name, {})
        for name in names:
            if name in of_test:
                continue
            try:
                found = score(hypotheses, test.references, *languages, metrics=[name])[name]
            except ImportError:
                missing.append(name)
                continue
            of_test[name] = {"name": found.name, "value": round(found.value, 4), "signature": found.signature}
    write_json(folder / "scores.json", scores)
    return missing


def add_p_values(study: Study, name: str) -> None:
    """Add p-values of the table's metric to the results, if the translations of the runs are here; else keep them.

    They tell whether two arms differ by more than the choice of test sentences explains.
    """
    content = read_results(study, name)
    experiment, tests = experiment_in(content), study.tests()
    arms = by_arm(content, experiment)
    translated = {arm.arm.label: _translated(study, arm, experiment.metric) for arm in arms}
    folders = {folder for seeds in translated.values() for folder in seeds.values()}
    if not folders:
        return
    try:
        metric = build([experiment.metric], Languages(*content["languages"]))[experiment.metric]
    except ImportError:
        return  # computed where its package was installed, like the scores
    scores: dict[str, Values] = {}
    with progress("resample", total=len(folders), unit="runs") as shown:
        for folder in sorted(folders):
            of_tests = [
                resample(metric, read_lines(study.translations(folder, test.name)), test.references, number)
                for number, test in enumerate(tests)
            ]
            scores[folder] = np.mean(of_tests, axis=0)
            shown.advance()

    p_values = {}
    for key, ours, theirs in _comparisons(arms, experiment):
        seeds = translated[ours].keys() & translated[theirs].keys()
        if seeds:
            apart = [scores[translated[ours][seed]] - scores[translated[theirs][seed]] for seed in sorted(seeds)]
            observed, *drawn = np.mean(apart, axis=0)
            p_values[key] = bootstrap_p(observed, np.array(drawn))
    write_json(study.folder / name / RESULTS, {**content, "p_values": p_values})


def _comparisons(arms: list[ArmResult], experiment: Experiment) -> Iterator[tuple[str, str, str]]:
    """Every arm with the first of its group, and the arms of every claim; each with its name in the results."""
    labels = [arm.arm.label for arm in arms]
    for arm in arms:
        reference = next(other.arm.label for other in arms if other.arm.group == arm.arm.group)
        if arm.arm.label != reference:
            yield arm.arm.label, arm.arm.label, reference
    for claim in experiment.claims:
        if claim.better in labels and claim.worse in labels:
            yield claim.text, claim.better, claim.worse


def _translated(study: Study, arm: ArmResult, metric: str) -> dict[int, str]:
    """The runs whose scores are in the table and whose translations are here, by seed."""
    folders = {seed: arm.successes[seed]["run"] for seed in arm.by_seed(metric)}
    return {
        seed: folder
        for seed, folder in folders.items()
        if all(study.translations(folder, test).is_file() for test in study.test_names())
    }


def write_reports(study: Study, names: Sequence[str]) -> None:
    """Write a report for each of these experiments, and an index of all."""
    for name in names:
        experiment = experiment_in(refresh(study, name))
        if experiment.shows_significance:
            add_p_values(study, name)
        write_report(study.folder / name, experiment.title, report(read_results(study, name), experiment))
        say(f"{study.folder / name / 'report.md'}, report.html")
    written = [name for name in study.read()["experiments"] if (study.folder / name / "report.md").exists()]
    titles = {name: experiment_in(read_results(study, name)).title for name in written}
    lines = [f"- [{title}]({name}/report.md) ([HTML]({name}/report.html))" for name, title in titles.items()]
    write_text(study.folder / "index.md", "# Reports\n\n" + joined(lines))
