"""The results of an experiment, collected from its runs into one file for the report."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deepnmt.errors import InputError
from deepnmt.files import read_json, write_json
from deepnmt.reproduction.experiment import EXPERIMENTS, Arm, Experiment
from deepnmt.reproduction.runs import PlannedRun
from deepnmt.reproduction.scales import SCALES
from deepnmt.reproduction.study import STEPS, Study, read_step, with_keys
from deepnmt.settings import from_table

RESULTS = "results.json"
FAILED = "failed"


def collect(study: Study, name: str, experiment: Experiment, runs: Sequence[PlannedRun]) -> None:
    """Write DIR/EXPERIMENT/results.json with the runs of this call, keeping those of earlier calls.

    An arm whose settings have changed since, in a user's file, loses its earlier runs.
    """
    found = [
        {"arm": label, "run": run.name, "seed": run.seed, **dict.fromkeys(STEPS)}
        for run in runs
        for experiment_name, label in run.uses
        if experiment_name == name
    ]
    if (study.folder / name / RESULTS).exists():
        before = read_results(study, name)["runs"]
        planned = {(run["arm"], run["seed"]): run["run"] for run in found}
        changed = {run["arm"] for run in before if planned.get((run["arm"], run["seed"]), run["run"]) != run["run"]}
        found += [run for run in before if run["arm"] not in changed and (run["arm"], run["seed"]) not in planned]
    own = {} if name in EXPERIMENTS else {"definition": asdict(experiment)}
    write_json(study.folder / name / RESULTS, {"experiment": name, **own, **study.read(), "runs": found})
    refresh(study, name)


def refresh(study: Study, name: str) -> dict[str, Any]:
    """Update the results from the files of the runs, if these still exist, and return them."""
    content = read_results(study, name)
    for run in content["runs"]:
        folder = study.runs / run["run"]
        if folder.is_dir():
            run.update({step: read_step(folder, step) for step in STEPS})
    if cost := read_step(study.folder / name, "cost"):  # what benchmarks/depth.py measured, if it was copied there
        content["cost"] = _costs(cost)
    write_json(study.folder / name / RESULTS, content)
    return content


def _costs(cost: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The mean time and the least memory of each arm (a process keeps some of the arm before), over the reference's."""
    found: dict[str, dict[str, float]] = {}
    for label in dict.fromkeys(row["arm"] for row in cost["rows"]):
        if rows := [row for row in cost["rows"] if row["arm"] == label and "error" not in row]:
            found[label] = {
                "milliseconds_per_step": statistics.fmean(row["milliseconds_per_step"] for row in rows),
                "memory_gib": min(row["memory_gib"] for row in rows),
            }
    plain = found.get(cost["reference"], {})
    for own in found.values():
        own |= {f"{key}_ratio": own[key] / plain[key] for key in list(own) if plain}
    return found


def read_results(study: Study, name: str) -> dict[str, Any]:
    path = study.folder / name / RESULTS
    return with_keys(read_json(path, "run the experiment first"), path, "experiment", "fixed", "commands", "runs")


def experiment_in(content: Mapping[str, Any]) -> Experiment:
    """The experiment that these results are of: a user's as it was run, or one of ours."""
    if "definition" in content:
        return from_table(Experiment, content["definition"])
    if content["experiment"] not in EXPERIMENTS:
        raise InputError(f"the results are of {content['experiment']!r}, an experiment that this version does not have")
    return EXPERIMENTS[content["experiment"]]


@dataclass(frozen=True)
class Figure:
    """A number over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; zero for one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.spread:.2f}" if len(self.values) > 1 else f"{self.mean:.2f}"


@dataclass(frozen=True)
class ArmResult:
    """The results of an arm: its runs, and its numbers over seeds."""

    arm: Arm
    runs: list[Mapping[str, Any]]
    worst_bleu: float
    tests: frozenset[str]  # of the experiment
    cost: Mapping[str, float] | None = None  # of a training step on an idle device
    p_value: float | None = None  # of the difference from the first arm of its group

    @property
    def is_started(self) -> bool:
        return any(run["train"] or run["speed"] for run in self.runs)

    @property
    def trained(self) -> list[Mapping[str, Any]]:
        """The training result of each seed, successful or not."""
        return [run["train"] for run in self.runs if run["train"]]

    @property
    def num_seeds(self) -> int:
        """The seeds that the figures are about: scored or failed; or else trained."""
        finished = [run for run in self.runs if self._failure(run) or run["scores"]]
        return len(finished or self.trained)

    @property
    def failures(self) -> list[str]:
        """The reasons why runs failed: the error of training, or a score near zero."""
        return [reason for run in self.runs if (reason := self._failure(run))]

    def _failure(self, run: Mapping[str, Any]) -> str:
        if run["train"] and run["train"]["status"] == FAILED:
            return str(run["train"]["reason"])
        bleu = [of_test["bleu"]["value"] for of_test in (run["scores"] or {}).values() if "bleu" in of_test]
        return f"BLEU {max(bleu):.2f}" if bleu and max(bleu) < self.worst_bleu else ""

    @property
    def has_failed(self) -> bool:
        """True if most of its seeds failed."""
        return 2 * len(self.failures) > len(self.trained) > 0

    @property
    def successes(self) -> dict[int, Mapping[str, Any]]:
        """The runs that were started and have not failed, by seed."""
        started = [run for run in self.runs if run["train"] or run["speed"]]
        return {run["seed"]: run for run in started if not self._failure(run)}

    def by_seed(self, metric: str, test: str | None = None) -> dict[int, float]:
        """The score of each successful seed, on one test set or averaged over all; without seeds that lack one."""
        found = {}
        for seed, run in self.successes.items():
            scores = {name: of_test[metric] for name, of_test in (run["scores"] or {}).items() if metric in of_test}
            wanted = self.tests if test is None else {test}
            if scores and wanted <= scores.keys():
                found[seed] = statistics.fmean(scores[name]["value"] for name in sorted(wanted))
        return found

    def score(self, metric: str, test: str | None = None) -> Figure | None:
        found = self.by_seed(metric, test)
        return Figure(tuple(found.values())) if found else None

    def number(self, step: str, *path: str) -> Figure | None:
        """A number from a step's file, over the successful seeds; over all if none was successful."""
        values = []
        for run in self.successes.values() or self.runs:
            value: Any = run[step]
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
            if isinstance(value, int | float):
                values.append(float(value))
        return Figure(tuple(values)) if values else None


def on_shared_seeds(ours: ArmResult, theirs: ArmResult, metric: str) -> tuple[Figure, Figure] | None:
    """The scores of two arms over the seeds that both have, seed by seed."""
    first, second = ours.by_seed(metric), theirs.by_seed(metric)
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    return Figure(tuple(first[seed] for seed in seeds)), Figure(tuple(second[seed] for seed in seeds))


def by_arm(content: Mapping[str, Any], experiment: Experiment) -> list[ArmResult]:
    scale = SCALES[content["fixed"]["scale"]]
    costs, p_values = content.get("cost", {}), content.get("p_values", {})
    tests = frozenset(test for run in content["runs"] for test in run["scores"] or {})
    return [
        ArmResult(
            arm,
            [run for run in content["runs"] if run["arm"] == arm.label],
            scale.worst_bleu,
            tests,
            costs.get(arm.label),
            p_values.get(arm.label),
        )
        for arm in scale.arms(experiment)
    ]
