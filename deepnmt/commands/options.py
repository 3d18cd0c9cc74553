"""Command-line options made from dataclasses: a default is written in its field, and help shows it from there."""

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

METAVARS = {int: "N", float: "X", str: "NAME"}


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
            flag = f"--no-{flag[2:]}" if default else flag
            action = "store_false" if default else "store_true"
            group.add_argument(flag, dest=name, action=action, default=absent, help=text)
            continue
        shown = "" if default is None or default is MISSING else f" (default: {default:g})" if hint is float else (
            f" (default: {default})"
        )  # fmt: skip
        kind: dict[str, Any] = {"type": hint, "metavar": METAVARS[hint]} if hint in METAVARS else {}
        if get_origin(hint) is Literal:
            kind = {"choices": get_args(hint)}
        group.add_argument(flag, dest=name, default=absent, help=(text + shown).lstrip(), **kind)


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
