"""Subwords from the merge list ("codes") of subword-nmt, so that data and models made with it move over.

Byte pair encoding as in Sennrich et al. 2016 (https://aclanthology.org/P16-1162). A vocabulary is needed beside the
codes; a symbol outside it is unknown: this kind of tokeniser has no byte fallback.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from deepnmt.data.vocabulary import SPECIAL_PIECES, UNK
from deepnmt.errors import InputError

SEPARATOR = "@@"
_END = "</w>"
_MAX_CACHED_WORDS = 100_000


class Codes:
    """The merge operations of a codes file, and their application to one word."""

    def __init__(self, lines: Sequence[str], where: str = "the codes") -> None:
        self.lines = tuple(line.rstrip("\r\n ") for line in lines)
        first = self.lines[0] if self.lines else ""
        self._end_is_a_symbol = True  # the way of version 0.1, which has no header
        merges = self.lines
        if first.startswith("#version:"):
            version = first.partition(":")[2].strip()
            if version not in ("0.1", "0.2"):
                raise InputError(f"{where}: version {version!r} of subword-nmt codes is not known (0.1 and 0.2 are)")
            self._end_is_a_symbol = version == "0.1"
            merges = self.lines[1:]
        self._ranks: dict[tuple[str, str], int] = {}
        for rank, line in enumerate(merges):
            left, space, right = line.partition(" ")
            if not (left and space and right) or " " in right:
                number = rank + 1 + (len(self.lines) - len(merges))
                raise InputError(
                    f"{where}, line {number}: {line[:80]!r} is not a merge of two symbols (subword-nmt codes)"
                )
            self._ranks.setdefault((left, right), rank)
        if not self._ranks:
            raise InputError(f"{where}: no merge operations; is it a codes file of subword-nmt?")

    @classmethod
    def read(cls, path: Path) -> "Codes":
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise InputError(f"{path} does not exist") from error
        except (UnicodeDecodeError, IsADirectoryError) as error:
            raise InputError(f"{path} is not a codes file of subword-nmt: {error}") from error
        lines = text.removesuffix("\n").split("\n")
        return cls(lines, str(path))

    def segment(self, word: str) -> list[str]:
        """The symbols of a word, all but the last one marked with the separator."""
        symbols = [*word, _END] if self._end_is_a_symbol else [*word[:-1], word[-1] + _END]
        while len(symbols) > 1:
            ranked = min(pairwise(symbols), key=self._rank)
            if ranked not in self._ranks:
                break
            symbols = _merge(symbols, ranked)
        if symbols[-1] == _END:
            symbols.pop()
        else:
            symbols[-1] = symbols[-1].removesuffix(_END)
        return [symbol + SEPARATOR for symbol in symbols[:-1]] + symbols[-1:]

    def _rank(self, pair: tuple[str, str]) -> float:
        return self._ranks.get(pair, float("inf"))


def _merge(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    i = 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            merged.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            merged.append(symbols[i])
            i += 1
    return merged


def count_symbols(codes: Codes, words: Mapping[str, int]) -> dict[str, int]:
    """How often each symbol occurs in a text with these words."""
    counts: dict[str, int] = {}
    for word, count in words.items():
        for symbol in codes.segment(word):
            counts[symbol] = counts.get(symbol, 0) + count
    return counts


def vocabulary(counts: Mapping[str, int], min_frequency: int, max_size: int | None = None) -> list[str]:
    """Symbols by falling frequency, ties in the order of code points; the special ones are not counted among them."""
    frequent = [symbol for symbol, count in counts.items() if count >= min_frequency and symbol not in SPECIAL_PIECES]
    return sorted(frequent, key=lambda symbol: (-counts[symbol], symbol))[:max_size]


class SubwordNmt:
    """Codes and the vocabulary of their symbols, as ids."""

    kind = "subword-nmt"

    def __init__(self, codes: Codes, symbols: Sequence[str]) -> None:
        self.codes = codes
        self.pieces = [*SPECIAL_PIECES, *symbols]
        self._ids = {symbol: number for number, symbol in enumerate(self.pieces) if number >= len(SPECIAL_PIECES)}
        self._cache: dict[str, bytes] = {}

    def encode_lines(self, lines: Iterable[str]) -> list[bytes]:
        """The ids of each line as bytes of native unsigned ints."""
        return [b"".join(map(self._encode_word, line.split())) for line in lines]

    def _encode_word(self, word: str) -> bytes:
        encoded = self._cache.get(word)
        if encoded is None:
            encoded = array("I", [self._ids.get(symbol, UNK) for symbol in self.codes.segment(word)]).tobytes()
            if len(self._cache) >= _MAX_CACHED_WORDS:
                self._cache.clear()
            self._cache[word] = encoded
        return encoded

    def sample_lines(self, lines: Sequence[str], dropout: float, seed: int) -> list[list[int]]:
        raise InputError("BPE-dropout needs a SentencePiece BPE tokeniser; this one is made of subword-nmt codes")

    def decode(self, ids: Sequence[int]) -> str:
        text = " ".join(self.pieces[number] for number in ids) + " "
        return text.replace(SEPARATOR + " ", "").strip()

    def state(self) -> dict[str, Any]:
        return {"codes": list(self.codes.lines), "vocabulary": self.pieces[len(SPECIAL_PIECES) :]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "SubwordNmt":
        return cls(Codes(state["codes"]), state["vocabulary"])
