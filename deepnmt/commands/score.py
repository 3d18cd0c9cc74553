"""`deepnmt score`: scores of one or several files of translations, with their signatures."""

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from deepnmt import __version__
from deepnmt.commands.options import add_options

if TYPE_CHECKING:
    from deepnmt.evaluation.scores import Scores

    Scored = list[tuple[str, Scores]]

EXAMPLE = """deepnmt score --hypothesis test.out.de --reference test.de \\
      --source-lang en --target-lang de"""
FILES = {
    "--hypothesis FILE+": "raw translations, one per line; of several files, the first is the baseline (-: standard "
    "input)",
    "--reference FILE+": "reference translation; several files are several references",
}
SCORES = {
    "--source-lang CODE": "source language, such as en",
    "--target-lang CODE": "target language, such as de; selects the tokenisers",
    "--lowercase": "compute the case-insensitive variant of every score",
    "--confidence": "add 95 %% confidence intervals by bootstrap resampling",
}
OPTIONS = {
    "--comet": "add COMET, if it is installed; needs --source",
    "--source FILE": "source text, for --comet",
    "--comet-scores FILE+": "output of comet-score, one file per hypothesis",
    "--json": "print everything as JSON",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from deepnmt.evaluation.comet import DEFAULT_MODEL
    from deepnmt.evaluation.scores import TESTS

    add_options(parser, FILES, "--hypothesis", "--reference")
    samples = " or ".join(f"{test.samples:,}" for test in TESTS.values())
    add_options(parser, metric_options(), absent=None)
    text = "significance test between the baseline and each other file (default: %(default)s)"
    parser.add_argument("--test", choices=[*TESTS, "none"], default="bootstrap", help=text)
    text = f"number of bootstrap resamples or randomisation trials (default: {samples})"
    add_options(parser, {"--samples N": text} | OPTIONS, absent=None)
    add_options(parser, {"--comet-model NAME": f"COMET model (default: {DEFAULT_MODEL})"}, absent=None)


def metric_options() -> dict[str, str]:
    """The options that `score` and `evaluate` share."""
    from deepnmt.evaluation.metrics import METRICS

    return SCORES | {f"--metrics {{{','.join(METRICS)}}}+": f"compute only these scores: {', '.join(METRICS)}"}


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.evaluation.score_files import score_files
    from deepnmt.evaluation.scores import TESTS

    options = vars(arguments)
    hypotheses, references, as_json = (options.pop(name) for name in ("hypothesis", "reference", "json"))
    options["test"] = test = None if arguments.test == "none" else arguments.test
    with _status() as on_metric:
        scored = score_files(hypotheses, references, on_metric=on_metric, **options)
    report = {
        "deepnmt": __version__,
        "source_lang": arguments.source_lang,
        "target_lang": arguments.target_lang,
        "references": references,
        "num_lines": scored[0][1].num_lines,
        "test": None,
        "systems": [{"hypothesis": name, "scores": scores.as_dict()} for name, scores in scored],
        "notices": list(dict.fromkeys(notice for _, scores in scored for notice in scores.notices)),
    }
    if test and len(hypotheses) > 1:
        samples = arguments.samples or TESTS[test].samples
        report["test"] = {"name": TESTS[test].title, "samples": samples, "baseline": hypotheses[0]}
    if as_json:
        print(json.dumps(report, ensure_ascii=False, indent=2))
        return
    for notice in report["notices"]:
        print(f"note: {notice}", file=sys.stderr)
    _show(report, scored, bool(arguments.confidence))


def _show(report: dict[str, Any], scored: "Scored", confidence: bool) -> None:
    from deepnmt.evaluation.table import folded, lines

    named = scored if len(scored) > 1 else [("", scored[0][1])]
    if not sys.stdout.isatty():
        print(lines(named))
        return
    from rich.console import Console
    from rich.text import Text

    width = shutil.get_terminal_size().columns
    console = Console(width=width, highlight=False)
    console.print(Text(_heading(report, confidence), "dim"), Text(""), folded(named, width), sep="\n", soft_wrap=True)


def _heading(report: dict[str, Any], confidence: bool) -> str:
    count, source, target = len(report["references"]), report["source_lang"], report["target_lang"]
    parts = [f"{report['num_lines']:,} lines", f"{count} reference{'s' if count > 1 else ''}"]
    if target:
        parts.append(f"{source} → {target}" if source else f"→ {target}")
    if report["test"]:
        parts.append(report["test"]["name"])
    if report["test"] or confidence:
        parts.append("[95 % interval]")
    return ", ".join(parts)


@contextmanager
def _status() -> "Iterator[Callable[[str], None]]":
    """Show which score is being computed, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda title: None
        return
    from rich.console import Console

    with Console(stderr=True).status("scoring") as status:
        yield lambda title: status.update(f"scoring: {title}")
