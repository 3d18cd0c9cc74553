"""gettext catalogues (PO): untranslated messages are filled in and marked as fuzzy; other lines stay as they are."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from gettext import c2py

from deepnmt.decoding.documents.accelerators import with_accelerator, without_accelerator
from deepnmt.decoding.documents.document import Document, Part
from deepnmt.decoding.documents.plurals import plural_rule
from deepnmt.decoding.documents.prose import paragraphs
from deepnmt.decoding.documents.tagged import tagged
from deepnmt.decoding.documents.tokens import Token, text_token
from deepnmt.decoding.translator import Hypothesis
from deepnmt.errors import InputError
from deepnmt.languages import base_language

WIDTH = 79  # columns, gettext's own
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_KEYWORD = re.compile(r"\s*(msgctxt|msgid_plural|msgid|msgstr(?:\[\d{1,2}\])?)\s*(?=\")")
_STRING = re.compile(r"\s*\"((?:[^\"\\]|\\.)*)\"\s*")
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_NAMES = {**{char: f"\\{name}" for name, char in _ESCAPES.items()}, '"': '\\"', "\\": "\\\\"}
# Of the formats of C, Python, PHP and others: %s, %(name)s, %1$-5.2f, %<PRIu64>; and %%.
_DIRECTIVE = re.compile(
    r"%(?:(?P<number>\d{1,2}\$)|\(\w{1,80}\))?[-+ #0']*(?:\*|\d{1,3})?(?:\.(?:\*|\d{1,3}))?"
    r"(?:hh|ll|[hlLqjzt])?(?:[diouxXeEfFgGaAcCsSpnm@%]|<\w{1,20}>)"
)
# Options of commands: --files0-from=F, -v
_OPTION = re.compile(r"(?<![\w-])(?:--[a-z][\w-]+(?:=[\w-]+)?|-[A-Za-z0-9](?![\w-]))")
_IN_FORMAT = re.compile(f"{_DIRECTIVE.pattern}|{_OPTION.pattern}")
_HAS_DIRECTIVES = re.compile(r"(?<![\w-])(?!no-|\w+-brace)[\w-]+-format")


@dataclass
class Field:
    """A keyword with its string, from one line to another (excluded)."""

    first: int
    last: int
    text: str


@dataclass
class Entry:
    """A message of the file. Comments come before `first`, the line of its first keyword."""

    first: int
    last: int = 0
    flags: int | None = None  # the line of its flags
    previous: int | None = None  # the first line of the previous source
    fields: dict[str, Field] = field(default_factory=dict)

    @property
    def translations(self) -> list[Field]:
        return [own for name, own in self.fields.items() if name.startswith("msgstr")]

    @property
    def is_header(self) -> bool:
        return "msgstr" in self.fields and "msgctxt" not in self.fields and not self.fields["msgid"].text

    @property
    def is_untranslated(self) -> bool:
        return bool(self.fields["msgid"].text) and not any(own.text for own in self.translations)


def read_po(text: str, language: str) -> Document:
    lines = _LINE.findall(text)
    entries = list(_entries(lines))
    header = next((entry for entry in entries if entry.is_header), None)
    return Document(_parts(lines, entries, Header(lines, header, language)))


def _parts(lines: list[str], entries: list[Entry], header: "Header") -> Iterator[str | Part]:
    at = 0
    plural = None
    for entry in entries:
        start = min(place for place in (entry.flags, entry.previous, entry.first) if place is not None)
        yield "".join(lines[at:start])
        at = entry.last
        if entry is header.entry:
            has_plurals = any("msgid_plural" in other.fields for other in entries)
            yield header.written(start, has_plurals)
        elif entry.is_untranslated:
            if "msgid_plural" in entry.fields and plural is None:
                plural = header.plural(entry.first)
            yield Message(lines, entry, start, header.language, plural or (1, 0))
        else:
            yield "".join(lines[start:at])
    yield "".join(lines[at:])


def _entries(lines: Sequence[str]) -> Iterator[Entry]:
    entry, name = Entry(0), ""
    for number, line in enumerate(lines):
        keyword = _KEYWORD.match(line)
        if (line.lstrip().startswith("#") or (keyword and keyword[1] in ("msgctxt", "msgid"))) and entry.translations:
            yield _checked(entry)
            entry = Entry(number)
        if not line.strip():
            continue
        if line.lstrip().startswith("#"):
            _add_comment(entry, number, line.lstrip())
            continue
        string = _STRING.fullmatch(line, keyword.end() if keyword else 0)
        if string is None or not (keyword or name in entry.fields):
            expected = "a comment, or a keyword such as msgid and a string in double quotes"
            raise InputError(f"line {number + 1:,}: expected {expected}, not {line.strip()[:60]!r}")
        if keyword:
            name = keyword[1]
            if name in entry.fields:
                raise InputError(f"line {number + 1:,}: the message has a second {name}")
            entry.first = number if not entry.fields else entry.first
            entry.fields[name] = Field(number, number, "")
        own = entry.fields[name]
        own.text, own.last = own.text + _unescaped(string[1]), number + 1
        entry.last = own.last
    if entry.fields:
        yield _checked(entry)


def _add_comment(entry: Entry, number: int, line: str) -> None:
    if line.startswith("#~"):  # the comments before it belong to an obsolete message
        entry.flags = entry.previous = None
    elif line.startswith("#,"):
        entry.flags = number
    elif line.startswith("#|") and entry.previous is None:
        entry.previous = number


def _checked(entry: Entry) -> Entry:
    wanted = ["msgid", "msgstr[0]" if "msgid_plural" in entry.fields else "msgstr"]
    for name in wanted:
        if name not in entry.fields:
            raise InputError(f"line {entry.first + 1:,}: the message has no {name}")
    return entry


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        octal, hexadecimal, name = match.groups()
        if octal or hexadecimal:
            return chr(int(octal, 8) if octal else int(hexadecimal, 16))
        return _ESCAPES.get(name, name)

    return _ESCAPE.sub(character, text) if "\\" in text else text


def _field_lines(name: str, text: str, is_wrapped: bool, end: str) -> str:
    """As gettext writes it: a string with several lines, or one that is too long, begins on the next line."""
    escaped = ["".join(_NAMES.get(char, char) for char in line) for line in _LINE.findall(text)]
    rows = escaped
    if is_wrapped and (len(escaped) != 1 or len(name) + 3 + len(escaped[0]) > WIDTH):
        rows = [row for line in escaped for row in _filled(line)]
    if len(rows) == 1:
        return f'{name} "{rows[0]}"{end}'
    return "".join([f'{name} ""{end}', *(f'"{row}"{end}' for row in rows)])


def _filled(line: str) -> Iterator[str]:
    row = ""
    for word in re.findall(r"[^ ]* *", line):
        if row and len(row) + len(word.rstrip()) + 2 > WIDTH:
            yield row
            row = ""
        row += word
    if row:
        yield row


class Header:
    """The catalogue's first message, with its language and its plural forms; a template's gaps are filled in."""

    def __init__(self, lines: list[str], entry: Entry | None, language: str) -> None:
        self.lines, self.entry, self.language = lines, entry, language
        self.text = entry.fields["msgstr"].text if entry else ""
        self.line = entry.first + 1 if entry else 1
        charset = re.search(r"charset=([^\s;]+)", self._value("Content-Type"))
        if charset and charset[1].upper() not in ("UTF-8", "UTF8", "CHARSET"):
            raise InputError(
                f"line {self.line:,}: the catalogue is in {charset[1]}; convert it with `msgconv -t UTF-8` first"
            )
        declared = self._value("Language")
        if declared and base_language(declared) != base_language(language):
            raise InputError(
                f"line {self.line:,}: the catalogue is in the language {declared}, but the model translates to "
                f"{language}; correct the header's Language or choose another model"
            )

    def _value(self, name: str) -> str:
        match = re.search(rf"^{name}:[ \t]*(.*)$", self.text, re.MULTILINE)
        return match[1].strip() if match else ""

    @property
    def rule(self) -> str:
        own = self._value("Plural-Forms")
        return own if own and "INTEGER" not in own else plural_rule(self.language) or ""

    def plural(self, first: int) -> tuple[int, int]:
        """The number of plural forms, and which of them is that of one."""
        if not self.rule:
            raise InputError(
                f"line {first + 1:,}: the message has a plural, but the header has no Plural-Forms, and deepnmt does "
                f"not know those of {self.language}; add them to the header"
            )
        match = re.fullmatch(r"\s*nplurals\s*=\s*(\d{1,2})\s*;\s*plural\s*=\s*([^;]+);?\s*", self.rule)
        try:
            count, one = (int(match[1]), c2py(match[2])(1)) if match else (0, 0)
        except ValueError:
            count, one = 0, 0
        if not 0 <= one < count:
            raise InputError(f"line {self.line:,}: the header's Plural-Forms are not valid: {self.rule}")
        return count, one

    def written(self, start: int, has_plurals: bool) -> str:
        """The header's own lines, unless a field is missing that the messages need."""
        assert self.entry is not None
        own, text = self.entry.fields["msgstr"], self.text.replace("charset=CHARSET", "charset=UTF-8")
        values = {"Language": _locale(self.language)} if not self._value("Language") else {}
        if has_plurals and self.rule and self._value("Plural-Forms") != self.rule:
            values["Plural-Forms"] = self.rule
        for name, value in values.items():
            rows = [row for row in text.splitlines() if row]
            places = [i for i, row in enumerate(rows) if row.startswith(f"{name}:")] or [len(rows)]
            rows[places[0] : places[0] + 1] = [f"{name}: {value}"]
            text = "".join(f"{row}\n" for row in rows)
        before = self.lines[start : own.first]
        if text == self.text:
            return "".join(self.lines[start : self.entry.last])
        if self.entry.flags is not None:  # of a template
            flags = self.lines[self.entry.flags]
            before[self.entry.flags - start] = _with_flag(flags, is_fuzzy=False)
        return "".join(before) + _field_lines("msgstr", text, False, _end(self.lines[own.first]))


