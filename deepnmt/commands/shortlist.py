"""`deepnmt shortlist`: learn a lexical shortlist for faster translation on a CPU."""

import argparse

from deepnmt.commands.options import add_options
from deepnmt.progress import say

EXAMPLE = """deepnmt shortlist MODEL --data DATASET
  deepnmt translate MODEL --shortlist --precision int8 < news.en > news.de"""
OPTIONS = {
    "model MODEL": "model folder; the shortlist is written into it",
    "--data DATASET": "the model's training dataset",
    "--best N": "number of translations listed for each source subword (default: 20)",
    "--frequent N": "number of frequent target subwords on every shortlist (default: 2000)",
    "--pairs N": "maximum number of sentence pairs to learn from (default: 200000)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS, "--data")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.api.shortlist import make_shortlist

    say(f"wrote {make_shortlist(**vars(arguments))}")
