"""From plain tables (TOML, JSON) to frozen dataclasses, with checks of names and types."""

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from deepnmt.errors import InputError

T = TypeVar("T")


def from_table(cls: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """Build the dataclass `cls` from `table`; `where` is the dotted name of the table in messages.

    For a field whose metadata has `variants` (kind -> dataclass), the table's `kind` selects the dataclass.
    """
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    for name in table:
        if name not in fields:
            deeper = " or ".join(_inside(cls, name, where))
            nearest = f"; did you mean {deeper}?" if deeper else did_you_mean(name, fields)
            raise InputError(f"unknown setting {_dotted(where, name)}{nearest}")
    hints = typing.get_type_hints(cls)
    values = {
        name: _value(hints[name], fields[name].metadata, value, _dotted(where, name)) for name, value in table.items()
    }
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise InputError(f"missing setting {_dotted(where, name)}")
    try:
        return cls(**values)
    except ValueError as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from error


def _inside(cls: type[Any], name: str, where: str) -> Iterator[str]:
    """The full names of the settings called `name` in the sections of `cls`."""
    for section, hint in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            inner = _dotted(where, section)
            if name in (field.name for field in dataclasses.fields(hint)):
                yield _dotted(inner, name)
            yield from _inside(typing.cast(type[Any], hint), name, inner)


def to_table(settings: Any) -> dict[str, Any]:
    """The inverse of `from_table`: nested plain tables without fields that are None."""
    table: dict[str, Any] = {"kind": settings.kind} if hasattr(settings, "kind") else {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            table[field.name] = to_table(value)
        elif isinstance(value, tuple):
            table[field.name] = list(value)
        elif value is not None:
            table[field.name] = value
    return table


def to_toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """TOML of numbers, strings, lists and tables of them."""
    lines = [f"{_key(name)} = {_toml(value)}\n" for name, value in table.items() if not isinstance(value, Mapping)]
    for name, value in table.items():
        if isinstance(value, Mapping):
            header = f"{prefix}{_key(name)}"
            lines.append(f"\n[{header}]\n{to_toml(value, header + '.')}")
    return "".join(lines)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _toml(name)


def _toml(value: Any) -> str:
    """As JSON writes it, except infinity, which JSON does not have, and DEL, which TOML does not allow."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def parse_override(override: str) -> tuple[str, Any]:
    """The name and the value of `section.field=value`. The value is TOML, or else a plain string."""
    name, separator, text = (part.strip() for part in override.partition("="))
    if not separator or not all(name.split(".")):
        raise InputError(f"override {override!r} is not of the form section.field=value")
    try:
        return name, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return name, text


def overlay(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables; `above` wins. A table with a `kind` replaces the one below, which may be of another kind.

    A string below options is a kind: `connection = "dlcl"`, and above it `connection.groups = 4`.
    """
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        if isinstance(value, Mapping) and "kind" not in value and isinstance(old, dict | str):
            value = overlay({"kind": old} if isinstance(old, str) else old, value)
        merged[name] = value
    return merged


def _value(hint: Any, metadata: Mapping[str, Any], value: Any, where: str) -> Any:
    if "variants" in metadata:
        return _variant(metadata["variants"], value, where)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (arg for arg in args if arg is not type(None))
        return None if value is None else _value(inner, metadata, value, where)
    if origin is typing.Literal:
        return _choice(args, value, where)
    if origin is tuple:
        return _sequence(args, value, where)
    if (origin is dict or dataclasses.is_dataclass(hint)) and not isinstance(value, Mapping):
        raise InputError(f"{where} is a section, not a value: {value!r}")
    if origin is dict:
        return {name: _value(args[1], {}, item, _dotted(where, name)) for name, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return from_table(typing.cast(type[Any], hint), value, where)
    if hint is float and type(value) is int:
        return float(value)
    if hint is Path and isinstance(value, str | Path):
        return Path(value)
    if type(value) is not hint:
        raise InputError(f"{where} must be {_NAMES.get(hint, hint)}, not {value!r}")
    return value


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


def _variant(variants: Mapping[str, type[Any]], value: Any, where: str) -> Any:
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or "kind" not in table:
        raise InputError(f"{where}.kind is missing; choose from {', '.join(variants)}")
    kind = _choice(tuple(variants), table["kind"], f"{where}.kind")
    return from_table(variants[kind], {name: value for name, value in table.items() if name != "kind"}, where)


def _choice(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value in choices:
        return value
    raise InputError(f"{where} is {value!r}, not one of {', '.join(map(str, choices))}{did_you_mean(value, choices)}")


def _sequence(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{where} must be a list, not {value!r}")
    if args and args[-1] is Ellipsis:
        args = (args[0],) * len(value)
    if len(args) != len(value):
        raise InputError(f"{where} must have {len(args)} entries, not {len(value)}")
    return tuple(_value(arg, {}, item, f"{where}[{i}]") for i, (arg, item) in enumerate(zip(args, value, strict=True)))


def did_you_mean(name: Any, names: Iterable[Any]) -> str:
    """The end of an error message: the nearest known name, if any is close."""
    bare = {str(known).lstrip("-"): known for known in names}  # all options begin alike
    close = difflib.get_close_matches(str(name).lstrip("-"), bare, n=1, cutoff=0.5)
    return f"; did you mean {bare[close[0]]}?" if close else ""


def check_bounds(
    settings: Any, names: str, *, least: float | None = None, above: float | None = None, below: float | None = None
) -> None:
    """Raise if a value of these fields is out of bounds; None is always allowed, and a tuple has several values.

    names: separated by spaces; a name may have a section, which the error shows.
    """
    wanted = {"at least": least, "above": above, "below": below}
    bounds = " and ".join(f"{name} {bound:g}" for name, bound in wanted.items() if bound is not None)
    bounds = bounds.replace("below inf", "finite")
    for name in names.split():
        value = getattr(settings, name.rpartition(".")[2])
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and not (
                (least is None or number >= least)
                and (above is None or number > above)
                and (below is None or number < below)
            ):
                raise ValueError(f"{name} = {number} must be {bounds}")


def _dotted(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
