"""`deepnmt export`: write a MODEL for another runtime."""

import argparse
from pathlib import Path

from deepnmt.errors import InputError

EXAMPLE = "deepnmt export MODEL --to ctranslate2 --out MODEL-ctranslate2"
NAMES = ("onnx", "ctranslate2", "huggingface")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="the folder of a trained model")
    parser.add_argument("--to", choices=NAMES, required=True, help="format of the export")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the folder to write (default: MODEL-FORMAT)")
    parser.add_argument(
        "--argos",
        action="store_true",
        help="with --to ctranslate2: one file for Argos Translate and LibreTranslate (default: MODEL.argosmodel)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    parser.add_argument("--check", metavar="FILE", help="source sentences to verify the export on, besides random ones")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.api.export import export
    from deepnmt.decoding.export import FORMATS
    from deepnmt.text import read_lines

    if arguments.argos and arguments.to != "ctranslate2":
        raise InputError(f"--argos packs an export --to ctranslate2, not --to {arguments.to}")
    written = export(
        arguments.model,
        arguments.out,
        to=arguments.to,
        argos=arguments.argos,
        sentences=read_lines(arguments.check) if arguments.check else [],
        overwrite=arguments.overwrite,
    )
    files = [written.path] if written.path.is_file() else sorted(written.path.iterdir())
    large = [file for file in files if file.stat().st_size >= 1e5]
    print(f"{written.path}: " + ", ".join(f"{file.name} {file.stat().st_size / 1e6:,.1f} MB" for file in large))
    agreement = written.agreement
    if agreement is None:
        print(f"not compared with {arguments.model}: {FORMATS[arguments.to].RUNS_IN} is not installed")
    else:
        print(
            f"equal to {arguments.model} on {agreement.positions:,} tokens of {agreement.sentences:,} sentences, "
            f"{agreement.of} within {agreement.max_difference:.1e}"
        )
