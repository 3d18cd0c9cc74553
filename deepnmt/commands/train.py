"""`deepnmt train`."""

import argparse
import os
import sys
from pathlib import Path

EXAMPLE = "deepnmt train en-de-pre-dlcl-30l training.seed=2 --data DATASET --out RUN"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe file (.toml), or the name of a bundled preset")
    parser.add_argument(
        "overrides", nargs="*", metavar="section.field=value", help="settings that replace the recipe's"
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DATASET", help="output of `deepnmt prepare`")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="folder of the run")
    parser.add_argument("--from", dest="start", type=Path, metavar="MODEL", help="fine-tune this model")
    parser.add_argument("--resume", action="store_true", help="resume the run in --out, or start it if there is none")
    parser.add_argument("--tokens-per-update", type=int, metavar="N", help="short for training.tokens_per_update=N")
    parser.add_argument("--device", metavar="cpu|cuda", help="default: cuda if there is a GPU")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.api.train import train

    overrides = list(arguments.overrides)
    if arguments.tokens_per_update is not None:
        overrides.append(f"training.tokens_per_update={arguments.tokens_per_update}")
    finished = train(
        arguments.recipe,
        arguments.data,
        arguments.out,
        overrides=overrides,
        resume=arguments.resume,
        from_model=arguments.start,
        device=arguments.device,
    )
    if finished.is_finished and os.environ.get("RANK", "0") == "0":
        lines = f"  deepnmt translate {finished.model} < input.txt\n  deepnmt average {finished.folder} --out MODEL"
        print(f"next:\n{lines}", file=sys.stderr)
