"""`deepnmt evaluate`: translate a test set and score the translations."""

import argparse
import json
import sys
from pathlib import Path

from deepnmt.commands.options import add_translation_options, settings_in
from deepnmt.commands.score import add_metric_arguments
from deepnmt.decoding.config import TranslationConfig
from deepnmt.devices import tune_for_translation, use_threads

EXAMPLE = "deepnmt evaluate MODEL --source newstest2014.en --reference newstest2014.de --output newstest2014.out.de"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="+", type=Path, metavar="MODEL", help="a model folder; several are an ensemble")
    parser.add_argument("--source", required=True, metavar="F", help="raw text, one sentence per line")
    parser.add_argument("--reference", required=True, nargs="+", metavar="F", help="one file per reference translation")
    parser.add_argument("--output", type=Path, metavar="F", help="keep the translations in this file")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    add_metric_arguments(parser.add_argument_group("scores (languages: by default the model's)"))
    add_translation_options(parser)


def run(arguments: argparse.Namespace) -> None:
    tune_for_translation()
    from deepnmt.api.evaluate import evaluate

    use_threads(arguments.threads)
    names = ("output", "device", "precision", "source_lang", "target_lang", "metrics", "lowercase", "confidence")
    options = {name: getattr(arguments, name) for name in names}
    found = evaluate(
        arguments.model, arguments.source, arguments.reference, **options, **settings_in(TranslationConfig, arguments)
    )
    if not arguments.json:
        for notice in found.scores.notices:
            print(f"note: {notice}", file=sys.stderr)
        print(found.scores)
        return
    content = {
        "models": [str(model) for model in arguments.model],
        "source": arguments.source,
        "references": arguments.reference,
        "settings": found.settings,
        "precision": arguments.precision,
        "num_lines": found.scores.num_lines,
        "lines_per_second": found.scores.num_lines / found.seconds,
        "scores": found.scores.as_dict(),
        "notices": list(found.scores.notices),
    }
    print(json.dumps(content, ensure_ascii=False, indent=2))
