"""`deepnmt score`: every score of one hypothesis file or several, with its signature."""

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

EXAMPLE = "deepnmt score --hypothesis test.out.de --reference test.de --source-lang en --target-lang de"
FILES = {
    "--hypothesis F+": "raw translations, one per line (-: standard input; .gz, .xz, .bz2 unpacked); the first is the "
    "baseline",
    "--reference F+": "one file per reference translation",
}
SCORES = {
    "--source-lang en": "language code of the source",
    "--target-lang de": "language code of the target: selects the tokenisers",
    "--lowercase": "only the case-insensitive variant of every score",
    "--confidence": "add 95 %% intervals by bootstrap resampling",
}
OPTIONS = {
    "--samples N": "number of resamples or trials",
    "--comet": "add COMET if it is installed; needs --source",
    "--source F": "the source text, for --comet",
    "--comet-scores F+": "output of comet-score, one file per hypothesis",
    "--json": "print everything as JSON",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from deepnmt.evaluation.comet import DEFAULT_MODEL
    from deepnmt.evaluation.scores import TESTS

    add_options(parser, FILES, "--hypothesis", "--reference")
    add_metric_options(parser, absent=None)
    add_options(parser, OPTIONS, absent=None)
    add_options(parser, {"--comet-model NAME": f"COMET's model (default: {DEFAULT_MODEL})"}, absent=None)
    text = "how several hypotheses are compared with the first (default: %(default)s)"
    parser.add_argument("--test", choices=[*TESTS, "none"], default="bootstrap", help=text)


def add_metric_options(group: Any, absent: Any = argparse.SUPPRESS) -> None:
    """What `score` and `evaluate` share."""
    from deepnmt.evaluation.metrics import METRICS

    add_options(group, SCORES, absent=absent)
    text = f"only these scores: {', '.join(METRICS)}"
    group.add_argument("--metrics", nargs="+", choices=list(METRICS), default=absent, metavar="NAME", help=text)


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.evaluation.score_files import score_files

    names = ("source_lang", "target_lang", "metrics", "lowercase", "confidence", "samples", "source")
    options = {name: getattr(arguments, name) for name in (*names, "comet", "comet_model", "comet_scores")}
    test = None if arguments.test == "none" else arguments.test
    with _status() as on_metric:
        scored = score_files(arguments.hypothesis, arguments.reference, test=test, on_metric=on_metric, **options)
    notices = list(dict.fromkeys(notice for _, scores in scored for notice in scores.notices))
    if arguments.json:
        print(json.dumps(_report(arguments, scored, notices), ensure_ascii=False, indent=2))
        return
    for notice in notices:
        print(f"note: {notice}", file=sys.stderr)
    _show(arguments, scored)


def _show(arguments: argparse.Namespace, scored: "Scored") -> None:
    from deepnmt.evaluation.table import folded, lines

    named = scored if len(scored) > 1 else [("", scored[0][1])]
    if not sys.stdout.isatty():
        print(lines(named))
        return
    from rich.console import Console
    from rich.text import Text

    width = shutil.get_terminal_size().columns
    console = Console(width=width, highlight=False)
    console.print(Text(_heading(arguments, scored), "dim"), Text(""), folded(named, width), sep="\n", soft_wrap=True)


def _heading(arguments: argparse.Namespace, scored: "Scored") -> str:
    count = len(arguments.reference)
    parts = [f"{scored[0][1].num_lines:,} lines", f"{count} reference{'s' if count > 1 else ''}"]
    if arguments.target_lang:
        source = f"{arguments.source_lang} " if arguments.source_lang else ""
        parts.append(f"{source}→ {arguments.target_lang}")
    if test := _test(arguments):
        parts.append(test["name"])
    if test or arguments.confidence:
        parts.append("[95 % interval]")
    return ", ".join(parts)


def _report(arguments: argparse.Namespace, scored: "Scored", notices: list[str]) -> dict[str, Any]:
    return {
        "deepnmt": __version__,
        "source_lang": arguments.source_lang,
        "target_lang": arguments.target_lang,
        "references": arguments.reference,
        "num_lines": scored[0][1].num_lines,
        "test": _test(arguments),
        "systems": [{"hypothesis": name, "scores": scores.as_dict()} for name, scores in scored],
        "notices": notices,
    }


def _test(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """The test that compared the hypotheses, if one did."""
    from deepnmt.evaluation.scores import TESTS

    if len(arguments.hypothesis) == 1 or arguments.test == "none":
        return None
    test = TESTS[arguments.test]
    return {"name": test.title, "samples": arguments.samples or test.samples, "baseline": arguments.hypothesis[0]}


@contextmanager
def _status() -> "Iterator[Callable[[str], None]]":
    """On a terminal, shows which score is being computed, and leaves nothing behind."""
    if not sys.stderr.isatty():
        yield lambda title: None
        return
    from rich.console import Console

    with Console(stderr=True).status("scoring") as status:
        yield lambda title: status.update(f"scoring: {title}")
