"""Command-line options made from tables of help texts.

Options that fill a dataclass take their types and defaults from its fields. Others are written as in a usage line. What
a user does not give is absent from the parsed arguments, so that a default has its home in the function that is called.
"""

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from deepnmt.decoding.config import TranslationConfig
from deepnmt.devices import tune_for_translation, use_threads

NEGATIONS = {"stop_early": "--no-early-stop"}  # as others call it
METAVARS = {bool: "", int: "N", float: "X", str: "NAME", Path: "PATH"}

RECIPE = {"recipe RECIPE": "the name of a bundled preset, or a recipe file (.toml)"}
OVERRIDES = {"overrides section.field=value*": "settings that replace the recipe's"}
MACHINE = {
    "--device cpu|cuda": "default: cuda if available",
    "--precision fp32|bf16|fp16|int8": "int8: CPU; fp16: GPU (default: fp32)",
    "--threads N": "CPU threads (default: all available cores)",
}
CHUNK = {"--chunk N": "lines sorted by length and translated together"}

SEARCH = {
    "beam": "hypotheses kept per step; 1 is greedy search",
    "length_penalty": "alpha: a score is log probability / length**alpha",
    "penalty_form": "gnmt: divide by ((5 + length) / 6)**alpha instead",
    "patience": "a sentence is done after patience * beam finished hypotheses",
    "min_length": "shortest translation",
    "max_length": "longest translation, instead of ratio and extra",
    "max_length_ratio": "longest translation: ratio * source + extra",
    "max_length_extra": "subwords added to that",
    "no_repeat_ngram": "forbid repeated sequences of N subwords; 0: allow",
    "max_source_length": "split longer lines into sentences or clauses, with a warning",
    "batch_tokens": "source subwords translated at once",
    "allow_unknown": "allow <unk> in the output",
    "keep_placeholders": "put back {name}, %%s, URLs and e-mail addresses that the model loses",
    "stop_early": "continue after the best hypotheses are known",
}
SAMPLING = {
    "sampling": "draw each subword instead of searching",
    "temperature": "below 1 sharper, above 1 flatter",
    "top_k": "draw from the K most probable subwords; 0: all",
    "top_p": "draw from the fewest subwords with this share of the probability",
    "seed": "the same seed and sentence give the same translation",
}


def add_translation_options(parser: argparse.ArgumentParser, *omitted: str) -> None:
    """What `translate`, `evaluate` and `backtranslate` share. A default may be overridden by the model's own."""
    for title, help_of in (
        ("sampling", SAMPLING),
        ("search (lengths in subwords; a model may have its own defaults)", SEARCH),
    ):
        chosen = {name: text for name, text in help_of.items() if name not in omitted}
        add_settings(parser.add_argument_group(title), TranslationConfig, chosen, passed_on=False)
    add_options(parser.add_argument_group("machine"), MACHINE)


def for_translation(arguments: argparse.Namespace) -> dict[str, Any]:
    """Tune the process, and return the arguments for the function that translates."""
    given = vars(arguments)
    tune_for_translation()
    use_threads(given.pop("threads", None))
    return given


def add_options(group: Any, options: Mapping[str, str], *required: str, absent: Any = argparse.SUPPRESS) -> None:
    """Options from usage and help: `--tokens N` is a whole number, `--json` a switch; + and * follow repeated values.

    What is not given has the value `absent`, or by default none.
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
            kind["required"] = True
        group.add_argument(flag, help=text, **kind)


def add_settings(group: Any, config: type, help_of: Mapping[str, str], *, passed_on: bool = True) -> None:
    """An option for each field of `config` that `help_of` names, with the field's type and default.

    With `passed_on` false an option that is not given is absent, so that the default can come from elsewhere.
    """
    hints, defaults = get_type_hints(config), {field.name: field.default for field in fields(config)}
    for name, text in help_of.items():
        default, hint, flag = defaults[name], hints[name], f"--{name.replace('_', '-')}"
        absent = default if passed_on and default is not MISSING else argparse.SUPPRESS
        if get_origin(hint) in (Union, UnionType):  # with None
            (hint,) = (arg for arg in get_args(hint) if arg is not type(None))
        if hint is bool and default:
            flag = NEGATIONS.get(name, f"--no-{flag[2:]}")
            group.add_argument(flag, dest=name, action="store_false", default=absent, help=text)
            continue
        several = "+" if get_origin(hint) is tuple else ""
        hint = get_args(hint)[0] if several else hint
        metavar = METAVARS[hint] if hint in METAVARS else f"{{{','.join(get_args(hint))}}}"
        if several and hint not in METAVARS:
            text = f"{text}: {' '.join(get_args(hint))}"
        add_options(group, {f"{flag} {metavar}{several}".rstrip(): text + _shown(default)}, absent=absent)


def _shown(default: Any) -> str:
    if default is None or default is MISSING or default is False or default == ():
        return ""
    values = default if isinstance(default, tuple) else (default,)
    return f" (default: {' '.join(f'{value:g}' if isinstance(value, float) else str(value) for value in values)})"


def settings_in(config: type, arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of `config` among the arguments, as far as they are there."""
    names = {field.name for field in fields(config)}
    return {name: value for name, value in vars(arguments).items() if name in names}


TYPES: dict[str, type] = {
    **dict.fromkeys(("N", "STEP", "K", "P"), int),
    **dict.fromkeys(("X", "S", "M"), float),
    **dict.fromkeys(("DATASET", "DIR", "FILE", "MODEL", "PATH", "RUN"), Path),
}
