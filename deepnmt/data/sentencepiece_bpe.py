"""SentencePiece's byte pair encoding in Python, so that single merges can be skipped.

Without a skip it gives what SentencePiece gives (tested); how it treats unused pieces, user-defined symbols and unknown
characters is written down nowhere but in its source, which this follows.
"""

import re
from collections.abc import Iterable, Iterator

from deepnmt.data.vocabulary import UNK

NORMAL, USER_DEFINED, UNUSED, BYTE = 1, 4, 5, 6  # types of pieces in SentencePiece's message format
NEVER = float("inf")


class PieceMerges:
    """Any two neighbours whose concatenation is a piece may merge; the piece with the highest score is made first."""

    def __init__(self, pieces: Iterable[tuple[str, float, int]], ids: dict[str, int]) -> None:
        """`pieces` are (text, score, type) of all pieces of the model; `ids` those of the usable ones."""
        listed = list(pieces)
        whole = [text for text, _, kind in listed if kind == USER_DEFINED]
        self._symbol = re.compile("|".join([*map(re.escape, sorted(whole, key=len, reverse=True)), "."]), re.DOTALL)
        self._costs = {
            text: -score
            for text, score, kind in listed
            if kind in (NORMAL, UNUSED) and not any(symbol in text for symbol in whole)
        }
        self._ids = {text: ids[text] for text, _, kind in listed if kind in (NORMAL, USER_DEFINED)}
        self._unused = {text for text, _, kind in listed if kind == UNUSED}
        self._byte_ids = {int(text[3:5], 16): ids[text] for text, _, kind in listed if kind == BYTE}

    def segment(self, word: str, skips: Iterable[int]) -> tuple[list[int], int]:
        """The ids of a normalised word without the merges numbered in `skips`, and how many merges came up."""
        symbols = self._symbol.findall(word)
        made_of: dict[str, tuple[str, str]] = {}

        def cost(left: str, right: str) -> float:
            merged = left + right
            found = self._costs.get(merged, NEVER)
            if found is not NEVER and merged in self._unused:
                made_of[merged] = left, right
            return found

        costs = list(map(cost, symbols, symbols[1:]))
        upcoming = iter(skips)
        merges, skip = 0, next(upcoming, -1)
        while (lowest := min(costs, default=NEVER)) != NEVER:
            i = costs.index(lowest)
            merges += 1
            if merges - 1 == skip:
                costs[i] = NEVER  # until one of the two merges with another
                skip = next(upcoming, -1)
                continue
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
            del costs[i]
            if i > 0:
                costs[i - 1] = cost(symbols[i - 1], symbols[i])
            if i < len(costs):
                costs[i] = cost(symbols[i], symbols[i + 1])
        return self._number(_used(symbols, made_of)), merges

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


def _used(symbols: Iterable[str], made_of: dict[str, tuple[str, str]]) -> Iterator[str]:
    """The symbols, with an unused piece replaced by the two it was made of, and so on."""
    for symbol in symbols:
        if symbol in made_of:
            yield from _used(made_of[symbol], made_of)
        else:
            yield symbol
