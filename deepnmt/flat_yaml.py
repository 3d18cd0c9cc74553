"""Reads the YAML that Marian writes: a table of scalars and lists of scalars, nothing deeper."""

import re

from deepnmt.errors import InputError

_ESCAPE = re.compile(r'\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0abtnvfre "/\\N_LP])')
_ESCAPED = dict(zip('0abtnvfre "/\\N_LP', '\0\a\b\t\n\v\f\r\x1b "/\\\x85\xa0\u2028\u2029', strict=True))
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\']|\'\')*)\'')


def read_flat_yaml(text: str, where: str) -> dict[str, str | list[str]]:
    """The entries of the table in order, unquoted and unescaped; numbers stay text."""
    table: dict[str, str | list[str]] = {}
    key = ""
    # Not `splitlines`: a vocabulary may contain other characters that end a line for Python.
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not line.strip() or line.startswith(("#", "---", "...")):
            continue
        if line.startswith(" "):
            table[key] = _continued(table.get(key), line, where, number)
            continue
        key, value = _entry(line, where, number)
        if key in table:
            raise InputError(f"{where}, line {number}: {key!r} is a duplicate")
        table[key] = [] if value == "[]" else _scalar(value)
    return table


def _continued(value: str | list[str] | None, line: str, where: str, number: int) -> list[str]:
    """The list with one more item; a list begins with a key without a value."""
    item = re.fullmatch(r" *(?:- (.*)|\[\])", line)
    if item is None or not isinstance(value, list | str) or (value and isinstance(value, str)):
        raise _refused(where, number, line)
    return [*value, *([] if item[1] is None else [_scalar(item[1])])]


def _entry(line: str, where: str, number: int) -> tuple[str, str]:
    if quoted := _QUOTED.match(line):
        colon = re.fullmatch(r" *:(?: +(.*))?", line[quoted.end() :])
        if colon:
            return _scalar(quoted[0]), colon[1] or ""
    elif plain := re.fullmatch(r"(\S.*?):(?: +(.*))?", line):
        return plain[1], plain[2] or ""
    raise _refused(where, number, line)


def _scalar(text: str) -> str:
    quoted = _QUOTED.fullmatch(text.strip())
    if quoted is None:
        return text.strip()
    if quoted[2] is not None:
        return quoted[2].replace("''", "'")
    return _ESCAPE.sub(_unescaped, quoted[1])


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    return _ESCAPED[code] if len(code) == 1 else chr(int(code[1:], 16))


def _refused(where: str, number: int, line: str) -> InputError:
    return InputError(f"{where}, line {number}: {line[:80]!r} is neither an entry nor a list item")
