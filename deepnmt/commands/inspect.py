"""`deepnmt inspect`: size, weights, layers and gradients of a model or recipe, and the learning curves of runs."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepnmt.analysis.config import GradientTrial
from deepnmt.analysis.figures import check_format, save_figure
from deepnmt.commands.options import LANGUAGES, MACHINE, OVERRIDES, add_options, add_settings, settings_in
from deepnmt.devices import use_threads
from deepnmt.errors import InputError
from deepnmt.files import write_text

if TYPE_CHECKING:
    from deepnmt.analysis.weights import StackMatrix

EXAMPLE = """deepnmt inspect size en-de-pre-dlcl-30l model.encoder.num_layers=25
  deepnmt inspect weights MODEL --out weights.png
  deepnmt inspect layers MODEL --source dev.en --reference dev.de --out use.svg
  deepnmt inspect gradients en-de-pre-20l --out gradients.png
  deepnmt inspect curves RUN1 RUN2 --out curves.svg"""

FIGURES = (".png", ".svg", ".pdf", ".html", ".csv")
WHAT = {
    "size": "parameters and FLOPs of each part",
    "weights": "learned connection weights of a MODEL",
    "layers": "what each layer of a MODEL contributes",
    "gradients": "gradient norm of each layer, with pre-norm and with post-norm",
    "curves": "validation loss and BLEU of one or several RUNs",
}
GIVEN = {
    "model MODEL_OR_RECIPE": "model folder, bundled preset or recipe file (.toml); curves: RUN folder",
    "overrides section.field=value*": f"{next(iter(OVERRIDES.values()))}; curves: further RUN folders",
}
OPTIONS = {
    "--json": "write JSON instead of a table",
    "--out PATH": f"write to this file; except for size, one of {' '.join(FIGURES)}",
    "--data DATASET": "size: use its vocabulary sizes; gradients: train on its sentences (default: random ones)",
}
WEIGHTS = {
    "--column K": "plot how much later layers use the output of layer K (default: 10)",
    "--all": "show small weights too, which the paper's figure leaves blank",
}
LAYERS = {
    "--source FILE": "raw source text, one sentence per line",
    "--reference FILE": "its translation, line by line",
    "--lines N": "number of lines to use, evenly spaced in the files; 0: all (default: 200)",
    **LANGUAGES,
    **{option: text for option, text in MACHINE.items() if not option.startswith("--precision")},
}
GRADIENTS = {
    "steps": "number of updates",
    "tokens": "tokens per update",
    "width": "model width; 0: the recipe's",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "; ".join(f"{name}: {summary}" for name, summary in WHAT.items())
    parser.add_argument("what", choices=list(WHAT), metavar="WHAT", help=what)
    add_options(parser, GIVEN)
    add_options(parser, OPTIONS, absent=None)
    add_options(parser.add_argument_group("weights"), WEIGHTS, absent=None)
    add_options(parser.add_argument_group("layers"), LAYERS)
    add_settings(parser.add_argument_group("gradients"), GradientTrial, GRADIENTS)


def run(arguments: argparse.Namespace) -> None:
    out = arguments.out
    if arguments.what != "size" and out is not None and not arguments.json:
        if out.suffix not in FIGURES:
            raise InputError(f"--out {out}: the file name must end in {', '.join(FIGURES)}")
        check_format(out)
    if arguments.what in ("weights", "layers") and arguments.overrides:
        raise InputError(f"{arguments.overrides[0]}: inspect {arguments.what} takes a MODEL folder and no overrides")
    show = {"size": _size, "weights": _weights, "layers": _layers, "gradients": _gradients, "curves": _curves}
    show[arguments.what](arguments)


def _size(arguments: argparse.Namespace) -> None:
    from deepnmt.api.inspect import inspect_size

    size = inspect_size(arguments.model, arguments.overrides, data=arguments.data)
    report = {"model": size.name, "parameters": size.total.parameters, "flops_per_token": size.total.flops}
    report["parts"] = [asdict(part) for part in size.parts]
    _write(arguments.out, json.dumps(report, indent=2) if arguments.json else str(size))


def _weights(arguments: argparse.Namespace) -> None:
    from deepnmt.analysis.weights import draw, to_csv
    from deepnmt.api.inspect import inspect_weights
    from deepnmt.heatmap import RULE

    found, mask = inspect_weights(arguments.model), not arguments.all
    column = found[0].default_column if arguments.column is None else arguments.column
    profile = found[0].profile(column)
    title, note = f"Connection weights of {arguments.model}", RULE if mask else "Every weight is shown."
    content = [asdict(part) for part in found]
    if _saved(arguments, content, to_csv(found), title, draw(found, column, mask), below=f"<p>{note}</p>"):
        return
    _show_matrices(found, mask)
    if arguments.column is not None:
        print("\n" + "  ".join(f"{name} {value:.2f}" for name, value in profile))
    if mask:
        print(f"\n{RULE} --all shows every weight; --out FILE.png draws them.")


def _show_matrices(found: "Sequence[StackMatrix]", mask: bool) -> None:
    from deepnmt.analysis.weights import coloured, to_text

    if not sys.stdout.isatty():
        print("\n\n".join(to_text(weights, mask) for weights in found))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for weights in found:
        console.print(coloured(weights, mask, console.width), soft_wrap=True)


def _layers(arguments: argparse.Namespace) -> None:
    if missing := [option for option in ("source", "reference") if option not in arguments]:
        raise InputError(
            f"inspect layers needs --{missing[0]}: it measures the layers on sentences and their translations"
        )
    use_threads(getattr(arguments, "threads", None))
    from deepnmt.analysis.layers import draw, to_csv
    from deepnmt.api.inspect import inspect_layers

    names = ("source", "reference", "lines", "device", "source_lang", "target_lang")
    report = inspect_layers(
        arguments.model, **{name: value for name, value in vars(arguments).items() if name in names}
    )
    title, above = f"Layers of {arguments.model}", f"<pre>{escape(str(report))}</pre>"
    if not _saved(arguments, asdict(report), to_csv(report), title, draw(report), above=above):
        print(f"{report}\n")
        _show_matrices([use.similarity_by_name() for use in report.stacks], mask=False)


def _gradients(arguments: argparse.Namespace) -> None:
    from deepnmt.analysis.gradients import draw, to_csv
    from deepnmt.api.inspect import inspect_gradients

    trial = settings_in(GradientTrial, arguments)
    report = inspect_gradients(arguments.model, arguments.overrides, data=arguments.data, trial=trial)
    title, above = f"Gradients of {arguments.model}", f"<pre>{escape(report.heading)}</pre>"
    content, values = [asdict(one) for one in report.found], to_csv(report.found)
    _saved(arguments, content, values, title, draw(report.found), columns=3, above=above)
    if not arguments.json:
        print(report)


def _curves(arguments: argparse.Namespace) -> None:
    from deepnmt.analysis.learning_curves import UNITS, draw, to_csv
    from deepnmt.api.inspect import inspect_curves

    curves = inspect_curves(arguments.model, *arguments.overrides)
    above, pictures = f"<pre>{escape(str(curves))}</pre>", draw(curves)
    if not _saved(arguments, asdict(curves), to_csv(curves), "Learning curves", pictures, len(UNITS), above):
        print(curves)


def _saved(
    arguments: argparse.Namespace,
    content: Any,
    values: str,
    title: str,
    pictures: Sequence[str],
    columns: int = 2,
    above: str = "",
    below: str = "",
) -> bool:
    """Write JSON, or to --out the pictures as a page or one figure, or the values that they show; False if neither is
    asked for."""
    from deepnmt.analysis.charts import grid, page

    out = arguments.out
    if arguments.json:
        _write(out, json.dumps(content, indent=2))
    elif out is None:
        return False
    elif out.suffix == ".csv":
        write_text(out, values)
    elif out.suffix == ".html":
        write_text(out, page(title, [above, *pictures, below]))
    else:
        save_figure(grid(pictures, columns), out)
    return True


def _write(out: Path | None, text: str) -> None:
    if out is None:
        print(text)
    else:
        write_text(out, text + "\n")
