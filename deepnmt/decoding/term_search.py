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


class Progress:
    """The terms that a hypothesis contains, by number, and the symbols of another that it ends with.

    What follows from these is computed once for all hypotheses of a sentence, and where they lead is kept.
    """

    def __init__(self, terms: Sequence[Term], complete: frozenset[int] = frozenset(), begun: Phrase = ()) -> None:
        self.complete, self.begun = complete, begun
        left = [term for number, term in enumerate(terms) if number not in complete]
        continued = [term for term in left if begun and term.symbols[: len(begun)] == begun]
        self.is_complete = not left
        self.count = sum(len(terms[number].symbols) for number in complete) + len(begun)  # symbols of terms
        # After this many symbols there is a term that is not begun and may not begin any more.
        self.deadline = min((term.last + len(begun) * (term in continued) for term in left), default=sys.maxsize)
        self.continuing = {term.symbols[len(begun)] for term in continued}
        self.beginning = [(term.symbols[0], term.first, term.last) for term in left]
        self.following: dict[int | None, Progress] = {}  # None: after any symbol that is in no term

    def next_symbols(self, position: int) -> set[int]:
        """The symbols that continue the term at the end of a hypothesis, or begin one that may begin here."""
        return self.continuing | {symbol for symbol, first, last in self.beginning if first <= position <= last}


