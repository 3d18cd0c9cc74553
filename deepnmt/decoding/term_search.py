"""Beam search for translations that contain given terms."""

import sys
from collections.abc import Sequence
from itertools import chain, islice, zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from deepnmt.decoding.candidates import top_symbols
from deepnmt.decoding.config import SearchConfig
from deepnmt.decoding.rules import Rules
from deepnmt.decoding.search import Beams

Phrase = tuple[int, ...]


class Term(NamedTuple):
    """What a translation must contain; a search may begin it only from position `first` to position `last`."""

    symbols: Phrase
    first: int = 0
    last: int = sys.maxsize


class Progress(NamedTuple):
    """The terms that a hypothesis contains, by number, and the symbols of another that it ends with."""

    complete: frozenset[int] = frozenset()
    begun: Phrase = ()


class Wanted:
    """The terms of a sentence. Each needs an occurrence of its own, in any order."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self.terms = terms
        self.symbols = {symbol for term in terms for symbol in term.symbols}
        self.total = sum(len(term.symbols) for term in terms)
        self.by_deadline = sorted(range(len(terms)), key=lambda number: terms[number].last)
        self.beginnings: dict[Phrase, list[int]] = {}  # and the numbers of the terms that begin so
        for number, term in enumerate(terms):
            for size in range(1, len(term.symbols) + 1):
                self.beginnings.setdefault(term.symbols[:size], []).append(number)

    def after(self, progress: Progress, symbol: int) -> Progress:
        """The progress of a hypothesis that takes this symbol. A term that it breaks off may begin again later."""
        said = (*progress.begun, symbol)
        for begun in (said[start:] for start in range(len(said))):
            open_ = [number for number in self.beginnings.get(begun, []) if number not in progress.complete]
            for number in open_:
                if self.terms[number].symbols == begun:
                    return Progress(progress.complete | {number})
            if open_:
                return Progress(progress.complete, begun)
        return Progress(progress.complete)

    def next_symbols(self, progress: Progress, position: int) -> set[int]:
        """The symbols that continue the term at the end of a hypothesis, or begin one that may begin here."""
        begun, left = progress.begun, [term for _, term in self._open(progress)]
        continuing = {term.symbols[len(begun)] for term in left if begun and term.symbols[: len(begun)] == begun}
        return continuing | {term.symbols[0] for term in left if term.first <= position <= term.last}

    def is_late(self, progress: Progress, position: int) -> bool:
        """Is there a term that is not begun and may not begin any more?"""
        begun = progress.begun
        for number in self.by_deadline:
            term = self.terms[number]
            if term.last >= position:
                break
            if number not in progress.complete:
                is_begun = begun and term.symbols[: len(begun)] == begun
                if not is_begun or position - len(begun) > term.last:
                    return True
        return False

    def count(self, progress: Progress) -> int:
        """The number of symbols of terms in a hypothesis."""
        return sum(len(self.terms[number].symbols) for number in progress.complete) + len(progress.begun)

    def is_complete(self, progress: Progress) -> bool:
        return len(progress.complete) == len(self.terms)

    def _open(self, progress: Progress) -> list[tuple[int, Term]]:
        return [(number, term) for number, term in enumerate(self.terms) if number not in progress.complete]


class Extension(NamedTuple):
    log_prob: float
    parent: int
    symbol: int
    progress: Progress


class TermBeams(Beams):
    """Dynamic beam allocation (Post and Vilar 2018, https://arxiv.org/abs/1804.06609).

    Besides its most probable extensions, a hypothesis may take any symbol that continues or begins a term. Extensions
    are grouped by how many symbols of terms they contain, and the groups take turns in keeping their best one, so that
    neither the complete nor the most probable hypotheses crowd out the others. Only a complete one may end, if that is
    among the best extensions of its group; one that is too late for a term is dropped. The beam of a sentence is wider
    by the number of its terms' symbols.
    """

    def __init__(self, rules: Rules, config: SearchConfig, terms: Sequence[Sequence[Term]]) -> None:
        """terms: of each sentence"""
        self.wanted = [Wanted(of_sentence) for of_sentence in terms]
        self.widths = [config.beam + wanted.total for wanted in self.wanted]
        super().__init__(rules, config, max(self.widths))
        self.progress = [[Progress()] * self.last.shape[1] for _ in terms]

    def advance(self, logits: Tensor) -> Tensor:
        more = self._next_symbols()

        def choose(logits: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
            values, symbols = top_symbols(logits, self.last.shape[1])
            return torch.cat([values, logits.gather(1, more)], dim=1), torch.cat([symbols, more], dim=1)

        values, symbols, end = self._by_hypothesis(logits, choose)
        totals, most_probable = self.log_probs[:, :, None] + values, values.shape[2] - more.shape[1]
        kept = [
            self._kept(sentence, rows, choices, most_probable)
            for sentence, (rows, choices) in enumerate(zip(totals.tolist(), symbols.tolist(), strict=True))
        ]
        self._finish(self._ended(end), self._rivals(kept))
        empty = Extension(-torch.inf, 0, self.rules.eos, Progress())
        kept = [row + [empty] * (self.last.shape[1] - len(row)) for row in kept]
        self.progress = [[extension.progress for extension in row] for row in kept]
        log_probs, parents, last = (
            torch.tensor([[extension[field] for extension in row] for row in kept], device=logits.device)
            for field in range(3)
        )
        return self._continue(log_probs, parents, last)

    def _next_symbols(self) -> Tensor:
        """(B * K, E) symbols that continue or begin a term, filled up with the end, which is no extension."""
        position = int(self.position)
        rows = [
            sorted(wanted.next_symbols(progress, position))
            for wanted, states in zip(self.wanted, self.progress, strict=True)
            for progress in states
        ]
        most = max(map(len, rows))
        table = [row + [self.rules.eos] * (most - len(row)) for row in rows]
        return torch.tensor(table, dtype=torch.long, device=self.last.device).view(len(rows), most)

    def _kept(
        self, sentence: int, totals: list[list[float]], symbols: list[list[int]], most_probable: int
    ) -> list[Extension]:
        """The extensions of a sentence that live on. Each row of symbols has the most probable ones, best first, and
        then those of the terms. Of the first, the sentence's own beam width counts, not that of its batch."""
        wanted, width, position = self.wanted[sentence], self.widths[sentence], int(self.position)
        groups: dict[int, list[tuple[float, int, int, Progress]]] = {}
        for parent, (row, choices) in enumerate(zip(totals, symbols, strict=True)):
            # All symbols that are in no term lead to the same progress, which is that of None here.
            reached: dict[int | None, tuple[Progress, list[tuple[float, int, int, Progress]]]] = {}
            places = chain(range(min(width, most_probable)), range(most_probable, len(row)))
            for symbol, total in {choices[place]: row[place] for place in places if row[place] > -torch.inf}.items():
                kind = symbol if symbol in wanted.symbols else None
                if kind not in reached:
                    progress = wanted.after(self.progress[sentence][parent], symbol)
                    is_late = wanted.is_late(progress, position + 1)
                    reached[kind] = progress, [] if is_late else groups.setdefault(wanted.count(progress), [])
                progress, group = reached[kind]
                group.append((-total, parent, symbol, progress))
        turns = chain.from_iterable(zip_longest(*(sorted(groups[count]) for count in sorted(groups, reverse=True))))
        kept = islice((extension for extension in turns if extension is not None), width)
        return [Extension(-cost, parent, symbol, progress) for cost, parent, symbol, progress in kept]

    def _ended(self, end: Tensor) -> Tensor:
        complete = [
            [wanted.is_complete(progress) for progress in states]
            for wanted, states in zip(self.wanted, self.progress, strict=True)
        ]
        return (self.log_probs + end).masked_fill(~torch.tensor(complete, device=end.device), -torch.inf)

    def _rivals(self, kept: list[list[Extension]]) -> Tensor:
        """(B, K): what an end must be as probable as. Only complete extensions compete with it, for the places that
        they take, or for one if they take none; the other places are taken by infinity."""
        rivals = []
        for wanted, row in zip(self.wanted, kept, strict=True):
            complete = [extension.log_prob for extension in row if wanted.is_complete(extension.progress)]
            complete = complete or [-torch.inf] * (1 if row else self.last.shape[1])
            rivals.append(complete + [torch.inf] * (self.last.shape[1] - len(complete)))
        return torch.tensor(rivals, device=self.last.device)

    def select(self, sentences: Tensor) -> None:
        super().select(sentences)
        for name in ("wanted", "widths", "progress"):
            setattr(self, name, [getattr(self, name)[i] for i in sentences.tolist()])
