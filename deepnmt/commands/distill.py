"""`deepnmt distill`: training text for a student, translated by its teacher."""

import argparse

from deepnmt.commands.options import CHUNK, LANGUAGES, add_options, add_translation_options, for_translation
from deepnmt.progress import say

EXAMPLE = """deepnmt distill TEACHER --source train.en --reference train.de --out kd/train
  # writes kd/train.de (translations) and kd/train.en (from train.en), for
  deepnmt prepare --source kd/train.en --target kd/train.de ...
  deepnmt train student --data DATASET --out RUN

  # on 8 GPUs (run the same command again to resume after an interruption)
  torchrun --nproc-per-node 8 --no-python \\
      deepnmt distill TEACHER --source train.en --out kd/train --precision bf16"""
OPTIONS = {
    "model TEACHER+": "model folder; several form an ensemble",
    "--source FILE": "source of the training text, one sentence per line; may be .gz, .xz, .bz2 or .zst",
    "--reference FILE": "target of the training text: write the translation that is most like it, by chrF",
    "--nbest N": "with --reference, number of translations to choose from (default: the beam)",
    "--out PREFIX": "write PREFIX.LANGUAGE for both languages",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS | LANGUAGES | CHUNK, "--source", "--out")
    add_translation_options(parser, "sampling")


def run(arguments: argparse.Namespace) -> None:
    options = for_translation(arguments)
    from deepnmt.api.synthetic import distill

    made = distill(**options)
    if made is not None:
        say(made.summary("the teacher's"))
