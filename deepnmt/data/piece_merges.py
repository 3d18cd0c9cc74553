"""SentencePiece's byte pair encoding in Python, so that single merges can be skipped.

Without skips it equals SentencePiece (tested), including its undocumented treatment of unused pieces, user-defined
symbols and unknown characters.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from deepnmt.data.vocabulary import UNK

NORMAL, USER_DEFINED, UNUSED, BYTE = 1, 4, 5, 6  # types of pieces in SentencePiece's message format
NEVER = float("inf")


class PieceMerges:
    """Any two neighbours whose concatenation is a piece may merge; the piece with the highest score is made first."""

    def __init__(self, pieces: Iterable[tuple[str, float, int]], ids: dict[str, int]) -> None:
        """`pieces` are (text, score, type) of all pieces of the model; `ids` those of the usable ones."""
        listed = list(pieces)
        whole = [text for text, _, kind in listed if kind == USER_DEFINED]
        longest_first = map(re.escape, sorted(whole, key=len, reverse=True))
        self._whole = re.compile("|".join([*longest_first, "."]), re.DOTALL) if whole else None
        self._costs = {
            text: -score
            for text, score, kind in listed
            if kind in (NORMAL, UNUSED) and not any(symbol in text for symbol in whole)
        }
        self._ids = {text: ids[text] for text, _, kind in listed if kind in (NORMAL, USER_DEFINED)}
        self._unused = {text for text, _, kind in listed if kind == UNUSED}
        self._byte_ids = {int(text[3:5], 16): ids[text] for text, _, kind in listed if kind == BYTE}

    def segment(self, word: str, skips: Iterable[int]) -> tuple[list[int], int]:
        """The ids of a normalised word without the merges numbered in `skips`, and the count of all merges."""
        symbols, merges, skipped = self._merge(word, skips)
        try:
            return [self._ids[symbol] for symbol in symbols], merges
        except KeyError:  # an unused piece or an unknown character: rare, so a second pass is cheap
            considered: list[tuple[str, str]] = []
            self._merge(word, skipped, considered)
            return self._number(self._used(symbols, considered)), merges

    def _merge(
        self, word: str, skips: Iterable[int], considered: list[tuple[str, str]] | None = None
    ) -> tuple[list[str], int, list[int]]:
        """The symbols, the count of all merges, and the skipped ones; every candidate pair goes to `considered`."""
        symbols = list(word) if self._whole is None else self._whole.findall(word)
        costs = [self._costs.get(left + right, NEVER) for left, right in pairwise(symbols)]
        if considered is not None:
            considered += pairwise(symbols)
        upcoming = iter(skips)
        merges, skip, skipped = 0, next(upcoming, -1), []
        while costs and (lowest := min(costs)) != NEVER:
            i = costs.index(lowest)
            merges += 1
            if merges - 1 == skip:
                costs[i] = NEVER  # until one of the two merges with another
                skipped.append(skip)
                skip = next(upcoming, -1)
                continue
            symbols[i] += symbols.pop(i + 1)
            del costs[i]
            if i > 0:
                costs[i - 1] = self._costs.get(symbols[i - 1] + symbols[i], NEVER)
            if i < len(costs):
                costs[i] = self._costs.get(symbols[i] + symbols[i + 1], NEVER)
            if considered is not None:
                considered += pairwise(symbols[max(0, i - 1) : i + 2])
        return symbols, merges, skipped

    def _used(self, symbols: Iterable[str], considered: list[tuple[str, str]]) -> Iterator[str]:
        """The symbols, with an unused piece replaced by the last two that could have made it, and so on."""
        made_of = {left + right: (left, right) for left, right in considered}
        for symbol in symbols:
            if symbol in self._unused and symbol in made_of:
                yield from self._used(made_of[symbol], considered)
            else:
                yield symbol

    def _number(self, symbols: Iterable[str]) -> list[int]:
        """The ids of symbols; an unknown character is its bytes or, with unknown neighbours, one <unk>."""
        ids: list[int] = []
        for symbol in symbols:
            if symbol in self._ids:
                ids.append(self._ids[symbol])
            elif self._byte_ids:
                ids += [self._byte_ids[byte] for byte in symbol.encode("utf-8")]
            elif not (ids and ids[-1] == UNK):
                ids.append(UNK)
        return ids
