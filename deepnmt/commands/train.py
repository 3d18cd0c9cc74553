"""`deepnmt train`: train a model from a recipe, resume a run, or fine-tune a model."""

import argparse
import sys
from pathlib import Path

from deepnmt.commands.options import OVERRIDES, RECIPE, add_options
from deepnmt.devices import torchrun_ranks

EXAMPLE = """deepnmt train en-de-pre-dlcl-30l training.seed=2 --data DATASET --out RUN
  # resume an interrupted run
  deepnmt train --resume --out RUN
  # fine-tune a model
  deepnmt train --from MODEL training.max_steps=500 --data DATASET --out RUN
  # fine-tune a large model by low-rank updates; try training.lr=5e-4
  deepnmt train --from MODEL training.lora.rank=16 --data DATASET --out RUN"""
OPTIONS = {
    "--data DATASET": "folder written by `deepnmt prepare`; optional with --resume",
    "--out RUN": "run folder to write",
    "--resume": "resume the run in --out with its recipe and data; start it if there is none",
    "--tokens-per-update N": "short for training.tokens_per_update=N",
    "--device cpu|cuda": "device to train on (default: cuda if available)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    (recipe,) = RECIPE.values()
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help=f"{recipe}; optional with --resume and --from")
    add_options(parser, OVERRIDES | OPTIONS, "--out")
    parser.add_argument("--from", dest="from_model", metavar="MODEL", help="model folder to fine-tune")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.api.train import train
    from deepnmt.data.tokenizer import TokenizerPair

    options = vars(arguments)
    options.setdefault("data", None)
    if "=" in (arguments.recipe or "") and not Path(arguments.recipe).is_file():  # the first of the overrides
        arguments.overrides.insert(0, arguments.recipe)
        arguments.recipe = None
    if "tokens_per_update" in options:
        arguments.overrides.append(f"training.tokens_per_update={options.pop('tokens_per_update')}")
    finished = train(**options)
    if finished.is_finished and torchrun_ranks()[0] == 0:
        model, pair = str(finished.model), TokenizerPair.load(finished.model)
        files = f"--source test.{pair.source.language} --reference test.{pair.target.language}"
        if pair.is_multilingual:
            model = f"{model} --source-lang CODE --target-lang CODE"
        print(f"next:\n  deepnmt translate {model} < input.txt\n  deepnmt evaluate {model} {files}", file=sys.stderr)
