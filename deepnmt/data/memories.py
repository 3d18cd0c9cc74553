"""Translation memories: the pairs of TMX and XLIFF files in two languages.

The standard library's expat parses them incrementally and fetches nothing. A file that declares an entity is refused,
so that no file can read others or expand without bounds.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any
from xml.parsers import expat

from deepnmt.errors import InputError
from deepnmt.languages import base_language
from deepnmt.text import MAX_LINE_BYTES, iterate_blocks

# Inline elements whose content is markup of the original document, not text.
CODES = {"bpt", "ept", "it", "ph", "ut", "sub", "x", "bx", "ex", "sc", "ec", "cp"}
UNITS = {"tu", "trans-unit", "segment"}  # of TMX, XLIFF 1 and XLIFF 2
TEXTS = {"seg", "source", "target"}
UNTRANSLATED = {"new", "needs-translation", "initial"}  # states of a target


def iterate_memory(path: Path, source_lang: str, target_lang: str) -> Iterator[bytes]:
    """Yield each pair as a line of two columns, as in a .tsv file."""
    reader = _Reader(path, (source_lang, target_lang))
    found = False
    for block in chain(iterate_blocks(path), [b""]):
        for pair in reader.feed(block):
            found = True
            yield b"\t".join(" ".join(text.split()).encode("utf-8") for text in pair)
    if not found:
        has = ", ".join(sorted(reader.languages)) or "none"
        raise InputError(f"{path} has no pairs in {source_lang} and {target_lang}; its languages are {has}")


class _Reader:
    """Collects the pairs of complete units. Elements are matched by local name, in any namespace."""

    def __init__(self, path: Path, wanted: tuple[str, str]) -> None:
        self.path, self.wanted = path, wanted
        self.languages: set[str] = set()
        self._pairs: list[tuple[str, str]] = []
        self._has_begun = False
        self._sides = ("", "")  # the languages of source and target, where a file says them once
        self._language = ""
        self._texts: dict[str, str] = {}  # of the current unit, by language
        self._text: list[str] | None = None
        self._length = self._codes = self._alternatives = 0
        self._is_translated = True
        parser = self._parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._add
        parser.EntityDeclHandler = self._refuse_entity
        parser.SkippedEntityHandler = lambda name, _: self._refuse_entity(name)

    def feed(self, block: bytes) -> list[tuple[str, str]]:
        """Parse a block (an empty one is the end), and return the pairs that it completes."""
        self._pairs = []
        try:
            self._parser.Parse(block, not block)
        except expat.ExpatError as error:
            where = f"{self.path}, line {error.lineno:,}"
            raise InputError(f"{where}: not well-formed XML ({expat.ErrorString(error.code)})") from error
        except (LookupError, ValueError) as error:
            raise InputError(f"{self.path} has an unknown encoding: {error}") from error
        return self._pairs

    def _start(self, tag: str, attributes: Mapping[str, str]) -> None:
        name = tag.rpartition(":")[2]
        if not self._has_begun:
            if name not in ("tmx", "xliff"):
                raise InputError(f"{self.path} is neither TMX nor XLIFF: its first element is <{name}>")
            self._has_begun = True
            self._sides = attributes.get("srcLang", ""), attributes.get("trgLang", "")  # of XLIFF 2
        elif self._text is not None:
            self._codes += name in CODES
        elif name == "alt-trans":
            self._alternatives += 1
        elif name in UNITS:
            self._texts, self._is_translated = {}, attributes.get("state") not in UNTRANSLATED
        elif name == "file" and "source-language" in attributes:  # of XLIFF 1
            self._sides = attributes["source-language"], attributes.get("target-language", "")
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang", "")
        elif name in TEXTS and not self._alternatives:
            self._text, self._length = [], 0
            if name != "seg":
                self._language = attributes.get("xml:lang") or self._sides[name == "target"]
            if name == "target" and attributes.get("state") in UNTRANSLATED:
                self._is_translated = False

    def _end(self, tag: str) -> None:
        name = tag.rpartition(":")[2]
        if self._text is not None:
            if name in TEXTS:
                self.languages.add(self._language or "unknown")
                self._texts.setdefault(self._language, "".join(self._text))
                self._text = None
            else:
                self._codes -= name in CODES
        elif name == "alt-trans":
            self._alternatives -= 1
        elif name in UNITS:
            source, target = (self._in(language) for language in self.wanted)
            if source is not None and target is not None and target.strip() and self._is_translated:
                self._pairs.append((source, target))

    def _in(self, wanted: str) -> str | None:
        """The text in this language, or else in a variant of it."""
        texts, base = self._texts.items(), base_language(wanted)
        exact = [text for language, text in texts if language.lower() == wanted.lower()]
        close = [text for language, text in texts if base_language(language) == base]
        return next(iter(exact + close), None)

    def _add(self, text: str) -> None:
        if self._text is not None and not self._codes:
            self._length += len(text)
            if self._length > MAX_LINE_BYTES:
                line = self._parser.CurrentLineNumber
                raise InputError(f"{self.path}, line {line:,}: a text is longer than {MAX_LINE_BYTES:,} characters")
            self._text.append(text)

    def _refuse_entity(self, name: str, *_: Any) -> None:
        line = self._parser.CurrentLineNumber
        raise InputError(f"{self.path}, line {line:,}: the entity {name!r} is not supported; replace it by its text")
