"""`deepnmt backtranslate`: synthetic parallel text from monolingual text and a model of the opposite direction."""

import argparse

from deepnmt.commands.options import CHUNK, LANGUAGES, add_options, add_translation_options, for_translation
from deepnmt.progress import say

EXAMPLE = """deepnmt backtranslate DE-EN-MODEL mono.de --out bt/news     samples; --beam N searches instead
  writes bt/news.en (synthetic) and bt/news.de (from mono.de), for
  deepnmt prepare --corpus bt bt/news.en bt/news.de --tag 'bt=<bt>' ...

  On 8 GPUs (run the same command again to resume after an interruption):
  torchrun --nproc-per-node 8 --no-python deepnmt backtranslate DE-EN-MODEL mono.de --out bt/news --precision bf16"""
OPTIONS = {
    "model MODEL": "model folder; its source language is that of the text",
    "text MONO": "monolingual text, one sentence per line; may be .gz, .xz, .bz2 or .zst",
    "--out PREFIX": "write PREFIX.LANGUAGE for both languages",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{parser.description}; translations are sampled unless --beam is given"
    add_options(parser, OPTIONS | LANGUAGES | CHUNK, "--out")
    add_translation_options(parser, "sampling")


def run(arguments: argparse.Namespace) -> None:
    options = for_translation(arguments)
    from deepnmt.api.synthetic import backtranslate

    made = backtranslate(**options)
    if made is not None:
        say(made.summary("synthetic"))