def _locale(language: str) -> str:
    """de, pt_BR; de for deu_Latn."""
    match = re.fullmatch(r"([a-z]{2})[-_]([A-Za-z]{2})", language)
    return f"{match[1]}_{match[2].upper()}" if match else base_language(language)


def _end(line: str) -> str:
    return "\r\n" if line.endswith("\r\n") else "\n"


def _with_flag(line: str, is_fuzzy: bool) -> str:
    """A line of flags with or without `fuzzy`; nothing if that leaves none."""
    flags = [flag for flag in (part.strip() for part in line.lstrip()[2:].split(",")) if flag and flag != "fuzzy"]
    flags = ["fuzzy", *flags] if is_fuzzy else flags
    return f"#, {', '.join(flags)}{_end(line)}" if flags else ""


class Message(Part):
    """An untranslated message; `plural` is the number of plural forms and the form of one."""

    def __init__(self, lines: list[str], entry: Entry, start: int, language: str, plural: tuple[int, int]) -> None:
        self.lines, self.entry, self.start, self.language, self.plural = lines, entry, start, language, plural
        self.texts = [entry.fields[name].text for name in ("msgid", "msgid_plural") if name in entry.fields]
        self.labels = [without_accelerator(text) for text in self.texts]
        flags = lines[entry.flags] if entry.flags is not None else ""
        self.is_c = re.search(r"(?<![\w-])c-format", flags) is not None
        is_format = _HAS_DIRECTIVES.search(flags) is not None
        tokens_of = partial(_tokens, _IN_FORMAT if is_format else _OPTION)
        escape = _percent_escaped if is_format else str
        self.inside = [Document(paragraphs(label, language, tokens_of, escape)) for label, _ in self.labels]

    @property
    def sentences(self) -> list[tuple[str, bool]]:
        return [sentence for document in self.inside for sentence in document.sentences]

    def written(self, hypotheses: Iterator[Hypothesis]) -> str:
        entry, start = self.entry, self.start
        found = [document.written(hypotheses) for document in self.inside]
        first = entry.translations[0].first
        before, end = self.lines[start:first], _end(self.lines[first])
        if any(text.strip() and not own.strip() for text, own in zip(self.texts, found, strict=True)):
            return "".join(self.lines[start : entry.last])
        if entry.flags is None:
            place = entry.first if entry.previous is None else entry.previous
            before.insert(place - start, f"#, fuzzy{end}")
        else:
            before[entry.flags - start] = _with_flag(self.lines[entry.flags], is_fuzzy=True)
        is_wrapped = all(len(line) <= WIDTH + 2 for line in self.lines[entry.first : first])
        values = list(map(self._value, self.texts, self.labels, found))
        names = {"msgstr": values[0]}
        if len(values) > 1:
            count, one = self.plural
            names = {f"msgstr[{i}]": values[not (i == one and count > 1)] for i in range(count)}
        return "".join(before) + "".join(_field_lines(name, text, is_wrapped, end) for name, text in names.items())

    def _value(self, source: str, label: tuple[str, str], translation: str) -> str:
        """The translation with its accelerator and, for C, arguments that say their number if the order changes."""
        if translation == label[0]:
            return source
        text = with_accelerator(translation, label[1], self.language)
        return _numbered(source, text) if self.is_c else text


