"""Whether two arms differ by more than the choice of test sentences explains."""

from collections.abc import Iterator

import numpy as np

from deepnmt.evaluation.metrics import Languages, build
from deepnmt.evaluation.paired_tests import Values, bootstrap_p, resample
from deepnmt.files import write_json
from deepnmt.progress import progress
from deepnmt.reproduction.experiment import Experiment
from deepnmt.reproduction.results import RESULTS, ArmResult, by_arm, experiment_in, read_results
from deepnmt.reproduction.study import Study, TestSet
from deepnmt.text import read_lines


def add_p_values(study: Study, name: str) -> None:
    """Add p-values to the experiment's results, from the translations of its runs; without these nothing changes.

    They are about the metric of its table or, as there, about BLEU while not every run has that metric.
    """
    content = read_results(study, name)
    experiment, tests = experiment_in(content), study.tests()
    arms = by_arm(content, experiment)
    translated = {arm.arm.label: _translated(study, arm, tests) for arm in arms}
    folders = {folder for seeds in translated.values() for folder in seeds.values()}
    scored = [of_test for run in content["runs"] if run["run"] in folders for of_test in (run["scores"] or {}).values()]
    kind = experiment.metric if all(experiment.metric in of_test for of_test in scored) else "bleu"
    try:
        metric = build([kind], Languages(*content["languages"]))[kind]
    except ImportError:
        return  # its p-values were computed where its package is installed, like its scores
    if not folders:
        return
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


def _translated(study: Study, arm: ArmResult, tests: list[TestSet]) -> dict[int, str]:
    """The successful runs that have translated every test set, by seed."""
    folders = {seed: run["run"] for seed, run in arm.successes.items()}
    return {
        seed: folder
        for seed, folder in folders.items()
        if all(study.translations(folder, test.name).is_file() for test in tests)
    }
