"""The common part of all subword models, with a cache of encoded words."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Mapping, Sequence
from sys import getsizeof
from typing import Any, ClassVar, Self

from deepnmt.errors import InputError

MAX_CACHED_BYTES = 32 << 20
ENTRY_BYTES = 60  # what a word in the cache takes besides its text and its ids


class Subwords(ABC):
    """Splits words into pieces. Lines have single spaces; encoded ids are bytes of native unsigned ints."""

    kind: ClassVar[str]
    pieces: list[str]  # by id

    def __init__(self) -> None:
        self._cache: dict[str, bytes] = {}
        self._cached_bytes = 0

    def encode_lines(self, lines: Iterable[str]) -> list[bytes]:
        split = [self._units(line) for line in lines]
        if self._cached_bytes > MAX_CACHED_BYTES:
            self._cache, self._cached_bytes = {}, 0  # new, because other threads may still read the old one
        cache = self._cache
        new = list({word for words in split for word in words if word not in cache})
        for word, ids in zip(new, self._encode(new), strict=True):
            cache[word] = encoded = array("I", ids).tobytes()
            self._cached_bytes += ENTRY_BYTES + getsizeof(word) + getsizeof(encoded)
        return [b"".join(map(cache.__getitem__, words)) for words in split]

    def _units(self, line: str) -> list[str]:
        """The parts of a line that are encoded independently of each other."""
        return line.split()

    @abstractmethod
    def _encode(self, words: list[str]) -> Iterable[Iterable[int]]: ...

    def merge(self, word: str, skips: Iterable[int]) -> tuple[list[int], int]:
        """Segment a word without some of its merges; see `bpe_dropout.Merge`."""
        raise InputError("BPE-dropout needs subwords learned by deepnmt prepare; set batching.bpe_dropout = 0")

    def words(self, ids: Sequence[int]) -> list[str]:
        """The words of a sentence without unknown symbols, as `merge` takes them."""
        return self.decode(ids).split()

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str: ...

    @abstractmethod
    def state(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self: ...
