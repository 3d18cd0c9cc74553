"""`deepnmt score`: every score of one hypothesis file or several, with its signature."""

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from deepnmt import __version__
from deepnmt.errors import InputError

if TYPE_CHECKING:
    from deepnmt.evaluation.scores import Lines, Score, Scores

    Files = Sequence[tuple[str, Lines]]
    Scored = list[tuple[str, Scores]]

EXAMPLE = "deepnmt score --hypothesis test.out.de --reference test.de --source-lang en --target-lang de"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from deepnmt.evaluation.comet import DEFAULT_MODEL
    from deepnmt.evaluation.metrics import METRICS
    from deepnmt.evaluation.significance import TESTS

    parser.add_argument(
        "--hypothesis",
        nargs="+",
        required=True,
        metavar="F",
        help="raw translations, one a line (-: standard input; .gz, .xz, .bz2 unpacked); the first is the baseline",
    )
    parser.add_argument("--reference", nargs="+", required=True, metavar="F", help="one file per reference translation")
    parser.add_argument("--source-lang", metavar="en", help="language code of the source")
    parser.add_argument("--target-lang", metavar="de", help="language code of the target: chooses the tokenisers")
    parser.add_argument("--lowercase", action="store_true", help="only the case-insensitive kind of every score")
    parser.add_argument(
        "--metrics", nargs="+", choices=list(METRICS), metavar="NAME", help=f"only these scores: {', '.join(METRICS)}"
    )
    parser.add_argument("--confidence", action="store_true", help="95 %% intervals by bootstrap resampling")
    parser.add_argument(
        "--test",
        choices=[*TESTS, "none"],
        default="bootstrap",
        help="how several hypotheses are compared with the first (default: %(default)s)",
    )
    parser.add_argument("--samples", type=_samples, metavar="N", help="resamples or trials instead of the usual number")
    parser.add_argument("--comet", action="store_true", help="COMET too, where it is installed; needs --source")
    parser.add_argument("--source", metavar="F", help="the source text, for --comet")
    parser.add_argument("--comet-model", metavar="NAME", help=f"COMET's model (default for --comet: {DEFAULT_MODEL})")
    parser.add_argument(
        "--comet-scores", nargs="+", metavar="F", help="what comet-score wrote elsewhere, one file per hypothesis"
    )
    parser.add_argument("--json", action="store_true", help="everything as JSON on standard output")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.evaluation.reading import read_lines
    from deepnmt.evaluation.scores import check_lengths

    if [*arguments.hypothesis, *arguments.reference, arguments.source].count("-") > 1:
        raise InputError("only one file can be standard input (-)")
    references = [(path, read_lines(path)) for path in arguments.reference]
    systems = [(path, read_lines(path)) for path in arguments.hypothesis]
    check_lengths(systems, references)
    comet = _comet(arguments, systems, references)
    scored = _scored(arguments, systems, [lines for _, lines in references])
    if comet:
        scored = [
            (name, replace(scores, figures={**scores.figures, "comet": figure}))
            for (name, scores), figure in zip(scored, comet, strict=True)
        ]
    notices = list(dict.fromkeys(notice for _, scores in scored for notice in scores.notices))
    if arguments.json:
        print(json.dumps(_report(arguments, scored, notices), ensure_ascii=False, indent=2))
        return
    for notice in notices:
        print(f"note: {notice}", file=sys.stderr)
    _show(arguments, scored)


def _scored(arguments: argparse.Namespace, systems: "Files", references: "list[Lines]") -> "Scored":
    from deepnmt.evaluation.scores import score
    from deepnmt.evaluation.significance import TESTS, compare

    with _status() as on_metric:
        chosen: dict[str, Any] = {
            "source_lang": arguments.source_lang,
            "target_lang": arguments.target_lang,
            "metrics": arguments.metrics,
            "lowercase": arguments.lowercase,
            "on_metric": on_metric,
        }
        if _is_tested(arguments):
            return compare(systems, references, test=arguments.test, samples=arguments.samples, **chosen)
        resamples = (arguments.samples or TESTS["bootstrap"].samples) if arguments.confidence else 0
        return [(path, score(lines, references, resamples=resamples, **chosen)) for path, lines in systems]


