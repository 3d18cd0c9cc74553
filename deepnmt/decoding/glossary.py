"""A glossary: terms of the source language, and how a translation must render them."""

from collections.abc import Mapping, Sequence
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


def read_terms(path: str | Path) -> dict[str, str]:
    """The terms in a file of lines `source<TAB>target`; blank lines and lines that begin with # are skipped."""
    terms: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        source, *targets = (part.strip() for part in line.split("\t"))
        if len(targets) != 1 or not source or not targets[0]:
            raise InputError(f"{path}, line {number:,}: expected a source term, a tab and its translation")
        if terms.setdefault(source, targets[0]) != targets[0]:
            raise InputError(f"{path}, line {number:,}: {source!r} has another translation on an earlier line")
    return terms


class Rendering(NamedTuple):
    """The text that must stand for a term, as ids too, and the subwords of the source that are the term."""

    text: str
    symbols: Phrase
    source: slice


class Glossary:
    """Finds its terms in source texts: whole words in any case, the longest first."""

    def __init__(self, terms: Mapping[str, str], tokenizers: TokenizerPair) -> None:
        self.source, self.target = tokenizers.source, tokenizers.target
        self.is_spaced = base_language(tokenizers.source.language) not in UNSPACED_LANGUAGES
        self.terms = {source.lower(): (target, self._encoded(source, target)) for source, target in terms.items()}
        self.sizes = sorted({len(source) for source in self.terms}, reverse=True)

    def in_text(self, text: str) -> list[Rendering]:
        """The renderings of the terms in a text; of a term that occurs more than once, the first."""
        lowered, found, place = text.lower(), dict[str, Rendering](), 0
        while place < len(lowered):
            size = next((size for size in self.sizes if self._has_term(lowered, place, place + size)), 0)
            if size:
                target, symbols = self.terms[lowered[place : place + size]]
                first, last = (len(self.source.encode(text[:end])) for end in (place, place + size))
                found.setdefault(target, Rendering(self.target.normalise(target), symbols, slice(first, last)))
            place += size or 1
        return list(found.values())

    def _has_term(self, text: str, start: int, end: int) -> bool:
        return text[start:end] in self.terms and not (
            self.is_spaced and (_is_inside_word(text, start) or _is_inside_word(text, end))
        )

    def _encoded(self, source: str, target: str) -> Phrase:
        if not source.strip() or not target.strip():
            raise InputError(f"a term and its translation must not be empty: {source!r}, {target!r}")
        opening = len(self.target.opening())
        ids = self.target.encode(target)[opening:]
        if base_language(self.target.language) in UNSPACED_LANGUAGES:
            anchored = self.target.encode(ANCHOR + target)[opening:]
            start = next((i for i in range(len(anchored)) if self.target.decode(anchored[:i]) == ANCHOR), 0)
            ids = anchored[start:] if start else ids
        if not ids or UNK in ids:
            raise InputError(f"the model's subwords cannot spell {target!r}, the translation of the term {source!r}")
        return tuple(ids)


def _is_inside_word(text: str, place: int) -> bool:
    return 0 < place < len(text) and text[place - 1].isalnum() and text[place].isalnum()


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
