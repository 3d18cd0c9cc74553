"""The scores of a study's translations: a step of its own, apart from the device that made them, and anywhere."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deepnmt.files import write_json
from deepnmt.reproduction.study import HYPOTHESES, SCORES, TestSet, read_step


class NotInstalledError(Exception):
    """A score needs a package that is not here; it can be computed later from the hypotheses."""


# Hypotheses, reference sets and one metric -> the figure with its signature.
Score = Callable[[Sequence[str], Sequence[Sequence[str]], str], Mapping[str, Any]]


def score_run(folder: Path, tests: Sequence[TestSet], metrics: Sequence[str], score: Score) -> list[str]:
    """Compute the scores that are missing, where the hypotheses are there; returns what cannot be computed here."""
    scores: dict[str, Any] = read_step(folder / SCORES) or {}
    missing: list[str] = []
    before = json.dumps(scores)
    for test in tests:
        path = folder / HYPOTHESES / f"{test.name}.txt"
        if not path.exists():
            continue
        hypotheses = path.read_text(encoding="utf-8").split("\n")[:-1]
        of_test = scores.setdefault(test.name, {})
        for metric in metrics:
            if metric in of_test:
                continue
            try:
                of_test[metric] = dict(score(hypotheses, test.references, metric))
            except NotInstalledError:
                missing.append(metric)
    if json.dumps(scores) != before or not (folder / SCORES).exists():
        write_json(folder / SCORES, scores)
    return missing
