"""`deepnmt average`: average checkpoints of a run into a MODEL."""

import argparse
import sys

from deepnmt.commands.options import add_options

EXAMPLE = "deepnmt average RUN --last 5 --out MODEL"
CHECKPOINTS = {
    "--last N": "average the last N checkpoints (default: 5)",
    "--best N": "average the N checkpoints with the best validation scores",
    "--steps STEP+": "average the checkpoints of these steps",
}
OPTIONS = {
    "run RUN": "folder written by `deepnmt train`",
    "--of {epochs,steps}": "kind of checkpoint that --last counts (default: epochs; steps if there are none)",
    "--best-on-valid": "average the last (or best) 1, 2, ... or N, whichever has the best validation BLEU",
    "--data DATASET": "dataset for --best-on-valid (default: the run's)",
    "--beam N": "beam size for --best-on-valid (default: the recipe's)",
    "--device cpu|cuda": "device for --best-on-valid (default: cpu)",
    "--out MODEL": "model folder to write",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser.add_mutually_exclusive_group(), CHECKPOINTS)
    add_options(parser, OPTIONS, "--out")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.api.average import average

    made, kind = average(**vars(arguments)), "best" if "best" in arguments else "last"
    for count, score in enumerate(made.bleu, start=1):
        chosen = "  (chosen)" if count == len(made.checkpoints) else ""
        print(f"average of the {kind} {count}: BLEU {score:.2f}{chosen}", file=sys.stderr)
    names = ", ".join(made.checkpoints)
    print(f"{made.model}: {'average of ' if len(made.checkpoints) > 1 else ''}{names}", file=sys.stderr)
