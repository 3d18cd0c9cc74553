"""Command-line options made from dataclasses: a default is written in its field, and help shows it from there."""

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from deepnmt.decoding.config import TranslationConfig

NEGATIONS = {"stop_early": "--no-early-stop"}  # as others call it
METAVARS = {int: "N", float: "X", str: "NAME", Path: "PATH"}


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
    "keep_placeholders": "put back {name}, %s, URLs and e-mail addresses that the model loses",
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
    machine = parser.add_argument_group("machine")
    machine.add_argument("--device", metavar="cpu|cuda", help="default: cuda if available")
    machine.add_argument(
        "--precision", default="fp32", metavar="fp32|bf16|fp16|int8", help="int8: CPU; fp16: GPU (default: %(default)s)"
    )
    machine.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: all available cores)")


def add_settings(group: Any, config: type, help_of: Mapping[str, str], *, passed_on: bool = True) -> None:
    """An option for each field of `config` that `help_of` names, with the field's type and default.

    With `passed_on` false an option that is not given is absent, so that the default can come from elsewhere.
    """
    hints, by_name = get_type_hints(config), {field.name: field for field in fields(config)}
    for name, text in help_of.items():
        default = by_name[name].default
        hint = _plain(hints[name])
        flag = f"--{name.replace('_', '-')}"
        absent = default if passed_on and default is not MISSING else argparse.SUPPRESS
        if hint is bool:
            flag = NEGATIONS.get(name, f"--no-{flag[2:]}") if default else flag
            action = "store_false" if default else "store_true"
            group.add_argument(flag, dest=name, action=action, default=absent, help=text)
            continue
        kind: dict[str, Any] = {}
        if get_origin(hint) is tuple:
            hint, kind = get_args(hint)[0], {"nargs": "+"}
        if get_origin(hint) is Literal:
            if kind:  # argparse would list the choices twice
                kind["metavar"], text = "NAME", f"{text}: {' '.join(get_args(hint))}"
            kind["choices"] = get_args(hint)
        elif hint in METAVARS:
            kind |= {"type": hint, "metavar": METAVARS[hint]}
        group.add_argument(flag, dest=name, default=absent, help=(text + _shown(default)).lstrip(), **kind)


def _shown(default: Any) -> str:
    if default is None or default is MISSING or default == ():
        return ""
    values = default if isinstance(default, tuple) else (default,)
    return f" (default: {' '.join(f'{value:g}' if isinstance(value, float) else str(value) for value in values)})"


def settings_in(config: type, arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of `config` among the arguments, as far as they are there."""
    names = {field.name for field in fields(config)}
    return {name: value for name, value in vars(arguments).items() if name in names}


def _plain(hint: Any) -> Any:
    """`int | None` is `int`."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (arg for arg in get_args(hint) if arg is not type(None))
    return hint


def whole_number(least: int) -> Any:
    """An argparse type: a whole number of at least `least`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return parse
