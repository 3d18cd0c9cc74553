"""COMET, which needs an older numpy than we do: run where it is installed, or read from the file it wrote elsewhere."""

import importlib.metadata
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from deepnmt.errors import InputError
from deepnmt.evaluation.scores import Lines, Score
from deepnmt.text import read_lines

DEFAULT_MODEL = "Unbabel/wmt22-comet-da"

_SEGMENT = re.compile(r"\tSegment \d+\tscore: (-?[\d.]+)")


def how_to_run(model: str) -> str:
    return (
        "COMET is not installed here (it needs an older numpy than deepnmt): run"
        " `python -m venv comet && comet/bin/pip install unbabel-comet &&"
        f" comet/bin/comet-score -s SOURCE -t HYPOTHESIS -r REFERENCE --model {model} --to_json comet.json`"
        " and give its file to `deepnmt score` with --comet-scores comet.json"
    )


def check_installed(model: str) -> None:
    if importlib.util.find_spec("comet") is None:
        raise InputError(how_to_run(model))


def run_comet(sources: Lines, hypotheses: Lines, references: Lines, model: str) -> Score:
    """The system score, where the package `comet` can be imported."""
    check_installed(model)
    import comet

    data = [
        {"src": source, "mt": hypothesis, "ref": reference}
        for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True)
    ]
    predicted = comet.load_from_checkpoint(comet.download_model(model)).predict(data, batch_size=8, gpus=0)
    version = importlib.metadata.version("unbabel-comet")
    return _score(list(predicted.scores), f"model:{model}|version:{version}")


def read_comet(path: str, num_lines: int, model: str | None) -> Score:
    """The mean of the segment scores in what `comet-score` wrote (`--to_json` or printed), or of one number a line."""
    text = "\n".join(read_lines(path))
    scores = _json_scores(path, text) if text.lstrip().startswith("{") else _text_scores(path, text)
    if len(scores) != num_lines:
        raise InputError(f"{path} has {len(scores):,} COMET scores and the hypothesis has {num_lines:,} lines")
    return _score(scores, f"model:{model or 'unstated'}|read:{Path(path).name}")


def _score(scores: list[float], origin: str) -> Score:
    return Score(
        name="COMET",
        value=sum(scores) / len(scores),
        signature=f"COMET|nrefs:1|segments:{len(scores)}|{origin}",
        decimals=4,
    )


def _json_scores(path: str, text: str) -> list[float]:
    try:
        systems: dict[str, list[dict[str, Any]]] = json.loads(text)
        if len(systems) != 1:
            raise InputError(f"{path} holds {len(systems)} systems: give one file per hypothesis")
        (segments,) = systems.values()
        return [float(segment["COMET"]) for segment in segments]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not what comet-score --to_json writes ({error!r})") from error


def _text_scores(path: str, text: str) -> list[float]:
    printed = [float(match) for match in _SEGMENT.findall(text)]
    if printed:
        return printed
    numbers = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            numbers.append(float(line))
        except ValueError:
            raise InputError(f"{path}, line {number:,}: {line[:40]!r} is not a COMET score") from None
    return numbers
