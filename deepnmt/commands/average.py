"""`deepnmt average`."""

import argparse
import sys

from deepnmt.commands.options import add_options

EXAMPLE = "deepnmt average RUN --last 5 --out MODEL"
CHECKPOINTS = {
    "--last N": "last N checkpoints (default: 5)",
    "--best N": "N best checkpoints by validation score",
    "--steps STEP+": "the checkpoints of these steps",
}
OPTIONS = {
    "run RUN": "output of `deepnmt train`",
    "--of {epochs,steps}": "kind of checkpoint for --last (default: epochs, if any has ended)",
    "--best-on-valid": "of the last 1 to N, average those with the best validation BLEU",
    "--data DATASET": "for --best-on-valid (default: the run's own)",
    "--beam N": "for --best-on-valid (default: the recipe's)",
    "--device cpu|cuda": "for --best-on-valid (default: cpu)",
    "--out MODEL": "folder to write",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser.add_mutually_exclusive_group(), CHECKPOINTS)
    add_options(parser, OPTIONS, "--out")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.api.average import average

    made = average(**vars(arguments))
    for count, score in enumerate(made.bleu, start=1):
        chosen = "  (chosen)" if count == len(made.checkpoints) else ""
        print(f"average of the last {count}: BLEU {score:.2f}{chosen}", file=sys.stderr)
    names = ", ".join(made.checkpoints)
    print(f"{made.model}: {'average of ' if len(made.checkpoints) > 1 else ''}{names}", file=sys.stderr)
