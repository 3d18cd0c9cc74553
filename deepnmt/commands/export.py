"""`deepnmt export`: a MODEL for a runtime that is not ours, checked against the MODEL before it is kept."""

import argparse
from pathlib import Path

from deepnmt.errors import InputError
from deepnmt.progress import say

EXAMPLE = "deepnmt export MODEL --format onnx --out MODEL-onnx"
FORMATS = ("onnx",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="the folder of a trained model")
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="of what is written (default: onnx)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the folder to write (default: MODEL-onnx)")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    parser.add_argument(
        "--check", type=Path, metavar="FILE", help="source sentences to compare on, besides the random ones"
    )


def run(arguments: argparse.Namespace) -> None:
    model = arguments.model
    out = arguments.out or model.resolve().with_name(f"{model.resolve().name}-{arguments.format}")
    _check_out(out, arguments.overwrite)
    texts = _read(arguments.check) if arguments.check else []

    from deepnmt.decoding.export import export

    agreement = export(model, out, texts, say)
    files = sorted(out.glob("*.onnx*"))
    print(f"{out}: " + ", ".join(f"{file.name} {file.stat().st_size / 1e6:,.1f} MB" for file in files))
    print(
        f"equal to {model} on {agreement.positions:,} tokens of {agreement.sentences:,} sentences, "
        f"logits within {agreement.max_difference:.1e}"
    )


def _check_out(out: Path, overwrite: bool) -> None:
    if not out.exists():
        return
    if not overwrite:
        raise InputError(f"{out} exists already; choose another --out, or --overwrite it")
    if not (out / "export.json").is_file():
        raise InputError(f"{out} is not an export, so it is not overwritten; choose another --out")


def _read(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise InputError(f"{path} is not UTF-8 text: {error}") from error