class Wanted:
    """The terms of a sentence. Each needs an occurrence of its own, in any order."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self.terms = terms
        self.symbols = {symbol for term in terms for symbol in term.symbols}
        self.known: dict[tuple[frozenset[int], Phrase], Progress] = {}
        self.start = self._progress(frozenset(), ())
        self.beginnings: dict[Phrase, list[int]] = {}  # and the numbers of the terms that begin so
        for number, term in enumerate(terms):
            for size in range(1, len(term.symbols) + 1):
                self.beginnings.setdefault(term.symbols[:size], []).append(number)

    def after(self, progress: Progress, symbol: int) -> Progress:
        """The progress of a hypothesis that takes this symbol. A term that it breaks off may begin again later."""
        kind = symbol if symbol in self.symbols else None
        following = progress.following.get(kind)
        if following is None:
            following = progress.following[kind] = self._after(progress, symbol)
        return following

    def _after(self, progress: Progress, symbol: int) -> Progress:
        said = (*progress.begun, symbol)
        for begun in (said[start:] for start in range(len(said))):
            open_ = [number for number in self.beginnings.get(begun, []) if number not in progress.complete]
            for number in open_:
                if self.terms[number].symbols == begun:
                    return self._progress(progress.complete | {number}, ())
            if open_:
                return self._progress(progress.complete, begun)
        return self._progress(progress.complete, ())

    def _progress(self, complete: frozenset[int], begun: Phrase) -> Progress:
        if (complete, begun) not in self.known:
            self.known[complete, begun] = Progress(self.terms, complete, begun)
        return self.known[complete, begun]


class Extension(NamedTuple):
    log_prob: float
    parent: int
    symbol: int
    progress: Progress


def beam_width(beam: int, terms: Sequence[object]) -> int:
    return beam + len(terms)


class TermBeams(Beams):
    """Dynamic beam allocation (Post and Vilar 2018, https://arxiv.org/abs/1804.06609).

    Besides its most probable extensions, a hypothesis may take any symbol that continues or begins a term. Extensions
    are grouped by how many symbols of terms they contain, and the groups take turns in keeping their best one, so that
    neither the complete nor the most probable hypotheses crowd out the others. Only a complete one may end, if that is
    among the best extensions of its group; one that is too late for a term is dropped. The beam of a sentence is wider
    by the number of its terms.
    """

    def __init__(self, rules: Rules, config: SearchConfig, terms: Sequence[Sequence[Term]]) -> None:
        """terms: of each sentence"""
        self.wanted = [Wanted(of_sentence) for of_sentence in terms]
        self.widths = [beam_width(config.beam, of_sentence) for of_sentence in terms]
        super().__init__(rules, config, max(self.widths))
        self.progress = [[wanted.start] * self.last.shape[1] for wanted in self.wanted]

    def advance(self, logits: Tensor) -> Tensor:
        more = self._next_symbols()

        def choose(logits: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
            values, symbols = top_symbols(logits, self.last.shape[1])
            return torch.cat([values, logits.gather(1, more)], dim=1), torch.cat([symbols, more], dim=1)

        values, symbols, end = self._by_hypothesis(logits, choose)
        totals, most = self.log_probs[:, :, None] + values, values.shape[2] - more.shape[1]
        kept = [
            self._kept(sentence, rows, choices, most)
            for sentence, (rows, choices) in enumerate(zip(totals.tolist(), symbols.tolist(), strict=True))
        ]
        self._finish(self._ended(end), self._rivals(kept))
        for wanted, row in zip(self.wanted, kept, strict=True):
            row += [Extension(-torch.inf, 0, self.rules.eos, wanted.start)] * (self.last.shape[1] - len(row))
        self.progress = [[extension.progress for extension in row] for row in kept]
        log_probs, parents, last = (
            torch.tensor([[extension[field] for extension in row] for row in kept], device=logits.device)
            for field in range(3)
        )
        return self._continue(log_probs, parents, last)

    def _next_symbols(self) -> Tensor:
        """(B * K, E) symbols that continue or begin a term, filled up with the end, which is no extension."""
        position = int(self.position)
        rows = [sorted(progress.next_symbols(position)) for states in self.progress for progress in states]
        most = max(map(len, rows))
        table = [row + [self.rules.eos] * (most - len(row)) for row in rows]
        return torch.tensor(table, dtype=torch.long, device=self.last.device).view(len(rows), most)

    def _kept(self, sentence: int, totals: list[list[float]], symbols: list[list[int]], most: int) -> list[Extension]:
        """The extensions of a sentence that live on. Each row of symbols has the `most` probable ones, best first, and
        then those of the terms. Of the first, the sentence's own beam width counts, not that of its batch."""
        wanted, width, position = self.wanted[sentence], self.widths[sentence], int(self.position)
        groups: dict[int, list[tuple[float, int, int, Progress]]] = {}
        for parent, (row, choices) in enumerate(zip(totals, symbols, strict=True)):
            own, places = self.progress[sentence][parent], chain(range(min(width, most)), range(most, len(row)))
            for symbol, total in {choices[place]: row[place] for place in places if row[place] > -torch.inf}.items():
                progress = wanted.after(own, symbol)
                if position < progress.deadline:
                    groups.setdefault(progress.count, []).append((-total, parent, symbol, progress))
        best_first = (sorted(groups[count]) for count in sorted(groups, reverse=True))
        turns = chain.from_iterable(zip_longest(*best_first))
        kept = islice((extension for extension in turns if extension is not None), width)
        return [Extension(-cost, parent, symbol, progress) for cost, parent, symbol, progress in kept]

    def _ended(self, end: Tensor) -> Tensor:
        complete = [[progress.is_complete for progress in states] for states in self.progress]
        return (self.log_probs + end).masked_fill(~torch.tensor(complete, device=end.device), -torch.inf)

    def _rivals(self, kept: list[list[Extension]]) -> Tensor:
        """(B, K): what an end must be as probable as. Only complete extensions compete with it, for the places that
        they take, or for one if they take none; the other places are taken by infinity."""
        rivals = []
        for row in kept:
            complete = [extension.log_prob for extension in row if extension.progress.is_complete]
            complete = complete or [-torch.inf] * (1 if row else self.last.shape[1])
            rivals.append(complete + [torch.inf] * (self.last.shape[1] - len(complete)))
        return torch.tensor(rivals, device=self.last.device)

    def select(self, sentences: Tensor) -> None:
        super().select(sentences)
        for name in ("wanted", "widths", "progress"):
            setattr(self, name, [getattr(self, name)[i] for i in sentences.tolist()])
