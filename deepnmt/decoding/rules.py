"""Constraints on hypotheses: banned symbols, minimum and maximum length, a forced prefix, no repeated n-grams.

Rules forbid but do not renormalise: log probabilities are always the model's own.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

FREE = -1  # in a prefix: no symbol is forced here


@dataclass
class Rules:
    """The rules for a batch of B sentences. Lengths do not count the end symbol; positions are tensors of one entry,
    so that nothing here makes the host wait for the device."""

    max_lengths: Tensor  # (B,) long
    eos: int
    banned: tuple[int, ...] = ()
    min_length: int = 0
    prefix: Tensor | None = None  # (B, P) long, FREE where nothing is forced
    no_repeat_ngram: int = 0
    free: int = 0  # number of leading symbols of a prefix that cost nothing: the tag of a language

    def __post_init__(self) -> None:
        self._forbidden = torch.tensor([self.eos, *self.banned], device=self.max_lengths.device)
        self.max_lengths = self.max_lengths.clamp(min=self.min_length)
        if self.prefix is not None:
            self.max_lengths = self.max_lengths.maximum((self.prefix != FREE).sum(1))

    @property
    def total(self) -> int:
        """The maximum length of the longest sentence. The host waits for the device."""
        return int(self.max_lengths.max()) if len(self.max_lengths) else 0

    def select(self, sentences: Tensor) -> "Rules":
        """The rules of these sentences."""
        prefix = None if self.prefix is None else self.prefix[sentences]
        return replace(self, max_lengths=self.max_lengths[sentences], prefix=prefix)

    def forbid(self, logits: Tensor, history: Tensor, position: Tensor) -> None:
        """Set the end and the forbidden symbols of logits (N, V) to -inf, in place; history (N, T) holds `position`
        symbols."""
        logits.index_fill_(1, self._forbidden, -torch.inf)
        if self.no_repeat_ngram:
            _forbid_repetition(logits, history, position, self.no_repeat_ngram)

    def may_end(self, position: Tensor) -> Tensor:
        """(B,): may a hypothesis of `position` symbols end here?"""
        return (position >= self.min_length) & (self.forced(position) == FREE)

    def may_continue(self, position: Tensor) -> Tensor:
        """(B,): may a hypothesis of `position` symbols take another one?"""
        return position < self.max_lengths

    def forced(self, position: Tensor) -> Tensor:
        """(B,): the symbol the prefix wants at `position`, or FREE."""
        if self.prefix is None:
            return torch.full_like(self.max_lengths, FREE)
        width = self.prefix.shape[1]
        symbol = self.prefix.index_select(1, position.clamp(max=width - 1)).squeeze(1)
        return torch.where(position < width, symbol, FREE)


def _forbid_repetition(logits: Tensor, history: Tensor, position: Tensor, size: int) -> None:
    """No n-gram twice: forbid each symbol that once followed the last size - 1 symbols of its row."""
    if history.shape[1] < size:
        return
    windows = history.unfold(1, size, 1)  # (N, W, size)
    ends = torch.arange(size - 1, history.shape[1], device=history.device)
    last = (position - size + 1 + torch.arange(size - 1, device=history.device)).clamp(min=0)
    suffix = history.index_select(1, last)
    repeated = (windows[..., :-1] == suffix[:, None, :]).all(2) & (ends < position)
    # The same symbol may follow several n-grams of which one repeats: the smaller value wins.
    limits = torch.where(repeated, -torch.inf, torch.inf).to(logits.dtype)
    logits.scatter_reduce_(1, windows[..., -1].contiguous(), limits, "amin")


def prefix_table(prefixes: list[list[int]], device: torch.device | str = "cpu") -> Tensor | None:
    """Forced prefixes of different lengths as one table (B, P), or None when all are empty."""
    width = max(map(len, prefixes), default=0)
    if width == 0:
        return None
    return torch.tensor([[*prefix, *[FREE] * (width - len(prefix))] for prefix in prefixes], device=device)
