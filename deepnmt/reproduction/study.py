"""The folder of a study: request, test sets, runs, and the results and report of each experiment.

DIR/study.json      scale, budget, settings and data, fixed by the first call so that all arms share them
DIR/tests/          the test sets, so that hypotheses can be scored anywhere
DIR/runs/NAME/      train.json, decode.json, scores.json, speed.json, weights.json: each is there when its step is done;
                    hypotheses/; and the large parts, which the report does not need: training/ (a RUN) and model/
DIR/EXPERIMENT/     results.json (everything the report needs), report.md, report.html, charts
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepnmt.errors import InputError
from deepnmt.files import read_json, replacing, write_json, write_text
from deepnmt.text import joined, read_lines

STUDY, TESTS, RUNS = "study.json", "tests", "runs"
TRAINING, MODEL, HYPOTHESES = "training", "model", "hypotheses"
STEPS = ("train", "decode", "scores", "speed", "weights")  # of a run


@dataclass(frozen=True)
class TestSet:
    __test__ = False  # not one of pytest's

    name: str
    source: list[str]
    references: list[list[str]]


@dataclass(frozen=True)
class Study:
    folder: Path

    @property
    def runs(self) -> Path:
        return self.folder / RUNS

    def begin(self, call: dict[str, Any], tests: Sequence[TestSet]) -> None:
        """Write study.json and the test sets; if the folder is a study, check that this call belongs to it, and add it.

        call: the content of study.json for this call alone.
        """
        path, stored = self.folder / STUDY, call
        if path.exists():
            stored = self.read()
        elif self.folder.exists() and not (self.folder.is_dir() and not any(self.folder.iterdir())):
            raise InputError(f"{self.folder} exists and is not a study; choose another --out")
        for name, value in call["fixed"].items():
            before = stored["fixed"].get(name)
            if before != value:
                raise InputError(
                    f"{self.folder} was started with {name} {_plain(before)}, not {_plain(value)}; all arms of a "
                    "study share this; restore it, or choose another --out"
                )
        known = {test.name: test for test in self.tests()}
        for test in tests:
            if known.setdefault(test.name, test) != test:
                raise InputError(f"--test {test.name}: another test set of {self.folder} has that name; choose another")
        for name in ("experiments", "commands"):
            stored[name] = list(dict.fromkeys([*stored[name], *call[name]]))
        stored["seconds"] = call["seconds"] or stored["seconds"]
        write_json(path, stored)
        self.keep_tests(tests)

    def read(self) -> dict[str, Any]:
        path, remedy = self.folder / STUDY, "give the --out folder of an earlier `deepnmt reproduce`"
        return with_keys(read_json(path, remedy), path, "fixed", "seconds", "languages", "experiments", "commands")

    def keep_tests(self, tests: Sequence[TestSet]) -> None:
        """Store those that are not there yet."""
        for test in tests:
            folder = self.folder / TESTS / test.name
            if folder.exists():
                continue
            with replacing(folder) as aside:
                aside.mkdir()
                write_text(aside / "source.txt", joined(test.source))
                for number, lines in enumerate(test.references, start=1):
                    write_text(aside / f"reference-{number}.txt", joined(lines))

    def test_names(self) -> list[str]:
        folder = self.folder / TESTS
        return sorted(path.name for path in folder.glob("[!.]*"))  # the others were left by a kill

    def tests(self) -> list[TestSet]:
        found = []
        for name in self.test_names():
            folder = self.folder / TESTS / name
            paths = sorted(folder.glob("reference-*.txt"), key=lambda path: (len(path.name), path.name))  # by number
            references = [read_lines(path) for path in paths]
            found.append(TestSet(name, read_lines(folder / "source.txt"), references))
        return found

    def translations(self, run: str, test: str) -> Path:
        return self.runs / run / HYPOTHESES / f"{test}.txt"


def read_step(folder: Path, step: str) -> Any:
    """The result of a step, which STEP.json in the folder of its run has; None if it is not done."""
    path = folder / f"{step}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}; remove it to repeat this step") from error


def with_keys(content: dict[str, Any], path: Path, *keys: str) -> dict[str, Any]:
    """The content of a file, if it has these keys."""
    for key in keys:
        if key not in content:
            raise InputError(f"{path} has no {key!r}: it is damaged, or not a file of `deepnmt reproduce`")
    return content


def _plain(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)
