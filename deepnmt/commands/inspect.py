"""`deepnmt inspect`: what a model or a recipe is made of. Each way of looking is a room of `analysis`."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deepnmt.errors import InputError
from deepnmt.files import replacing

if TYPE_CHECKING:
    from rich.table import Table

    from deepnmt.analysis.gradients import Gradients
    from deepnmt.analysis.weights import ConnectionWeights
    from deepnmt.data.dataset import Corpus
    from deepnmt.model.config import ModelConfig, StackConfig

EXAMPLE = """deepnmt inspect size en-de-pre-dlcl-30l model.encoder.num_layers=25
  deepnmt inspect weights MODEL --out weights.png
  deepnmt inspect gradients en-de-pre-20l --out gradients.png"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    looks = "; ".join(f"{name}: {look.summary}" for name, look in LOOKS.items())
    parser.add_argument("what", choices=list(LOOKS), metavar="WHAT", help=looks)
    parser.add_argument("model", metavar="MODEL_OR_RECIPE", help="a MODEL folder, a recipe file or a preset's name")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="section.field=value", help="settings that replace a recipe's"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="into this file instead of standard output; weights and gradients: .png .svg .pdf .html .csv",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DATASET",
        help="size: of a model with its vocabulary; gradients: on its sentences (default: random ones)",
    )
    weights = parser.add_argument_group("weights")
    weights.add_argument("--column", type=int, metavar="K", help="whose weights over depth are drawn too (y10)")
    weights.add_argument(
        "--all", action="store_true", help="also the small weights, which the paper's figure leaves out"
    )
    gradients = parser.add_argument_group("gradients")
    gradients.add_argument("--steps", type=_count, default=20, help="updates after initialisation (20); 0: only that")
    gradients.add_argument("--tokens", type=_count, default=256, help="tokens of each (256)")
    gradients.add_argument("--width", type=_count, default=64, help="width of the model (64); 0: the recipe's own")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of zero or more")
    return int(text)


def run(arguments: argparse.Namespace) -> None:
    LOOKS[arguments.what].run(arguments)


class Look(NamedTuple):
    summary: str
    run: Callable[[argparse.Namespace], None]


def read_config(name: str, overrides: list[str]) -> "ModelConfig":
    """The config of a MODEL folder, or of a recipe with overrides."""
    from deepnmt.config import load_recipe
    from deepnmt.model.storage import load_config, load_meta

    if not Path(name).is_dir():
        return load_recipe(name, overrides).model
    if overrides:
        raise InputError(f"{overrides[0]}: {name} is a MODEL folder, and only a recipe's settings can be replaced")
    load_meta(Path(name))
    return load_config(Path(name))


def _size(arguments: argparse.Namespace) -> None:
    from deepnmt.analysis.size import Part, measure, total

    if arguments.data is not None and Path(arguments.model).is_dir():
        raise InputError(f"--data {arguments.data}: {arguments.model} is a MODEL folder and has its own vocabulary")
    vocabulary = [] if arguments.data is None else _vocabulary(arguments)
    config = read_config(arguments.model, [*arguments.overrides, *vocabulary])
    parts = measure(config)
    whole = total(parts)
    if arguments.json:
        report = {"model": arguments.model, "parameters": whole.parameters, "flops_per_token": whole.flops}
        _write(arguments.out, json.dumps(report | {"parts": [asdict(part) for part in parts]}, indent=2))
        return

    def row(part: Part) -> list[str]:
        share = f"{part.parameters / whole.parameters:.1%}" if part.parameters else ""
        return [part.stack, part.name, f"{part.parameters:,}", share, _mega(part.flops) if part.flops else ""]

    head = ["", "part", "parameters", "share", "MFLOP/token"]
    rows = [row(part) for part in parts]
    rows = [[stack if not i or rows[i - 1][0] != stack else "", *rest] for i, (stack, *rest) in enumerate(rows)]
    note = (
        "MFLOP/token: matrix products with the weights, forward, for a source and a\n"
        f"target token. A training step costs three times that, {_mega(3 * whole.flops)}."
    )
    _show(arguments.out, _describe(arguments.model, config), [head, *rows, row(whole)], note)


def _weights(arguments: argparse.Namespace) -> None:
    from deepnmt.analysis import weights

    if arguments.overrides:
        raise InputError(f"{arguments.overrides[0]}: inspect weights takes a MODEL folder and no settings")
    if not Path(arguments.model).is_dir():
        raise InputError(f"{arguments.model} is not a MODEL folder; learned weights are those of a trained model")
    found = weights.read_weights(Path(arguments.model))
    column = weights.default_column(found[0]) if arguments.column is None else arguments.column
    profile = found[0].profile(column)
    mask, out = not arguments.all, arguments.out
    if arguments.json:
        content = [{**asdict(part), "matrix": part.matrix.round(6).tolist()} for part in found]
        _write(out, json.dumps(content, indent=2))
    elif out is None:
        _show_weights(found, mask, arguments.column is not None, profile)
    elif out.suffix == ".csv":
        _write(out, weights.to_csv(found).removesuffix("\n"))
    elif out.suffix == ".html":
        _write(out, weights.to_page(found, column, mask, f"Connection weights of {arguments.model}"))
    else:
        from deepnmt.analysis.figures import weights_figure

        weights_figure(found, column, mask, _drawable(out))


def _show_weights(
    found: "list[ConnectionWeights]", mask: bool, with_profile: bool, profile: list[tuple[str, float]]
) -> None:
    from deepnmt.analysis.weights import RULE, to_text

    if sys.stdout.isatty():
        from rich.console import Console

        from deepnmt.analysis.terminal import coloured

        console = Console(highlight=False)
        for weights in found:
            console.print(coloured(weights, mask, console.width), soft_wrap=True)
    else:
        print("\n\n".join(to_text(weights, mask) for weights in found))
    if with_profile:
        print("\n" + "  ".join(f"{name} {value:.2f}" for name, value in profile))
    if mask:
        print(f"\n{RULE} --all shows every weight; --out FILE.png draws them.")


