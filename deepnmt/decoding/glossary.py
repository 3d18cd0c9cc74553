"""A glossary: terms of the source language, and how a translation must render them."""

import sys
import unicodedata
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.data.vocabulary import UNK
from deepnmt.decoding.splitting import UNSPACED_LANGUAGES
from deepnmt.decoding.term_search import Phrase, Term
from deepnmt.errors import InputError
from deepnmt.languages import base_language
from deepnmt.text import read_lines

SLACK = 1  # symbols: another article before a term may be longer
ANCHOR = "。"  # before a term, so that it is encoded as in the middle of a text without spaces
ANCHOR_SYMBOLS = 4  # at most: a space and three bytes


def read_terms(path: str | Path) -> dict[str, str]:
    """The terms in a file of lines `source<TAB>target`; blank lines and lines that begin with # are skipped."""
    terms: dict[str, str] = {}
    translations: dict[str, str] = {}  # of a term in any case
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        source, *targets = (part.strip() for part in line.split("\t"))
        if len(targets) != 1 or not source or not targets[0]:
            raise InputError(f"{path}, line {number:,}: expected a source term, a tab and its translation")
        if translations.setdefault(lower_case(source), targets[0]) != targets[0]:
            raise InputError(f"{path}, line {number:,}: {source!r} has another translation on an earlier line")
        terms[source] = targets[0]
    return terms


class Rendering(NamedTuple):
    """The text that must stand for a term, as ids too, and the subwords of the source that are the term."""

    text: str
    symbols: Phrase
    source: slice


class Glossary:
    """Finds its terms in source texts: whole words in any case, the longest first.

    The terms required of one text have at most `max_symbols` subwords: after these, further ones are left out.
    """

    def __init__(self, terms: Mapping[str, str], tokenizers: TokenizerPair, max_symbols: int = sys.maxsize) -> None:
        self.source, self.target, self.max_symbols = tokenizers.source, tokenizers.target, max_symbols
        self.is_spaced = base_language(tokenizers.source.language) not in UNSPACED_LANGUAGES
        self.base: Glossary | None = None
        if not isinstance(terms, Mapping):
            raise InputError(f"terms must be a dictionary of terms and translations, not {terms!r}")
        self.own = self._encoded_terms(terms.items())
        self.terms: Mapping[str, tuple[str, Phrase]] = self.own
        self.sizes = self._sizes()

    def extended(self, terms: Iterable[tuple[str, str]]) -> "Glossary":
        """A glossary of these terms and, where they say nothing else, those of this one, which are shared."""
        other = copy(self)
        other.base, other.own = self, self._encoded_terms(terms)
        other.terms = ChainMap(other.own, self.terms)  # type: ignore[arg-type]
        other.sizes = other._sizes()
        return other

    def own_in(self, text: str) -> tuple[tuple[str, str], ...]:
        """Those of its own terms that may occur in a text, not those of the glossary that it extends."""
        lowered = lower_case(text)
        return tuple((source, target) for source, (target, _) in self.own.items() if source in lowered)

    def in_text(self, text: str) -> list[Rendering]:
        """The renderings of the terms in a text; of a term that occurs more than once, the first."""
        text = unicodedata.normalize("NFC", text)
        lowered, found, place, left = lower_case(text), dict[str, Rendering](), 0, self.max_symbols
        while place < len(lowered):
            size = self._size_at(lowered, place)
            if size:
                target, symbols = self.terms[lowered[place : place + size]]
                if target not in found and len(symbols) <= left:
                    first, last = (len(self.source.encode(text[:end])) for end in (place, place + size))
                    found[target] = Rendering(self.target.normalise(target), symbols, slice(first, last))
                    left -= len(symbols)
            place += size or 1
        return list(found.values())

    def _size_at(self, text: str, start: int) -> int:
        """The length of the longest term here, or zero."""
        if self.is_spaced and _is_inside_word(text, start):
            return 0
        sizes = (size for size in self.sizes if text[start : start + size] in self.terms)
        return next((size for size in sizes if not (self.is_spaced and _is_inside_word(text, start + size))), 0)

    def _sizes(self) -> list[int]:
        """The lengths of all terms, the longest first."""
        base = self.base.sizes if self.base else []
        return sorted({*map(len, self.own), *base}, reverse=True)

    def _encoded_terms(self, terms: Iterable[tuple[str, str]]) -> dict[str, tuple[str, Phrase]]:
        found: dict[str, tuple[str, Phrase]] = {}
        for source, target in terms:
            if not isinstance(source, str) or not isinstance(target, str):
                raise InputError(f"a term and its translation must be strings, not {source!r} and {target!r}")
            entry = target, self._encoded(source, target)
            if found.setdefault(lower_case(source.strip()), entry) != entry:
                raise InputError(f"the term {source!r} has two translations; upper and lower case are the same")
        return found

    def _encoded(self, source: str, target: str) -> Phrase:
        if not source.strip() or not target.strip():
            raise InputError(f"a term and its translation must not be empty: {source!r}, {target!r}")
        opening = len(self.target.opening())
        ids = self.target.encode(target)[opening:]
        if base_language(self.target.language) in UNSPACED_LANGUAGES:
            anchored = self.target.encode(ANCHOR + target)[opening:]
            start = next((i for i in range(ANCHOR_SYMBOLS + 1) if self.target.decode(anchored[:i]) == ANCHOR), 0)
            ids = anchored[start:] if start else ids
        if not ids or UNK in ids:
            raise InputError(f"the model's subwords cannot spell {target!r}, the translation of the term {source!r}")
        if len(ids) > self.max_symbols:
            size = f"has {len(ids)} subwords, more than {self.max_symbols}"
            raise InputError(f"the translation of the term {source!r} {size}")
        return tuple(ids)


def lower_case(text: str) -> str:
    """The text in lower case, composed (NFC), with every character in its place: lower() writes İ as two."""
    text = unicodedata.normalize("NFC", text)
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = "".join(char.lower() if len(char.lower()) == 1 else char for char in text)
    return lowered


def _is_inside_word(text: str, place: int) -> bool:
    return 0 < place < len(text) and _is_in_words(text[place - 1]) and _is_in_words(text[place])


def _is_in_words(char: str) -> bool:
    """Also for the vowel signs of Indic scripts and for accents, which are neither letters nor digits."""
    return char.isalnum() or unicodedata.category(char).startswith("M")


def lacks_terms(text: str, terms: Sequence[Rendering]) -> bool:
    return any(term.text not in text for term in terms)


def windows(terms: Sequence[Rendering], attention: Tensor) -> list[Term]:
    """Where a second translation may begin each rendering: from the first symbol whose attention is on the term, or the
    one that attends to it most, on. attention: of the first translation, (target symbols, source symbols)"""
    best, total, found = attention.argmax(1), sum(len(term.symbols) for term in terms), []
    for term in terms:
        first, last = term.source.start, max(term.source.stop, term.source.start + 1)
        aligned = ((best >= first) & (best < last)).nonzero().flatten().tolist()
        place = aligned[0] if aligned else int(attention[:, first:last].sum(1).argmax())
        longer = total - len(term.symbols)  # other terms may be longer than the words whose places they take
        found.append(Term(term.symbols, place, place + SLACK + longer))
    return found
