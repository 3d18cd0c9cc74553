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
TRAIN, DECODE, SCORES, SPEED, WEIGHTS = "train.json", "decode.json", "scores.json", "speed.json", "weights.json"


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

    def begin(
        self,
        fixed: dict[str, Any],
        seconds: float | None,
        languages: Sequence[str | None],
        command: str,
        experiments: Sequence[str],
    ) -> None:
        """Write study.json, or check that this call belongs to the study in the folder."""
        path = self.folder / STUDY
        new: dict[str, Any] = {
            "fixed": fixed,
            "seconds": seconds,
            "languages": list(languages),
            "experiments": [],
            "commands": [],
        }
        stored = self.read() if path.exists() else new
        if not path.exists() and self.folder.is_dir() and any(self.folder.iterdir()):
            raise InputError(f"{self.folder} is not empty and is not a study; choose another --out")
        for name, value in fixed.items():
            before = stored["fixed"].get(name)
            if before != value:
                raise InputError(
                    f"{self.folder} was started with {name} {_plain(before)}, not {_plain(value)}; all arms of a "
                    "study share this; restore it, or choose another --out"
                )
        stored["experiments"] = list(dict.fromkeys([*stored["experiments"], *experiments]))
        stored["commands"] = list(dict.fromkeys([*stored["commands"], command]))
        stored["seconds"] = stored["seconds"] if seconds is None else seconds
        write_json(path, stored)

    def read(self) -> dict[str, Any]:
        return read_json(self.folder / STUDY, "give the --out folder of an earlier `deepnmt reproduce`")

    def keep_tests(self, tests: Sequence[TestSet]) -> None:
        """Store test sets; an existing one of the same name must be equal."""
        for test in tests:
            folder = self.folder / TESTS / test.name
            if folder.exists():
                if self.test(test.name) != test:
                    raise InputError(f"--test {test.name}: {folder} has a different test set of that name")
                continue
            with replacing(folder) as aside:
                aside.mkdir()
                write_text(aside / "source.txt", joined(test.source))
                for number, lines in enumerate(test.references, start=1):
                    write_text(aside / f"reference-{number}.txt", joined(lines))

    def test(self, name: str) -> TestSet:
        folder = self.folder / TESTS / name
        references = [read_lines(path) for path in sorted(folder.glob("reference-*.txt"))]
        return TestSet(name, read_lines(folder / "source.txt"), references)

    def tests(self) -> list[TestSet]:
        folder = self.folder / TESTS
        return [self.test(path.name) for path in sorted(folder.iterdir())] if folder.is_dir() else []


def read_step(path: Path) -> Any:
    """The result of a step, or None if it is not done."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _plain(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)
