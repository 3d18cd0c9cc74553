"""Subwords from the merge operations ("codes") of subword-nmt, for data and models made with it.

Byte pair encoding as in Sennrich et al. 2016 (https://aclanthology.org/P16-1162). A vocabulary is needed in
addition to the codes; a symbol outside it is unknown, since there is no byte fallback.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Any

from deepnmt.data.subwords import Subwords
from deepnmt.data.vocabulary import SPECIAL_PIECES, UNK
from deepnmt.errors import InputError
from deepnmt.text import read_lines

SEPARATOR = "@@"
_END = "</w>"


class Codes:
    """The merge operations of a codes file, and their application to one word."""

    def __init__(self, lines: Sequence[str], where: str = "the codes") -> None:
        self.lines = tuple(line.rstrip("\r\n ") for line in lines)
        header = next((line for line in self.lines[:1] if line.startswith("#version:")), None)
        version = header.partition(":")[2].strip() if header else "0.1"
        if version not in ("0.1", "0.2"):
            raise InputError(f"{where}: version {version!r} of subword-nmt codes is not supported (0.1 and 0.2 are)")
        self._end_is_a_symbol = version == "0.1"
        self._ranks: dict[tuple[str, str], int] = {}
        for number, line in enumerate(self.lines[1:] if header else self.lines, start=2 if header else 1):
            left, _, right = line.partition(" ")
            if not (left and right) or " " in right:
                raise InputError(
                    f"{where}, line {number}: {line[:80]!r} is not a merge of two symbols (subword-nmt codes)"
                )
            self._ranks.setdefault((left, right), number)
        if not self._ranks:
            raise InputError(f"{where}: no merge operations; is this a subword-nmt codes file?")

    @classmethod
    def read(cls, path: Path) -> "Codes":
        return cls(read_lines(path), str(path))

    def segment(self, word: str, skips: Iterable[int] = ()) -> tuple[list[str], int]:
        """The symbols of a word, all but the last with the separator, and the number of merges that came up.

        The merges numbered in `skips` are skipped for one round: the most frequent pair with an occurrence that is not
        skipped is merged there, and the next round considers every pair again. Pairs wait in a heap, so that the time
        is proportional to n log n.
        """
        symbols = [*word, _END] if self._end_is_a_symbol else [*word[:-1], word[-1] + _END]
        before, after = list(range(-1, len(symbols) - 1)), list(range(1, len(symbols) + 1))
        symbols.append("")  # no pair has an empty symbol: the end, and what has been merged into the symbol before it
        queue = [(self._ranks[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in self._ranks]
        heapify(queue)
        upcoming = iter(skips)
        merges, skip = 0, next(upcoming, -1)
        while True:
            kept: list[tuple[int, int]] = []
            skipped: list[tuple[int, int]] = []
            while queue and (not kept or queue[0][0] == kept[0][0]):
                rank, i = heappop(queue)
                if self._ranks.get((symbols[i], symbols[after[i]])) != rank:
                    continue  # one of the two has been merged with another symbol
                if merges == skip:
                    skipped.append((rank, i))
                    skip = next(upcoming, -1)
                else:
                    kept.append((rank, i))
                merges += 1
            if not kept:
                break
            for _, i in kept:
                if symbols[i]:  # not merged with the symbol before it in this round, as in "aaa"
                    merged = after[i]
                    symbols[i] += symbols[merged]
                    symbols[merged] = ""
                    after[i] = after[merged]
                    if after[i] < len(before):
                        before[after[i]] = i
                    for start in (before[i], i):
                        pair = (symbols[start], symbols[after[start]])
                        if pair in self._ranks:
                            heappush(queue, (self._ranks[pair], start))
            for candidate in skipped:
                heappush(queue, candidate)
        left = [symbol for symbol in symbols if symbol]
        if left[-1] == _END:
            left.pop()
        else:
            left[-1] = left[-1].removesuffix(_END)
        return [symbol + SEPARATOR for symbol in left[:-1]] + left[-1:], merges


def count_symbols(codes: Codes, words: Mapping[str, int]) -> Counter[str]:
    """How often each symbol occurs in a text with these words."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for symbol in codes.segment(word)[0]:
            counts[symbol] += count
    return counts


def vocabulary(counts: Mapping[str, int], min_frequency: int) -> list[str]:
    """Symbols by decreasing frequency, ties by code point, without the special ones."""
    frequent = [symbol for symbol, count in counts.items() if count >= min_frequency and symbol not in SPECIAL_PIECES]
    return sorted(frequent, key=lambda symbol: (-counts[symbol], symbol))


class SubwordNmt(Subwords):
    """Codes and the vocabulary of their symbols, as ids."""

    kind = "subword-nmt"

    def __init__(self, codes: Codes, symbols: Sequence[str]) -> None:
        super().__init__()
        self.codes, self.pieces = codes, [*SPECIAL_PIECES, *symbols]
        self._ids = {symbol: number for number, symbol in enumerate(symbols, start=len(SPECIAL_PIECES))}

    def _encode(self, words: list[str]) -> Iterable[list[int]]:
        return (self.merge(word)[0] for word in words)

    def merge(self, word: str, skips: Iterable[int] = ()) -> tuple[list[int], int]:
        symbols, merges = self.codes.segment(word, skips)
        return [self._ids.get(symbol, UNK) for symbol in symbols], merges

    def decode(self, ids: Sequence[int]) -> str:
        text = " ".join(self.pieces[number] for number in ids) + " "
        return text.replace(SEPARATOR + " ", "").strip()

    def state(self) -> dict[str, Any]:
        return {"codes": list(self.codes.lines), "vocabulary": self.pieces[len(SPECIAL_PIECES) :]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "SubwordNmt":
        return cls(Codes(state["codes"]), state["vocabulary"])


def read_dictionary(path: Path) -> list[str]:
    """The symbols of a fairseq dictionary (lines of `symbol count`), whose ids follow the special ones like ours."""
    symbols: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), start=1):
        symbol, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not symbol or not count.isdecimal():
            raise InputError(f"{path}, line {number}: {line[:80]!r} is not a symbol and its count")
        if symbol in symbols:
            raise InputError(f"{path}, line {number}: {symbol!r} repeats line {symbols[symbol]}")
        symbols[symbol] = number
    return list(symbols)
