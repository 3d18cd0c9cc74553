"""Command-line options made from tables of help texts.

Options that fill a dataclass take their types and defaults from its fields. Others are written as in a usage line. An
option that is not given is absent from the parsed arguments, so that the called function alone defines its default.
"""

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from deepnmt.decoding.config import MBR_EPSILON, TranslationConfig
from deepnmt.devices import tune_for_translation, use_threads
from deepnmt.settings import from_table

T = TypeVar("T")
NEGATIONS = {"stop_early": "--no-early-stop"}  # the conventional name
METAVARS = {bool: "", int: "N", float: "X", str: "NAME", Path: "PATH"}

RECIPE = {"recipe RECIPE": "bundled preset (see `deepnmt presets`) or recipe file (.toml)"}
OVERRIDES = {"overrides section.field=value*": "setting that overrides the recipe's"}
MACHINE = {
    "--device cpu|cuda": "device to compute on (default: cuda if available)",
    "--precision fp32|bf16|fp16|int8": "int8 is the fastest on a CPU, bf16 or fp16 on a GPU (default: fp32)",
    "--threads N": "number of CPU threads (default: all available cores)",
}
SHORTLIST = {"--shortlist": "use the model's lexical shortlist (see `deepnmt shortlist`), on a CPU"}
LANGUAGES = {
    "--source-lang CODE": "source language, for a multilingual model",
    "--target-lang CODE": "target language, for a multilingual model",
}
CHUNK = {"--chunk N": "number of lines that are sorted by length and translated together"}

SEARCH = {
    "beam": "number of hypotheses kept per step; 1: greedy search",
    "length_penalty": "alpha in score = log probability / length**alpha",
    "penalty_form": "gnmt: divide by ((5 + length) / 6)**alpha instead",
    "patience": "stop a sentence after patience * beam finished hypotheses",
    "min_length": "minimum length of a translation",
    "max_length": "maximum length of a translation, instead of ratio * source length + extra",
    "max_length_ratio": "ratio in ratio * source length + extra",
    "max_length_extra": "extra in ratio * source length + extra",
    "no_repeat_ngram": "forbid repeated n-grams of N subwords; 0: allow all",
    "max_source_length": "split longer lines into sentences or clauses, with a warning",
    "batch_tokens": "number of source subwords per batch (default: depends on the device)",
    "allow_unknown": "allow <unk> in the output",
    "keep_placeholders": "restore {name}, %%s, URLs and e-mail addresses that the model loses",
    "stop_early": "continue the search after the best hypotheses are known",
}
SAMPLING = {
    "sampling": "sample translations instead of searching",
    "mbr": "minimum Bayes risk decoding: write the sample that is most like the others by this score",
    "samples": "number of samples per sentence for --mbr",
    "temperature": "softmax temperature; below 1 is sharper, above 1 flatter",
    "top_k": "sample from the N most probable subwords; 0: all",
    "top_p": "sample from the most probable subwords with this total probability",
    "epsilon": f"sample no subword less probable than this (default: {MBR_EPSILON} with --mbr, else 0)",
    "seed": "random seed; a sentence gets the same translation with the same seed",
}


def add_translation_options(parser: argparse.ArgumentParser, *omitted: str) -> None:
    """The options of the commands that translate."""
    for title, help_of in (
        ("search (lengths are in subwords; a model may override the defaults)", SEARCH),
        ("sampling", SAMPLING),
    ):
        if chosen := {name: text for name, text in help_of.items() if name not in omitted}:
            add_settings(parser.add_argument_group(title), TranslationConfig, chosen)
    add_options(parser.add_argument_group("machine"), MACHINE)


def for_translation(arguments: argparse.Namespace) -> dict[str, Any]:
    """Tune the process for translation, and return the remaining arguments."""
    given = vars(arguments)
    tune_for_translation()
    use_threads(given.pop("threads", None))
    return given


def add_options(group: Any, options: Mapping[str, str], *required: str, absent: Any = argparse.SUPPRESS) -> None:
    """Add options from usage and help: `--tokens N` is an integer, `--json` a switch, `--file FILE+` a list.

    An option that is not given has the value `absent`, or is absent by default.
    """
    for usage, text in options.items():
        flag, _, metavar = usage.partition(" ")
        kind: dict[str, Any] = {"default": absent}
        if metavar.endswith(("+", "*")):
            kind["nargs"], metavar = metavar[-1], metavar[:-1]
            kind["default"] = [] if kind["nargs"] == "*" else absent
        if metavar.startswith("{"):
            kind["choices"] = metavar[1:-1].split(",")
            if "nargs" in kind:  # argparse would list the choices twice: let the help do it
                kind["metavar"] = "NAME"
        elif metavar:
            kind |= {"metavar": metavar, "type": TYPES.get(metavar, str)}
        else:
            kind["action"] = "store_true"
        if flag in required:
            kind["required"], text = True, f"{text} (required)"
        group.add_argument(flag, help=text, **kind)


def add_settings(group: Any, config: type, help_of: Mapping[str, str]) -> None:
    """Add an option for each field of `config` in `help_of`, with the field's type; help shows its default."""
    hints, defaults = get_type_hints(config), {field.name: field.default for field in fields(config)}
    for name, text in help_of.items():
        default, hint, flag = defaults[name], hints[name], f"--{name.replace('_', '-')}"
        if get_origin(hint) in (Union, UnionType):  # with None
            (hint,) = (arg for arg in get_args(hint) if arg is not type(None))
        if hint is bool and default:
            flag = NEGATIONS.get(name, f"--no-{flag[2:]}")
            group.add_argument(flag, dest=name, action="store_false", default=argparse.SUPPRESS, help=text)
            continue
        several = "+" if get_origin(hint) is tuple else ""
        hint = get_args(hint)[0] if several else hint
        metavar = METAVARS[hint] if hint in METAVARS else f"{{{','.join(get_args(hint))}}}"
        if several and hint not in METAVARS:
            text = f"{text}: {' '.join(get_args(hint))}"
        add_options(group, {f"{flag} {metavar}{several}".rstrip(): text + _shown(default)})


def _shown(default: Any) -> str:
    if default is None or default is MISSING or default is False or default == ():
        return ""
    values = default if isinstance(default, tuple) else (default,)
    return f" (default: {' '.join(f'{value:g}' if isinstance(value, float) else str(value) for value in values)})"


def settings_in(config: type[T], arguments: argparse.Namespace, **others: Any) -> T:
    """A `config` of the arguments that are its fields, and of others."""
    names = {field.name for field in fields(config)}  # type: ignore[arg-type]
    given = {name: value for name, value in vars(arguments).items() if name in names}
    return from_table(config, given | others)


TYPES: dict[str, type] = {
    **dict.fromkeys(("N", "STEP", "K", "PORT"), int),
    **dict.fromkeys(("X", "SECONDS", "MINUTES"), float),
    **dict.fromkeys(("DATASET", "DIR", "MODEL", "PATH", "RUN"), Path),
}
