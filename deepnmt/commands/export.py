"""`deepnmt export`: write a MODEL for another runtime."""

import argparse

from deepnmt.commands.options import add_options

EXAMPLE = "deepnmt export MODEL --to ctranslate2 --out MODEL-ctranslate2"
NAMES = ("onnx", "ctranslate2", "huggingface", "marian")
OPTIONS = {
    "model MODEL": "model folder",
    f"--to {{{','.join(NAMES)}}}": "format of the export",
    "--out DIR": "folder to write (default: MODEL-FORMAT)",
    "--argos": "with --to ctranslate2: write one package for Argos Translate and LibreTranslate (default: "
    "MODEL.argosmodel)",
    "--overwrite": "replace an earlier export",
    "--check FILE": "source sentences on which to verify the export, in addition to random ones",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS, "--to")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.api.export import export
    from deepnmt.decoding.export import FORMATS
    from deepnmt.text import read_lines

    options = vars(arguments)
    sentences = read_lines(options.pop("check")) if "check" in options else []
    written = export(sentences=sentences, **options)
    files = [written.path] if written.path.is_file() else sorted(written.path.iterdir())
    large = [file for file in files if file.stat().st_size >= 1e5]
    print(f"{written.path}: " + ", ".join(f"{file.name} {file.stat().st_size / 1e6:,.1f} MB" for file in large))
    agreement = written.agreement
    if agreement is None:
        print(f"not verified against {arguments.model}: {FORMATS[arguments.to].RUNS_IN} is not installed")
    else:
        print(
            f"equal to {arguments.model} on {agreement.positions:,} tokens of {agreement.sentences:,} sentences, "
            f"{agreement.of} within {agreement.max_difference:.1e}"
        )
