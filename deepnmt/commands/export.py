"""`deepnmt export`: write a MODEL for another runtime."""

import argparse
from pathlib import Path

EXAMPLE = "deepnmt export MODEL --format onnx --out MODEL-onnx"
FORMATS = ("onnx",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="the folder of a trained model")
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="of the export (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the folder to write (default: MODEL-onnx)")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    parser.add_argument("--check", metavar="FILE", help="source sentences to verify the export on, besides random ones")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.api.export import export
    from deepnmt.text import read_lines

    sentences = read_lines(arguments.check) if arguments.check else []
    written = export(
        arguments.model, arguments.out, to=arguments.format, sentences=sentences, overwrite=arguments.overwrite
    )
    files = sorted(written.folder.glob("*.onnx*"))
    print(f"{written.folder}: " + ", ".join(f"{file.name} {file.stat().st_size / 1e6:,.1f} MB" for file in files))
    agreement = written.agreement
    print(
        f"equal to {arguments.model} on {agreement.positions:,} tokens of {agreement.sentences:,} sentences, "
        f"logits within {agreement.max_difference:.1e}"
    )
