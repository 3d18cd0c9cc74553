"""`deepnmt evaluate`: translate a test set and score the translations."""

import argparse
import json
import sys

from deepnmt.commands.options import SHORTLIST, add_options, add_translation_options, for_translation
from deepnmt.commands.score import metric_options

EXAMPLE = "deepnmt evaluate MODEL --source test.en --reference test.de --output out.de"
OPTIONS = {
    "model MODEL+": "model folder; several form an ensemble",
    "--source FILE": "raw source text, one sentence per line",
    "--reference FILE+": "reference translation; several files are several references",
    "--output FILE": "write the translations to this file",
    "--json": "print everything as JSON",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS | SHORTLIST, "--source", "--reference")
    add_options(parser.add_argument_group("scores (the languages default to the model's)"), metric_options())
    add_translation_options(parser)


def run(arguments: argparse.Namespace) -> None:
    options = for_translation(arguments)
    from deepnmt.api.evaluate import evaluate

    as_json, references = options.pop("json", False), options.pop("reference")
    found = evaluate(references=references, **options)
    if not as_json:
        for notice in found.scores.notices:
            print(f"note: {notice}", file=sys.stderr)
        print(found.scores)
        return
    content = {
        "models": list(map(str, arguments.model)),
        "source": arguments.source,
        "references": references,
        "settings": found.settings,
        "precision": options.get("precision", "fp32"),
        "num_lines": found.scores.num_lines,
        "lines_per_second": found.scores.num_lines / found.seconds,
        "scores": found.scores.as_dict(),
        "notices": list(found.scores.notices),
    }
    print(json.dumps(content, ensure_ascii=False, indent=2))
