"""Tables become frozen dataclasses, or a refusal that names the setting."""

import tomllib
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from pytest import mark, raises

from deepnmt.errors import InputError
from deepnmt.settings import from_table, overlay, parse_override, to_table, to_toml


@dataclass(frozen=True, kw_only=True)
class Round:
    kind: str = field(default="round", init=False)
    radius: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Square:
    kind: str = field(default="square", init=False)
    side: int = 1


@dataclass(frozen=True, kw_only=True)
class Inner:
    depth: int
    rate: float = 0.5

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"depth = {self.depth} must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner
    shape: Round | Square = field(default_factory=Round, metadata={"variants": {"round": Round, "square": Square}})
    on: bool = False
    mode: Literal["slow", "fast"] = "slow"
    betas: tuple[float, float] = (0.9, 0.98)
    sizes: tuple[int, ...] = ()
    limit: int | None = None


TABLE = {"name": "x", "inner": {"depth": 2}}


def test_a_table_fills_the_dataclass_and_defaults_fill_the_rest():
    built = from_table(Outer, TABLE | {"betas": [1, 0.5], "sizes": [1, 2, 3], "limit": 4})
    assert built == Outer(name="x", inner=Inner(depth=2), betas=(1.0, 0.5), sizes=(1, 2, 3), limit=4)
    assert isinstance(built.betas[0], float)


@mark.parametrize("shape", ["square", {"kind": "square"}, {"kind": "square", "side": 3}], ids=str)
def test_a_variant_is_chosen_by_its_kind(shape):
    built = from_table(Outer, TABLE | {"shape": shape})
    assert built.shape == Square(side=3 if "side" in shape else 1)


def test_to_table_is_the_inverse():
    settings = Outer(name="x", inner=Inner(depth=2), shape=Square(side=2), sizes=(1,), limit=3)
    table = to_table(settings)
    assert table["shape"] == {"kind": "square", "side": 2}
    assert from_table(Outer, table) == settings
    assert "limit" not in to_table(Outer(name="x", inner=Inner(depth=2)))


@mark.parametrize(
    ("changes", "message"),
    [
        ({"nam": 1}, "unknown setting nam; did you mean name?"),
        ({"xyzzy": 1}, "unknown setting xyzzy"),
        ({"inner": {"depht": 2}}, "unknown setting inner.depht; did you mean depth?"),
        ({"depth": 2}, "unknown setting depth; did you mean inner.depth?"),
        ({"inner": {}}, "missing setting inner.depth"),
        ({"inner": 3}, "inner is a section, not a value: 3"),
        ({"inner": {"depth": 0}}, "inner: depth = 0 must be at least 1"),
        ({"inner": {"depth": "2"}}, "inner.depth must be a whole number, not '2'"),
        ({"inner": {"depth": 2.0}}, "inner.depth must be a whole number, not 2.0"),
        ({"inner": {"depth": True}}, "inner.depth must be a whole number, not True"),
        ({"inner": {"depth": 2, "rate": "1"}}, "inner.rate must be a number, not '1'"),
        ({"inner": {"depth": 2, "rate": True}}, "inner.rate must be a number, not True"),
        ({"name": 3}, "name must be a string, not 3"),
        ({"on": 1}, "on must be true or false, not 1"),
        ({"mode": "fats"}, "mode is 'fats', not one of slow, fast; did you mean fast?"),
        ({"betas": [0.9]}, "betas must have 2 entries, not 1"),
        ({"betas": 0.9}, "betas must be a list, not 0.9"),
        ({"betas": [0.9, "x"]}, "betas[1] must be a number, not 'x'"),
        ({"limit": "4"}, "limit must be a whole number, not '4'"),
        ({"shape": {"side": 3}}, "shape.kind is missing; choose from round, square"),
        ({"shape": 3}, "shape.kind is missing; choose from round, square"),
        ({"shape": "sqare"}, "shape.kind is 'sqare', not one of round, square; did you mean square?"),
        ({"shape": {"kind": "round", "side": 3}}, "unknown setting shape.side"),
        ({"shape": {"kind": "square", "side": 3.5}}, "shape.side must be a whole number, not 3.5"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refusals_name_the_setting(changes, message):
    with raises(InputError) as refused:
        from_table(Outer, TABLE | changes)
    assert str(refused.value) == message


def test_missing_at_the_top():
    with raises(InputError, match=r"^missing setting name$"):
        from_table(Outer, {"inner": {"depth": 1}})


@mark.parametrize(
    ("override", "value"),
    [
        ("a.b=3", 3),
        (" a.b = 3e-4", 3e-4),
        ("a.b=true", True),
        ("a.b=[1, 2]", [1, 2]),
        ('a.b="3"', "3"),
        ("a.b=pre", "pre"),
        ("a.b=x=y", "x=y"),
        ("a.b=", ""),
    ],
)
def test_override_values_are_toml_or_else_bare_strings(override, value):
    assert parse_override(override) == ("a.b", value)


@mark.parametrize("override", ["a.b", "=3", "a..b=3", ".b=3", "a.=3", ""])
def test_override_refusals(override):
    with raises(InputError) as refused:
        parse_override(override)
    assert str(refused.value) == f"override {override!r} is not of the form section.field=value"


def test_overlaid_tables_merge_and_a_kind_drops_the_options_of_the_kind_before():
    below = {"a": {"b": 1, "c": 2}, "shape": {"kind": "square", "side": 3}}
    above = {"a": {"b": 5, "d": {"e": 4}}, "shape": {"kind": "round"}}
    assert overlay(below, above) == {"a": {"b": 5, "c": 2, "d": {"e": 4}}, "shape": {"kind": "round"}}
    assert below["a"] == {"b": 1, "c": 2}
    assert overlay({"shape": "square"}, {"shape": {"side": 3}}) == {"shape": {"kind": "square", "side": 3}}


def test_toml_of_every_value_is_read_back():
    table = {"x": [1e-8, -inf, 3, True], "a b": {"wörter": 'say "é\x7f\n"', "inf": inf}, "empty": {}}
    assert tomllib.loads(to_toml(table)) == table
