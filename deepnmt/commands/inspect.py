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

    from deepnmt.model.config import ModelConfig, StackConfig

EXAMPLE = "deepnmt inspect size en-de-pre-dlcl-30l model.encoder.num_layers=25"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    looks = "; ".join(f"{name}: {look.summary}" for name, look in LOOKS.items())
    parser.add_argument("what", choices=list(LOOKS), metavar="WHAT", help=looks)
    parser.add_argument("model", metavar="MODEL_OR_RECIPE", help="a MODEL folder, a recipe file or a preset's name")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="section.field=value", help="settings that replace a recipe's"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="into this file instead of standard output")


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

    config = read_config(arguments.model, arguments.overrides)
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


LOOKS = {"size": Look("the parameters and the arithmetic of each part", _size)}


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
