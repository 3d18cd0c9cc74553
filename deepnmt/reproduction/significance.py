"""Whether an arm differs from the first of its group by more than the choice of test sentences explains."""

from collections.abc import Sequence

from deepnmt.evaluation.metrics import Languages
from deepnmt.evaluation.seeds import SeedScores, seeds_p_value
from deepnmt.files import write_json
from deepnmt.progress import progress
from deepnmt.reproduction.experiment import EXPERIMENTS
from deepnmt.reproduction.results import RESULTS, ArmResult, by_arm, read_results
from deepnmt.reproduction.study import HYPOTHESES, Study, TestSet
from deepnmt.text import read_lines

METRIC = "bleu"


def add_p_values(study: Study, name: str) -> None:
    """Write into the experiment's results what the translations of its runs say; without these it stays as it is."""
    content = read_results(study, name)
    arms, tests = by_arm(content, EXPERIMENTS[name]), study.tests()
    translated = {arm.arm.label: _translated(study, arm, tests) for arm in arms}
    if not any(translated.values()):
        return
    languages = Languages(*content["languages"])

    def scores(label: str, seeds: Sequence[int], test: TestSet) -> SeedScores:
        paths = [study.runs / translated[label][seed] / HYPOTHESES / f"{test.name}.txt" for seed in seeds]
        return SeedScores([read_lines(path) for path in paths], test.references, languages, METRIC)

    p_values = {}
    with progress("significance", total=len(arms), unit="arms") as shown:
        for arm in arms:
            label = arm.arm.label
            reference = next(other.arm.label for other in arms if other.arm.group == arm.arm.group)
            seeds = sorted(translated[label].keys() & translated[reference].keys())
            if seeds and label != reference:
                p_values[label] = seeds_p_value(
                    [(scores(reference, seeds, test), scores(label, seeds, test)) for test in tests]
                )
            shown.advance()
    write_json(study.folder / name / RESULTS, {**content, "p_values": p_values})


def _translated(study: Study, arm: ArmResult, tests: Sequence[TestSet]) -> dict[int, str]:
    """The runs that have translated every test set, by seed."""
    folders = {run["seed"]: run["run"] for run in arm.runs}
    return {
        seed: folder
        for seed, folder in folders.items()
        if all((study.runs / folder / HYPOTHESES / f"{test.name}.txt").is_file() for test in tests)
    }
