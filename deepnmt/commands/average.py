"""`deepnmt average`."""

import argparse
import sys
from pathlib import Path

from deepnmt.commands.options import whole_number

EXAMPLE = "deepnmt average RUN --last 5 --out MODEL"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="output of `deepnmt train`")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--last", type=whole_number(1), default=5, metavar="N", help="last N checkpoints (default: 5)")
    which.add_argument("--best", type=whole_number(1), metavar="N", help="N best checkpoints by validation score")
    which.add_argument("--steps", type=int, nargs="+", metavar="STEP", help="the checkpoints of these steps")
    parser.add_argument(
        "--of", choices=["epochs", "steps"], help="kind of checkpoint for --last (default: epochs, if any has ended)"
    )
    parser.add_argument(
        "--best-on-valid", action="store_true", help="of the last 1 to N, average those with the best validation BLEU"
    )
    parser.add_argument("--data", type=Path, metavar="DATASET", help="for --best-on-valid (default: the run's own)")
    parser.add_argument("--beam", type=whole_number(1), help="for --best-on-valid (default: the recipe's)")
    parser.add_argument("--device", default="cpu", help="for --best-on-valid (default: cpu)")
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL", help="folder to write")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.api.average import average

    made = average(
        arguments.run,
        arguments.out,
        last=arguments.last,
        best=arguments.best,
        steps=arguments.steps,
        of=arguments.of,
        best_on_valid=arguments.best_on_valid,
        data=arguments.data,
        beam=arguments.beam,
        device=arguments.device,
    )
    for count, score in enumerate(made.bleu, start=1):
        chosen = "  (chosen)" if count == len(made.checkpoints) else ""
        print(f"average of the last {count}: BLEU {score:.2f}{chosen}", file=sys.stderr)
    names = ", ".join(made.checkpoints)
    print(f"{made.model}: {'average of ' if len(made.checkpoints) > 1 else ''}{names}", file=sys.stderr)
