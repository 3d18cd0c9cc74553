"""A toy model for the laws of search: logits looked up by the whole history, and everything it can say, enumerated."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import torch
from torch import Tensor

EOS = 2


class Table:
    """Random logits for each (sentence, history). Symbols 0 and 1 are never used; 2 ends; the rest are words."""

    def __init__(self, seed: int, num_words: int, scale: float = 1.5) -> None:
        self.seed, self.vocab_size, self.scale = seed, 3 + num_words, scale
        self.rows_computed = 0
        self.logits = lru_cache(100_000)(self._logits)

    def _logits(self, sentence: int, history: tuple[int, ...]) -> np.ndarray:
        random = np.random.default_rng([self.seed, sentence, *history])
        return (random.normal(size=self.vocab_size) * self.scale).astype(np.float32)

    def log_prob(self, sentence: int, symbols: list[int]) -> float:
        """Plain and independent of any search."""
        total = 0.0
        for position, symbol in enumerate([*symbols, EOS]):
            logits = self.logits(sentence, tuple(symbols[:position])).astype(np.float64)
            total += logits[symbol] - np.log(np.exp(logits).sum())
        return float(total)

    def sequences(self, max_length: int) -> list[list[int]]:
        words = range(3, self.vocab_size)
        return [list(s) for length in range(max_length + 1) for s in product(words, repeat=length)]

    def start(self, sentences: list[int], beam: int) -> "History":
        return History(torch.tensor(sentences), torch.zeros(len(sentences) * beam, 0, dtype=torch.long), beam)

    def step(self, symbols: Tensor, state: "History") -> tuple[Tensor, "History"]:
        self.rows_computed += len(symbols)
        history = torch.cat([state.history, symbols[:, None]], dim=1)
        sentences = state.sentences.repeat_interleave(state.beam).tolist()
        # The first symbol is the start, not part of the history.
        rows = [self.logits(s, tuple(h[1:])) for s, h in zip(sentences, history.tolist(), strict=True)]
        return torch.from_numpy(np.stack(rows)), History(state.sentences, history, state.beam)


@dataclass
class History:
    sentences: Tensor
    history: Tensor
    beam: int

    def reorder(self, rows: Tensor) -> "History":
        assert (rows // self.beam == torch.arange(len(rows)) // self.beam).all(), "a row left its sentence"
        return History(self.sentences, self.history[rows], self.beam)

    def select(self, sentences: Tensor) -> "History":
        kept = self.history.view(-1, self.beam, self.history.shape[1])[sentences].flatten(0, 1)
        return History(self.sentences[sentences], kept, self.beam)
