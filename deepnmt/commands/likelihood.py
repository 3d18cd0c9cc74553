"""`deepnmt likelihood`: the log probability of given translations under a model."""

import argparse
import json
import math
from dataclasses import asdict

from deepnmt.commands.options import LANGUAGES, MACHINE, add_options, for_translation

EXAMPLE = "deepnmt likelihood MODEL --source test.en --target test.de > scores.tsv"
OPTIONS = {
    "model MODEL": "model folder",
    "--source FILE": "raw source text, one sentence per line",
    "--target FILE": "its translation, line by line",
    "--json": "write one JSON object per line, with the log probability of each subword",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS | LANGUAGES, "--source", "--target")
    add_options(parser.add_argument_group("machine"), MACHINE)
    columns = "log probability in nats, tab, number of subwords with the end symbol"
    parser.description = f"{parser.description}; prints one line per pair: {columns}"


def run(arguments: argparse.Namespace) -> None:
    options = for_translation(arguments)
    from deepnmt.api.likelihood import likelihood
    from deepnmt.progress import say

    as_json = options.pop("json", False)
    found = likelihood(**options)
    for number, one in enumerate(found, start=1):
        content = {"line": number, "log_prob": one.log_prob, **asdict(one)}
        print(json.dumps(content, ensure_ascii=False) if as_json else f"{one.log_prob:.4f}\t{len(one.pieces)}")
    subwords = sum(len(one.pieces) for one in found)
    perplexity = math.exp(-sum(one.log_prob for one in found) / max(subwords, 1))
    say(f"perplexity {perplexity:.3f} over {subwords:,} subwords")
