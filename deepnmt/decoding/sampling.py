"""Greedy search and reproducible sampling."""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from deepnmt.decoding.candidates import top_symbols
from deepnmt.decoding.config import TranslationConfig
from deepnmt.decoding.rules import Rules
from deepnmt.decoding.search import Found, Growing, found_hypotheses


def random_numbers(sentences: Sequence[Sequence[int]], seed: int, count: int, length: int) -> Tensor:
    """(B, length, count) numbers in [0, 1) that depend only on the seed and the sentence."""
    streams = []
    for sentence in sentences:
        digest = hashlib.blake2b(np.asarray(sentence, dtype="<i8").tobytes(), digest_size=8).digest()
        key = np.array([seed % 2**64, int.from_bytes(digest, "little")], dtype=np.uint64)
        streams.append(np.random.Generator(np.random.Philox(key=key)).random((length, count)))
    return torch.from_numpy(np.stack(streams))


class Paths(Growing):
    """Hypotheses that grow independently: by the most probable symbol at every step or, given K `random_numbers` for
    each sentence and position, K samples of each sentence, best score first, equal ones kept.

    A symbol is drawn by the inverse of the cumulative distribution at a number that belongs to (seed, sentence,
    position). One number per symbol instead of one random vector over the vocabulary: the draw of a sentence does not
    depend on what else is in its batch, on the order, or on the device.
    """

    def __init__(
        self,
        rules: Rules,
        config: TranslationConfig = TranslationConfig(),  # noqa: B008 (frozen)
        numbers: Tensor | None = None,
    ) -> None:
        super().__init__(rules, config, 1 if numbers is None else numbers.shape[2])
        self.config, self.numbers = config, numbers  # (B, T, K)
        self.ended = torch.zeros_like(self.last, dtype=torch.bool)

    def advance(self, logits: Tensor) -> None:
        values, chosen, end = self.extensions(logits, self._choose)
        may_continue = self.rules.may_continue(self.position).repeat_interleave(self.last.shape[1])[:, None]
        gained = torch.where(may_continue, values, end).view_as(self.log_probs)
        self.log_probs += gained.masked_fill(self.ended, 0)
        chosen = torch.where(may_continue, chosen, self.rules.eos).view_as(self.last)
        self.last = chosen.masked_fill(self.ended, self.rules.eos)
        self.symbols.index_copy_(2, self.position, self.last[:, :, None])
        self.ended |= (self.last == self.rules.eos) | (self.log_probs == -torch.inf)
        self.done = self.ended.all(1)
        self.position += 1

    def _choose(self, logits: Tensor, end: Tensor, normaliser: Tensor) -> tuple[Tensor, Tensor]:
        """One symbol (N, 1) for each row of logits (N, V), which may be the end."""
        logits[:, self.rules.eos, None] = end
        if self.numbers is None:
            return top_symbols(logits, 1)
        values, symbols = self._possible(logits, normaliser)
        mass = (values / self.config.temperature).double().softmax(1)
        cumulative = mass.cumsum(1)
        total = cumulative[:, -1:]
        if self.config.top_p < 1:
            total = mass.masked_fill(cumulative - mass >= self.config.top_p, 0).sum(1, keepdim=True)
        number = self.numbers.index_select(1, self.position).view(-1, 1)
        # A symbol without mass is never drawn: the first place where the cumulative mass exceeds the number has some.
        place = torch.searchsorted(cumulative, number * total, right=True).clamp(max=values.shape[1] - 1)
        chosen = place if symbols is None else symbols.gather(1, place)
        return logits.gather(1, chosen), chosen

    def _possible(self, logits: Tensor, normaliser: Tensor) -> tuple[Tensor, Tensor | None]:
        """The logits (N, C) of the symbols to draw from, best first; None: of all symbols, in their order."""
        top_k, epsilon = self.config.top_k or logits.shape[1], self.config.least_probability
        if epsilon:
            # No more than 1 / epsilon symbols are that probable.
            values, symbols = top_symbols(logits, int(min(top_k, 1 / epsilon + 1)))
            improbable = values < normaliser + math.log(epsilon)
            improbable[:, 0] = False
            return values.masked_fill(improbable, -torch.inf), symbols
        if self.config.top_k:
            return top_symbols(logits, top_k)
        if self.config.top_p < 1:
            return logits.sort(dim=1, descending=True, stable=True)
        return logits, None

    def best(self) -> list[list[Found]]:
        lengths = (self.symbols != self.rules.eos).sum(2)
        scores, order = (self.log_probs / self.penalties[lengths + 1]).sort(dim=1, descending=True, stable=True)
        symbols = self.symbols.gather(1, order[:, :, None].expand_as(self.symbols))
        return found_hypotheses(self.rules.eos, symbols, self.log_probs.gather(1, order), scores)