def _comet(arguments: argparse.Namespace, systems: "Files", references: "Files") -> "list[Score]":
    """One COMET score a system, or none; before the other scores, because this is where it may have to refuse."""
    from deepnmt.evaluation.comet import DEFAULT_MODEL, check_installed, read_comet, run_comet
    from deepnmt.evaluation.reading import read_lines
    from deepnmt.evaluation.scores import check_lengths

    files = arguments.comet_scores
    if files:
        if len(files) != len(systems):
            raise InputError(
                f"--comet-scores has {len(files)} files and --hypothesis {len(systems)}: give one for each"
            )
        return [
            read_comet(file, len(lines), arguments.comet_model) for file, (_, lines) in zip(files, systems, strict=True)
        ]
    if not arguments.comet:
        return []
    model = arguments.comet_model or DEFAULT_MODEL
    check_installed(model)
    if arguments.source is None:
        raise InputError("--comet needs the source text: add --source FILE")
    source = read_lines(arguments.source)
    check_lengths([(arguments.source, source)], references)
    return [run_comet(source, lines, references[0][1], model) for _, lines in systems]


def _show(arguments: argparse.Namespace, scored: "Scored") -> None:
    from deepnmt.evaluation.table import lines, rich_table

    named = scored if len(scored) > 1 else [("", scored[0][1])]
    if not sys.stdout.isatty():
        print(lines(named))
        return
    from rich.console import Console
    from rich.text import Text

    width = shutil.get_terminal_size().columns
    console = Console(width=width, highlight=False)
    console.print(
        Text(_heading(arguments, scored), "dim"), Text(""), rich_table(named, width), sep="\n", soft_wrap=True
    )


def _heading(arguments: argparse.Namespace, scored: "Scored") -> str:
    count = len(arguments.reference)
    parts = [f"{scored[0][1].num_lines:,} lines", f"{count} reference{'s' if count > 1 else ''}"]
    if arguments.target_lang:
        source = f"{arguments.source_lang} " if arguments.source_lang else ""
        parts.append(f"{source}→ {arguments.target_lang}")
    if _is_tested(arguments):
        parts.append(_test(arguments)["name"])
    if _is_tested(arguments) or arguments.confidence:
        parts.append("[95 % interval]")
    return ", ".join(parts)


def _report(arguments: argparse.Namespace, scored: "Scored", notices: list[str]) -> dict[str, Any]:
    return {
        "deepnmt": __version__,
        "source_lang": arguments.source_lang,
        "target_lang": arguments.target_lang,
        "references": arguments.reference,
        "num_lines": scored[0][1].num_lines,
        "test": _test(arguments) if _is_tested(arguments) else None,
        "systems": [{"hypothesis": name, "scores": scores.as_dict()} for name, scores in scored],
        "notices": notices,
    }


def _is_tested(arguments: argparse.Namespace) -> bool:
    return len(arguments.hypothesis) > 1 and arguments.test != "none"


def _test(arguments: argparse.Namespace) -> dict[str, Any]:
    from deepnmt.evaluation.significance import TESTS

    test = TESTS[arguments.test]
    return {"name": test.title, "samples": arguments.samples or test.samples, "baseline": arguments.hypothesis[0]}


@contextmanager
def _status() -> "Iterator[Callable[[str], None]]":
    """Says on a terminal which score is being computed, and leaves nothing behind."""
    if not sys.stderr.isatty():
        yield lambda title: None
        return
    from rich.console import Console

    with Console(stderr=True).status("scoring") as status:
        yield lambda title: status.update(f"scoring: {title}")


def _samples(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 1")
    return int(text)
