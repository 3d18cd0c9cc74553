"""Compares an exported model with the original, independently of the runtime."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np
import torch
from torch import Tensor

from deepnmt.data.vocabulary import EOS, UNK
from deepnmt.decoding.pieces import padded
from deepnmt.errors import RunError
from deepnmt.model.config import ModelConfig
from deepnmt.model.transformer import Transformer

TOLERANCE = 1e-4  # on a logit
TIE = 1e-5  # logits this close differ only by rounding, so either may be the largest
BATCH_SIZES = (1, 2, 5)
MAX_LENGTHS = (1, 4, 24)
LONGEST = 1000  # tokens of a source: with the steps below, every format has so many positions
EXTRA_STEPS = 8  # a translation may be this much longer than its source

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Agreement:
    """How much was compared, and the largest difference."""

    sentences: int = 0
    positions: int = 0
    max_difference: float = 0.0
    of: str = "logits"

    def plus(self, sentences: int = 0, positions: int = 0, difference: float = 0.0) -> "Agreement":
        return replace(
            self,
            sentences=self.sentences + sentences,
            positions=self.positions + positions,
            max_difference=max(self.max_difference, difference),
        )


def random_sources(config: ModelConfig) -> list[list[int]]:
    """Fixed random sentences of many lengths: ids with the end."""
    draw = np.random.default_rng(0)
    lengths = [length for longest in MAX_LENGTHS for length in draw.integers(0, longest, sum(BATCH_SIZES))]
    return [[*draw.integers(UNK, config.source_vocab_size, length).tolist(), EOS] for length in lengths]


def start_symbol(config: ModelConfig) -> int:
    """What the decoder starts with."""
    return EOS if config.start_id is None else config.start_id


def num_steps(source: Tensor, config: ModelConfig) -> int:
    """How many symbols to decode of a source (batch, positions), with room left for an end."""
    steps = source.shape[1] + EXTRA_STEPS
    return steps if config.position_limit is None else min(steps, config.position_limit - 1)


def batches(sources: Sequence[list[int]], config: ModelConfig) -> Iterator[tuple[list[list[int]], Tensor]]:
    """Batches of several sizes, of sentences no longer than the model allows: as they are, and padded."""
    limit, remaining = min(config.position_limit or LONGEST, LONGEST), iter(sources)
    for size in cycle(BATCH_SIZES):
        batch = [[*ids[:-1][: limit - 1], EOS] for ids in islice(remaining, size)]
        if not batch:
            return
        yield batch, padded(batch, config.pad_id)


def greedy(model: Transformer, source: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, steps) symbols, none of them the end, and their log probabilities."""
    cache, tokens = model.start(model.encode(source)), torch.full((len(source),), EOS)
    symbols, log_probs = [], []
    for _ in range(num_steps(source, model.config)):
        logits, cache = model.step(tokens, cache)
        scores = logits.log_softmax(1)
        tokens = scores.index_fill(1, torch.tensor([EOS]), -torch.inf).argmax(1)
        symbols.append(tokens)
        log_probs.append(scores.gather(1, tokens[:, None]))
    return torch.stack(symbols, 1), torch.cat(log_probs, 1)


def same_logits(expected: Tensor, found: Tensor, name: str, where: str) -> float:
    """The largest difference of logits (rows, V); raise RunError if it is too large, or if the choice differs."""
    if found.shape != expected.shape:
        raise RunError(f"export failed: {where} {name} has logits {[*found.shape]}, the model {[*expected.shape]}")
    difference = float((found - expected).abs().max())
    if not difference <= TOLERANCE:  # or not a number
        raise RunError(
            f"export failed: {where} a logit of {name} differs from the model's by {difference:.1e}, "
            f"which is more than {TOLERANCE:.0e}"
        )
    best, chosen = expected.amax(1), expected.gather(1, found.argmax(1, keepdim=True)).squeeze(1)
    if bool((best - chosen > TIE).any()):
        raise RunError(f"export failed: {where} {name} chooses a different token from the model")
    return difference
