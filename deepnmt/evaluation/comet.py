"""COMET, run if it is installed, or read from a file written elsewhere (it needs an older numpy than deepnmt)."""

import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepnmt.errors import InputError
from deepnmt.evaluation.scores import Named, Score, check_lengths
from deepnmt.text import read_lines

DEFAULT_MODEL = "Unbabel/wmt22-comet-da"

_SEGMENT = re.compile(r"\tSegment \d+\tscore: (-?[\d.]+)")


def run_comet(source: str | None, systems: Named, references: Named, model: str) -> list[Score]:
    """The score of each system against the first reference, by the package `comet`."""
    if importlib.util.find_spec("comet") is None:
        raise InputError(
            "COMET is not installed (it needs an older numpy than deepnmt); run"
            " `python -m venv comet && comet/bin/pip install unbabel-comet &&"
            f" comet/bin/comet-score -s SOURCE -t HYPOTHESIS -r REFERENCE --model {model} --to_json comet.json`"
            " and then `deepnmt score ... --comet-scores comet.json`"
        )
    if source is None:
        raise InputError("--comet needs the source text: add --source FILE")
    sources = read_lines(source)
    check_lengths([(source, sources)], references)
    import comet

    scorer = comet.load_from_checkpoint(comet.download_model(model))
    version = importlib.metadata.version("unbabel-comet")
    found = []
    for _, hypotheses in systems:
        texts = zip(sources, hypotheses, references[0][1], strict=True)
        data = [{"src": src, "mt": hypothesis, "ref": reference} for src, hypothesis, reference in texts]
        scores = scorer.predict(data, batch_size=8, gpus=0).scores
        found.append(_score(list(scores), f"model:{model}|version:{version}"))
    return found


def read_comet(files: Sequence[str], systems: Named, model: str | None) -> list[Score]:
    """The mean segment score of a file by `comet-score` (`--to_json` or printed), or of one number per line."""
    if len(files) != len(systems):
        raise InputError(
            f"--comet-scores has {len(files)} files but --hypothesis has {len(systems)}; give one per hypothesis"
        )
    found = []
    for path, (_, hypotheses) in zip(files, systems, strict=True):
        text = "\n".join(read_lines(path))
        scores = _json_scores(path, text) if text.lstrip().startswith("{") else _text_scores(path, text)
        if len(scores) != len(hypotheses):
            raise InputError(
                f"{path} has {len(scores):,} COMET scores and the hypothesis has {len(hypotheses):,} lines"
            )
        found.append(_score(scores, f"model:{model or 'unstated'}|read:{Path(path).name}"))
    return found


def _score(scores: list[float], origin: str) -> Score:
    signature = f"COMET|nrefs:1|segments:{len(scores)}|{origin}"
    return Score(name="COMET", value=sum(scores) / len(scores), signature=signature, decimals=4)


def _json_scores(path: str, text: str) -> list[float]:
    try:
        systems: dict[str, list[dict[str, Any]]] = json.loads(text)
        if len(systems) != 1:
            raise InputError(f"{path} holds {len(systems)} systems: give one file per hypothesis")
        (segments,) = systems.values()
        return [float(segment["COMET"]) for segment in segments]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not output of comet-score --to_json ({error!r})") from error


def _text_scores(path: str, text: str) -> list[float]:
    if printed := _SEGMENT.findall(text):
        return [float(match) for match in printed]
    numbers = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            numbers.append(float(line))
        except ValueError:
            raise InputError(f"{path}, line {number:,}: {line[:40]!r} is not a COMET score") from None
    return numbers
