"""`deepnmt backtranslate`: monolingual target text and a reverse model make parallel text for training."""

import argparse
from pathlib import Path

from deepnmt.commands.options import add_translation_options, settings_in
from deepnmt.decoding.config import TranslationConfig
from deepnmt.devices import tune_for_translation, use_threads
from deepnmt.progress import say

EXAMPLE = """deepnmt backtranslate DE-EN-MODEL mono.de --out bt/news
  writes bt/news.en (synthetic) and bt/news.de (from mono.de), for
  deepnmt prepare --corpus bt bt/news.en bt/news.de --tag 'bt=<bt>' ...

  On 8 GPUs, each of which translates every eighth chunk of lines (after an interruption, the same command resumes):
  torchrun --nproc-per-node 8 --no-python deepnmt backtranslate DE-EN-MODEL mono.de --out bt/news --precision bf16"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="model that translates from the language of the text")
    parser.add_argument("text", type=Path, metavar="MONO", help="one sentence per line; .gz, .xz, .bz2, .zst too")
    parser.add_argument("--out", type=Path, required=True, metavar="PREFIX", help="write PREFIX.en and PREFIX.de")
    add_translation_options(parser, "sampling")
    parser.add_argument("--chunk", type=int, metavar="N", help="lines sorted by length and translated together")


def run(arguments: argparse.Namespace) -> None:
    tune_for_translation()
    from deepnmt.api.backtranslate import backtranslate

    use_threads(arguments.threads)
    names = ("model", "text", "out", "device", "precision", "chunk")
    made = backtranslate(
        **{name: getattr(arguments, name) for name in names}, **settings_in(TranslationConfig, arguments)
    )
    if made is not None:
        lines = "line" if made.left_out == 1 else "lines"
        note = f" ({made.left_out:,} empty {lines} left out)" if made.left_out else ""
        say(f"{made.pairs:,} pairs in {made.synthetic} (synthetic) and {made.given}{note}")
