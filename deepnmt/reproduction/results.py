"""All that the report of an experiment needs, gathered from its runs into one file."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepnmt.errors import InputError
from deepnmt.files import write_json
from deepnmt.reproduction.experiment import Arm, Experiment
from deepnmt.reproduction.scales import SCALES, arms_of
from deepnmt.reproduction.study import DECODE, SCORES, SPEED, TRAIN, WEIGHTS, Study, read_step

if TYPE_CHECKING:
    from deepnmt.reproduction.runs import PlannedRun

RESULTS = "results.json"
FAILED = "failed"


def collect(study: Study, name: str, runs: "Sequence[PlannedRun]") -> None:
    """Write DIR/EXPERIMENT/results.json from the steps that are done; seeds of earlier calls stay."""
    about = study.read()
    uses = [(use.label, run) for run in runs for use in run.uses if use.experiment == name]
    found: list[dict[str, Any]] = [{"arm": label, "run": run.name, "seed": run.seed} for label, run in uses]
    if (study.folder / name / RESULTS).exists():
        planned = {(run["arm"], run["seed"]) for run in found}
        before = read_results(study, name)["runs"]
        found += [run for run in before if (run["arm"], run["seed"]) not in planned]
    found = [{**run, **read_run(study.runs / run["run"])} for run in found]
    write_json(study.folder / name / RESULTS, {"experiment": name, **about, "runs": found})


def refresh(study: Study, name: str) -> None:
    """Update the results from the runs' own files (scores computed later), if these still exist."""
    content = read_results(study, name)
    for run in content["runs"]:
        folder = study.runs / run["run"]
        if folder.is_dir():
            run.update(read_run(folder))
    write_json(study.folder / name / RESULTS, content)


def read_run(folder: Path) -> dict[str, Any]:
    steps = {"train": TRAIN, "decode": DECODE, "scores": SCORES, "speed": SPEED, "weights": WEIGHTS}
    return {key: read_step(folder / file) for key, file in steps.items()}


def read_results(study: Study, name: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((study.folder / name / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{study.folder / name} has no readable {RESULTS}: run the experiment first") from error
    return content


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


@dataclass
class ArmResult:
    """The results of an arm: its runs, and its numbers over seeds."""

    arm: Arm
    runs: list[Mapping[str, Any]] = field(default_factory=list)
    worst_bleu: float = 0.0

    @property
    def is_started(self) -> bool:
        return any(run["train"] or run["speed"] for run in self.runs)

    @property
    def seeds(self) -> int:
        """How many runs have been trained, well or not."""
        return sum(run["train"] is not None for run in self.runs)

    @property
    def failures(self) -> list[str]:
        """Why runs failed: what training said, or a score of nothing."""
        reasons = []
        for run in self.runs:
            if run["train"] and run["train"]["status"] == FAILED:
                reasons.append(run["train"]["reason"])
            elif (best := self._best_bleu(run)) is not None and best < self.worst_bleu:
                reasons.append(f"BLEU {best:.2f}")
        return reasons

    def _best_bleu(self, run: Mapping[str, Any]) -> float | None:
        values = [of_test["bleu"]["value"] for of_test in (run["scores"] or {}).values() if "bleu" in of_test]
        return max(values) if values else None

    @property
    def has_failed(self) -> bool:
        """As a whole: more of its seeds failed than not."""
        return self.seeds > 0 and 2 * len(self.failures) > self.seeds

    def score(self, metric: str, test: str | None = None) -> Figure | None:
        """Over the seeds that trained; of one test set, or the mean of all."""
        values = []
        for run in self.runs:
            best = self._best_bleu(run)
            if best is not None and best < self.worst_bleu:
                continue
            found = [
                of_test[metric]["value"]
                for name, of_test in (run["scores"] or {}).items()
                if metric in of_test and test in (None, name)
            ]
            if found:
                values.append(statistics.fmean(found))
        return Figure(tuple(values)) if values else None

    def number(self, step: str, *path: str) -> Figure | None:
        """A number of a step's file, over seeds."""
        values = []
        for run in self.runs:
            value: Any = run[step]
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
            if isinstance(value, int | float):
                values.append(float(value))
        return Figure(tuple(values)) if values else None


def by_arm(content: Mapping[str, Any], experiment: Experiment) -> list[ArmResult]:
    scale = SCALES[content["fixed"]["scale"]]
    results = []
    for arm in arms_of(experiment, scale):
        runs = [run for run in content["runs"] if run["arm"] == arm.label]
        results.append(ArmResult(arm, runs, scale.worst_bleu))
    return results
