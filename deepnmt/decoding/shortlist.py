"""A lexical shortlist: for each source sentence the few target symbols that its translation may use.

A file beside the model lists the most probable translations of each source symbol and the most frequent target symbols.
The logits of a batch are computed for the union of its sentences' shortlists; a sentence's search sees only its own, so
a translation does not depend on its batch. Probabilities are normalised over the sentence's shortlist.
"""

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.data.vocabulary import SPECIAL_PIECES
from deepnmt.decoding.rules import FREE, Rules
from deepnmt.decoding.search import Found, State, Step
from deepnmt.errors import InputError
from deepnmt.files import replacing
from deepnmt.model.storage import read_tensors, write_tensors

FILE = "shortlist.safetensors"
AGAIN = "make it again with `deepnmt shortlist`"
NONE = -1


@dataclass(frozen=True)
class Shortlist:
    translations: Tensor  # (source symbols, N) int32: target symbols, NONE where there are fewer
    frequent: Tensor  # (K,) int32: target symbols that are on every shortlist

    def save(self, folder: Path, tokenizers: TokenizerPair) -> None:
        tensors = {"translations": self.translations, "frequent": self.frequent}
        with replacing(folder / FILE) as aside:
            write_tensors(aside, tensors | {"checks": _checks(tensors, tokenizers)})

    @classmethod
    def load(cls, folder: Path, tokenizers: TokenizerPair) -> "Shortlist":
        path = folder / FILE
        if not path.is_file():
            raise InputError(f"{folder} has no {FILE}; make one with `deepnmt shortlist`, or omit --shortlist")
        tensors = read_tensors(path)
        stored = tensors.pop("checks", torch.zeros(0))
        if tensors.keys() != {"translations", "frequent"} or stored.shape != (3,):
            raise InputError(f"{path} is not a shortlist; {AGAIN}")
        expected = _checks(tensors, tokenizers)
        if stored[0] != expected[0]:
            raise InputError(f"{path} is damaged: its checksum differs; {AGAIN}")
        if not stored.equal(expected):
            raise InputError(f"{path} was made for other vocabularies than the model's; {AGAIN}")
        return cls(**tensors)

    def of_batch(self, sources: Sequence[Sequence[int]], rules: Rules, vocab_size: int) -> "BatchShortlist":
        """For these source sentences, and any prefixes of their translations."""
        allowed = torch.zeros(len(sources), vocab_size, dtype=torch.bool)
        allowed[:, : len(SPECIAL_PIECES)] = True
        allowed[:, self.frequent.long()] = True
        for row, source in zip(allowed, sources, strict=True):
            found = self.translations[source].flatten().long()
            row[found[found != NONE]] = True
        prefix = rules.prefix
        if prefix is not None:
            allowed.scatter_(1, prefix.clamp(min=0), True)  # a free place stands for <s>, which is always there
        symbols = allowed.any(0).nonzero().squeeze(1)
        mask = torch.zeros(len(sources), len(symbols)).masked_fill(~allowed[:, symbols], -torch.inf)
        rules = replace(rules, banned=tuple(symbol for symbol in rules.banned if symbol < len(SPECIAL_PIECES)))
        if prefix is not None:
            rules = replace(rules, prefix=torch.searchsorted(symbols, prefix).where(prefix != FREE, FREE))
        return BatchShortlist(symbols, mask, rules)


def _checks(tensors: dict[str, Tensor], tokenizers: TokenizerPair) -> Tensor:
    """The checksum of the lists, and one of each vocabulary."""
    lists = [tensors[name].numpy() for name in ("translations", "frequent")]
    content = b"".join(repr((array.shape, array.dtype)).encode() + array.tobytes() for array in lists)
    sides = ("\n".join(side.pieces).encode() for side in tokenizers.sides.values())
    digests = [int.from_bytes(hashlib.sha256(side).digest()[:7], "big") for side in sides]
    return torch.tensor([zlib.crc32(content), *digests])


@dataclass(frozen=True)
class BatchShortlist:
    """The search of a batch numbers its symbols by their place in `symbols`. The special symbols keep their ids."""

    symbols: Tensor  # (U,), ascending: the union of the sentences' shortlists
    mask: Tensor  # (B, U): -inf where a symbol is not on a sentence's shortlist
    rules: Rules  # with the prefix in places

    def step(self, step: Step[Any]) -> Step[Any]:
        """The step function on places; `step` takes ids and returns the logits of `symbols`."""

        def restricted(places: Tensor, state: "Restricted") -> tuple[Tensor, Restricted]:
            logits, inner = step(self.symbols[places], state.inner)
            sentences, size = state.mask.shape
            logits.view(sentences, -1, size).add_(state.mask[:, None])
            return logits, Restricted(inner, state.mask)

        return restricted

    def state(self, inner: State) -> "Restricted":
        return Restricted(inner, self.mask)

    def as_ids(self, found: list[list[Found]]) -> list[list[Found]]:
        ids = self.symbols.tolist()
        return [[replace(best, symbols=[ids[place] for place in best.symbols]) for best in row] for row in found]


@dataclass(frozen=True)
class Restricted:
    """The state of a restricted step function."""

    inner: Any
    mask: Tensor

    def reorder(self, rows: Tensor) -> "Restricted":
        return Restricted(self.inner.reorder(rows), self.mask)

    def select(self, sentences: Tensor) -> "Restricted":
        return Restricted(self.inner.select(sentences), self.mask[sentences])
