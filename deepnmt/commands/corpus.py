"""`deepnmt corpus`: a small real parallel corpus, fetched from a public package."""

import argparse
from pathlib import Path

from deepnmt.errors import InputError

EXAMPLE = """deepnmt corpus homeassistant --languages en de --out corpus
  deepnmt prepare --source corpus/train.en --target corpus/train.de --valid-source corpus/valid.en \\
                  --valid-target corpus/valid.de --source-lang en --target-lang de --vocab-size 8000 --out DATASET"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        choices=["homeassistant", "libreoffice"],
        help="homeassistant: interface strings in 60 languages, through pip (Apache-2.0); "
        "libreoffice: help pages, through apt-get where it exists (MPL-2.0)",
    )
    parser.add_argument("--languages", nargs=2, required=True, metavar=("SOURCE", "TARGET"), help="such as en de")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to make")
    parser.add_argument(
        "--package",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="read these files instead of downloading: a wheel, two .deb",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing corpus")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.data import catalogues

    languages = (arguments.languages[0], arguments.languages[1])
    if languages[0] == languages[1]:
        raise InputError(f"--languages are both {languages[0]!r}; a parallel corpus needs two")
    package = arguments.package or []
    wanted = 1 if arguments.name == "homeassistant" else 2
    if package and len(package) != wanted:
        raise InputError(f"--package of {arguments.name} takes {wanted} file{'s'[: wanted - 1]}, not {len(package)}")
    if arguments.name == "homeassistant":
        catalogue = catalogues.homeassistant(languages, *package)
    else:
        catalogue = catalogues.libreoffice(languages, (package[0], package[1]) if package else None)
    counts = catalogues.write(catalogue, languages, arguments.out, arguments.overwrite)
    print(f"{arguments.out}: {', '.join(f'{name} {count:,} pairs' for name, count in counts.items())}")
    print(f"Taken from {catalogue.origin}; licence {catalogue.licence}.")
