"""`deepnmt corpus`: a small real parallel corpus from a public package."""

import argparse
from pathlib import Path

EXAMPLE = """deepnmt corpus homeassistant --languages en de --out corpus
  deepnmt prepare --source corpus/train.en --target corpus/train.de --valid-source corpus/valid.en \\
                  --valid-target corpus/valid.de --source-lang en --target-lang de --vocab-size 8000 --out DATASET"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        choices=["homeassistant", "libreoffice"],
        help="homeassistant: interface strings in 60 languages, downloaded by pip (Apache-2.0); "
        "libreoffice: help pages, downloaded by apt-get where available (MPL-2.0)",
    )
    parser.add_argument("--languages", nargs=2, required=True, metavar=("SOURCE", "TARGET"), help="such as en de")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--package", nargs="+", type=Path, default=[], metavar="FILE", help="read a local wheel (or two .deb) instead"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing corpus")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.data.catalogues import make_corpus

    source, target = arguments.languages
    catalogue, counts = make_corpus(
        arguments.name, (source, target), arguments.out, arguments.package, arguments.overwrite
    )
    print(f"{arguments.out}: {', '.join(f'{name} {count:,} pairs' for name, count in counts.items())}")
    print(f"Source: {catalogue.origin}; licence {catalogue.licence}.")
