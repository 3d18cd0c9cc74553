"""`deepnmt evaluate`: translate a test set and score the translations, with everything that made the figures."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepnmt.commands.translate import (
    Warnings,
    add_machine_arguments,
    add_sampling_arguments,
    add_search_arguments,
    limit_shape_caches,
    load_translator,
    one_line,
    settings_of,
)
from deepnmt.errors import InputError

if TYPE_CHECKING:
    from deepnmt.decoding.translator import Translator
    from deepnmt.evaluation.scores import Scores

EXAMPLE = "deepnmt evaluate MODEL --source newstest2014.en --reference newstest2014.de --output newstest2014.out.de"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from deepnmt.evaluation.metrics import METRICS

    parser.add_argument("model", nargs="+", type=Path, metavar="MODEL", help="a model folder; several are an ensemble")
    parser.add_argument("--source", required=True, metavar="F", help="raw text, one sentence a line")
    parser.add_argument("--reference", required=True, nargs="+", metavar="F", help="its raw translation, or several")
    parser.add_argument("--output", type=Path, metavar="F", help="keep the translations here")
    parser.add_argument("--json", action="store_true", help="everything as JSON on standard output")
    group = parser.add_argument_group("scores")
    group.add_argument("--source-lang", metavar="en", help="language code (default: the model's)")
    group.add_argument("--target-lang", metavar="de", help="language code (default: the model's)")
    group.add_argument("--lowercase", action="store_true", help="only the case-insensitive kind of every score")
    group.add_argument(
        "--metrics", nargs="+", choices=list(METRICS), metavar="NAME", help=f"only these: {', '.join(METRICS)}"
    )
    group.add_argument("--confidence", action="store_true", help="95 %% intervals by bootstrap resampling")
    add_sampling_arguments(parser)
    add_search_arguments(parser)
    add_machine_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    limit_shape_caches()
    from deepnmt.evaluation.reading import read_lines
    from deepnmt.evaluation.scores import check_lengths, score
    from deepnmt.evaluation.significance import TESTS

    settings = settings_of(arguments)
    if arguments.output is not None and arguments.output.is_dir():
        raise InputError(f"{arguments.output} is a folder; name a file for the output")
    source = read_lines(arguments.source)
    references = [(path, read_lines(path)) for path in arguments.reference]
    check_lengths([(arguments.source, source)], references)
    translator = load_translator(arguments)
    settings = translator.defaults | settings
    hypotheses, seconds = _translated(translator, source, arguments, settings)
    scores = score(
        hypotheses,
        [lines for _, lines in references],
        source_lang=arguments.source_lang or translator.tokenizers[0].source.writing.language,
        target_lang=arguments.target_lang or translator.tokenizers[0].target.writing.language,
        metrics=arguments.metrics,
        lowercase=arguments.lowercase,
        resamples=TESTS["bootstrap"].samples if arguments.confidence else 0,
    )
    _report(arguments, settings, scores, seconds)


def _translated(
    translator: "Translator", source: "list[str]", arguments: argparse.Namespace, settings: dict[str, Any]
) -> tuple[list[str], float]:
    import time

    from deepnmt.files import replacing
    from deepnmt.progress import progress

    warnings = Warnings(arguments.source)
    started = time.perf_counter()
    with progress("translate", total=sum(1 for text in source if text.strip())) as shown:
        translations = translator.translate(source, warn=warnings.after(0), done=shown.advance, **settings)
    seconds = time.perf_counter() - started
    warnings.summarise()
    hypotheses = [one_line(text) for text in translations]
    if arguments.output is not None:
        with replacing(arguments.output) as aside:
            aside.write_text("".join(f"{line}\n" for line in hypotheses), encoding="utf-8", newline="\n")
    return hypotheses, seconds


def _report(arguments: argparse.Namespace, settings: dict[str, Any], scores: "Scores", seconds: float) -> None:
    if not arguments.json:
        for notice in scores.notices:
            print(f"note: {notice}", file=sys.stderr)
        print(scores)
        return
    content = {
        "models": [str(model) for model in arguments.model],
        "source": arguments.source,
        "references": arguments.reference,
        "settings": settings,
        "precision": arguments.precision,
        "num_lines": scores.num_lines,
        "lines_per_second": scores.num_lines / seconds,
        "scores": scores.as_dict(),
        "notices": list(scores.notices),
    }
    print(json.dumps(content, ensure_ascii=False, indent=2))