def _gradients(arguments: argparse.Namespace) -> None:
    from contextlib import nullcontext

    from deepnmt.analysis import gradients
    from deepnmt.config import load_recipe
    from deepnmt.progress import progress

    if arguments.out is not None and not arguments.json:
        _drawable(arguments.out, ".html", ".csv")
    if not arguments.tokens:
        raise InputError("--tokens is 0: a step needs some")
    overrides = [*arguments.overrides, *_vocabulary(arguments)]
    recipe = load_recipe(arguments.model, overrides)
    try:
        model = gradients.narrowed(recipe.model, arguments.width) if arguments.width else recipe.model
    except ValueError as error:
        raise InputError(f"--width {arguments.width}: {error}") from error
    training = gradients.hurried(recipe.training, arguments.steps)
    arms = gradients.arms(model)
    found = []
    with (
        nullcontext(_open_train(arguments.data)) if arguments.data else gradients.random_corpora(model) as corpora,
        progress("gradients", total=len(arms) * (arguments.steps + 1), unit="steps") as shown,
    ):
        for name, arm in arms.items():
            shown.note = name
            found.append(
                gradients.measure_gradients(
                    name, arm, training, corpora, tokens=arguments.tokens, steps=arguments.steps, done=shown.advance
                )
            )
    _report_gradients(arguments, found, _describe(arguments.model, model))


def _vocabulary(arguments: argparse.Namespace) -> list[str]:
    """The dataset's; for random sentences a small one, which changes nothing but the time."""
    from deepnmt.analysis.gradients import RANDOM_WORDS

    sizes = {"source": RANDOM_WORDS, "target": RANDOM_WORDS}
    if arguments.data is not None:
        from deepnmt.data.dataset import Dataset

        pair = Dataset.open(arguments.data).tokenizers
        sizes = {"source": pair.source.vocab_size, "target": pair.target.vocab_size}
    return [f"model.{side}_vocab_size={size}" for side, size in sizes.items()]


def _open_train(folder: Path) -> "dict[str, Corpus]":
    from deepnmt.data.dataset import Dataset

    return Dataset.open(folder).train


def _report_gradients(arguments: argparse.Namespace, found: "list[Gradients]", described: str) -> None:
    from deepnmt.analysis import gradients

    out = arguments.out
    if arguments.json:
        _write(out, json.dumps([asdict(one) for one in found], indent=2))
    elif out is not None and out.suffix == ".csv":
        _write(out, gradients.to_csv(found).removesuffix("\n"))
    elif out is not None and out.suffix == ".html":
        from deepnmt.analysis.charts import line_chart, page

        drawn = [line_chart(*chart) for chart in gradients.charts(found)]
        _write(out, page(f"Gradients of {arguments.model}", [f"<pre>{described}</pre>", *drawn]))
    elif out is not None:
        from deepnmt.analysis.figures import lines_figure

        lines_figure(gradients.charts(found), out)
    if not arguments.json:
        rows = [[first, "", *rest] for first, *rest in gradients.table(found)]
        note = (
            "Norms of the gradient of each encoder layer's parameters;\n"
            "bottom/top is the norm of dE/dy at the embedding over that at the top layer."
        )
        _show(None, described, rows, note)


def _drawable(out: Path, *more: str) -> Path:
    from deepnmt.analysis.figures import SUFFIXES

    if out.suffix not in (*SUFFIXES, *more):
        raise InputError(f"--out {out}: its name must end in {', '.join((*SUFFIXES, '.html', '.csv'))}")
    return out


LOOKS = {
    "size": Look("the parameters and the arithmetic of each part", _size),
    "weights": Look("the learned connection weights of a MODEL", _weights),
    "gradients": Look("how far the gradient comes, pre-norm against post-norm", _gradients),
}


def _mega(number: int) -> str:
    return f"{number / 1e6:,.1f}" if number >= 1e6 else f"{number / 1e6:.3f}"


def _describe(name: str, config: "ModelConfig") -> str:
    def stack(title: str, stack: "StackConfig") -> str:
        return (
            f"{title:<8} {stack.num_layers} layers, {stack.connection.kind}, "
            f"width {stack.dim}, ffn {stack.ffn_dim}, {stack.num_heads} heads"
        )

    return "\n".join(
        [f"{name}: {config.norm}-norm", stack("encoder", config.encoder), stack("decoder", config.decoder)]
    )


def _show(out: Path | None, title: str, rows: list[list[str]], note: str) -> None:
    """Rows of cells, the first the head and the last the sum; numbers, from the third column on, to the right."""
    if out is not None or not sys.stdout.isatty():
        _write(out, "\n".join([title, "", *_aligned(rows), "", note]))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(title), _rich_table(rows), Text(note, "dim"), sep="\n", soft_wrap=True)


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _rich_table(rows: list[list[str]]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_footer=True, padding=(0, 1, 0, 0))
    for i, (head, foot) in enumerate(zip(rows[0], rows[-1], strict=True)):
        style: dict[str, Any] = {"justify": "left" if i < 2 else "right", "no_wrap": True}
        table.add_column(head, foot, style="bold" if i == 0 else "", **style)
    for row in rows[1:-1]:
        if row[0] and table.rows:
            table.add_section()
        table.add_row(*row)
    return table


def _write(out: Path | None, text: str) -> None:
    if out is None:
        print(text)
        return
    with replacing(out) as aside:
        aside.write_text(text + "\n", encoding="utf-8")
