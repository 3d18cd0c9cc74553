"""`deepnmt corpus`: a small parallel corpus from a public package."""

import argparse
from pathlib import Path

from deepnmt.commands.options import add_options

EXAMPLE = """deepnmt corpus homeassistant --languages en de --out corpus
  deepnmt prepare --source corpus/train.en --target corpus/train.de \\
      --valid-source corpus/valid.en --valid-target corpus/valid.de \\
      --source-lang en --target-lang de --vocab-size 8000 --out DATASET"""
OPTIONS = {
    "name {homeassistant,libreoffice}": "homeassistant: interface strings in 63 languages, downloaded by pip "
    "(Apache-2.0); libreoffice: help pages, downloaded by apt-get where available (MPL-2.0)",
    "--out DIR": "corpus folder to write",
    "--overwrite": "replace an existing corpus",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS, "--out")
    parser.add_argument(
        "--languages",
        nargs=2,
        required=True,
        metavar=("SOURCE", "TARGET"),
        help="language codes, such as en de (required)",
    )
    text = "read this wheel (or these two .deb files) instead of downloading"
    parser.add_argument("--package", dest="packages", nargs="+", type=Path, default=[], metavar="FILE", help=text)


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.data.catalogues import make_corpus

    catalogue, counts = make_corpus(**vars(arguments))
    print(f"{arguments.out}: {', '.join(f'{name} {count:,} pairs' for name, count in counts.items())}")
    print(f"Source: {catalogue.origin}; licence {catalogue.licence}.")