def _tokens(kept: re.Pattern[str], text: str) -> Iterator[Token]:
    """The tokens of a message, in which all that matches is kept, whatever the translation."""
    for token in tagged(text):
        at = 0
        for match in kept.finditer(token.raw) if token.kind == "text" else ():
            raw = match.group()
            yield text_token(token.raw[at : match.start()])
            yield text_token(raw, "%") if raw == "%%" else Token("opaque", raw, text=raw)
            at = match.end()
        yield text_token(token.raw[at:]) if at else token


def _percent_escaped(text: str) -> str:
    return text.replace("%", "%%")


def _numbered(source: str, translation: str) -> str:
    """%2$s before %1$d, where the translation has them in another order."""
    order, own = ([each for each in map(_plain, _DIRECTIVE.finditer(text)) if each] for text in (source, translation))
    if own == order or sorted(own) != sorted(order) or any("*" in each for each in own):
        return translation
    left = list(enumerate(order, start=1))

    def numbered(match: re.Match[str]) -> str:
        if not (directive := _plain(match)):
            return match.group()
        number = next(number for number, each in left if each == directive)
        left.remove((number, directive))
        return f"%{number}${directive[1:]}"

    return _DIRECTIVE.sub(numbered, translation)


def _plain(match: re.Match[str]) -> str:
    """A directive for the next argument; nothing for %%, a number or a name."""
    return "" if match["number"] or match.group().endswith("%") or "(" in match.group() else match.group()
