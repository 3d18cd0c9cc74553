"""Compares an exported model with the original, independently of the runtime."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
LONGEST = 500  # tokens of a source: every format has enough positions for these and the steps below
EXTRA_STEPS = 8  # a translation may be this much longer than its source

Tell = Callable[[str], None]
Runtime = Callable[[Tensor, Tensor], Tensor]
"""From sources (batch, positions), ids with the end and padding, and symbols to decode (batch, steps) to the logits
(batch, steps, V), or to the log probabilities of the symbols (batch, steps)."""


@dataclass(frozen=True)
class Agreement:
    """How much was compared, and the largest difference."""

    sentences: int = 0
    positions: int = 0
    max_difference: float = 0.0
    of: str = "logits"


@torch.inference_mode()
def compare(model: Transformer, runtime: Runtime, sources: Sequence[list[int]], name: str) -> Agreement:
    """Run both on the model's greedy translations of `sources`, ids with the end; raise RunError if they differ."""
    agreement = Agreement()
    for source in batches(sources, model.config):
        symbols, expected = greedy(model, source)
        found, of = runtime(source, symbols), "logits"
        if found.dim() == 2:
            expected, of = expected.log_softmax(2).gather(2, symbols.unsqueeze(2)).squeeze(2), "log probabilities"
        where = f"in a batch of {len(source)} sentences of up to {source.shape[1]} tokens"
        difference = max_difference(expected, found, f"the {of} of {name} {where}")
        if of == "logits":
            check_choices(expected, found, f"{name} {where}")
        agreement = Agreement(
            sentences=agreement.sentences + len(source),
            positions=agreement.positions + symbols.numel(),
            max_difference=max(agreement.max_difference, difference),
            of=of,
        )
    return agreement


def max_difference(expected: Tensor, found: Tensor, what: str) -> float:
    """Raise RunError if it is too large."""
    if found.shape != expected.shape:
        raise RunError(f"export failed: {what} have the shape {[*found.shape]} instead of {[*expected.shape]}")
    difference = float((found - expected).abs().max())
    if not difference <= TOLERANCE:  # or not a number
        raise RunError(
            f"export failed: {what} differ from the model's by up to {difference:.1e}, which is more than "
            f"{TOLERANCE:.0e}"
        )
    return difference


def check_choices(expected: Tensor, found: Tensor, what: str) -> None:
    """Raise RunError if the largest logits (..., V) are of different symbols, unless these are a tie."""
    best, chosen = expected.amax(-1), expected.gather(-1, found.argmax(-1, keepdim=True)).squeeze(-1)
    if bool((best - chosen > TIE).any()):
        raise RunError(f"export failed: {what} chooses a different token from the model")


def random_sources(config: ModelConfig) -> list[list[int]]:
    """Fixed random sentences of many lengths: ids with the end."""
    draw = np.random.default_rng(0)
    lengths = [length for longest in MAX_LENGTHS for length in draw.integers(0, longest, sum(BATCH_SIZES))]
    return [[*draw.integers(UNK, config.source_vocab_size, length).tolist(), EOS] for length in lengths]


def start_symbol(config: ModelConfig) -> int:
    """What the decoder starts with."""
    return EOS if config.start_id is None else config.start_id


def batches(sources: Sequence[list[int]], config: ModelConfig) -> Iterator[Tensor]:
    """Padded batches of several sizes, of sentences no longer than the model allows."""
    limit, remaining = min(config.position_limit or LONGEST, LONGEST), iter(sources)
    for size in cycle(BATCH_SIZES):
        batch = [[*ids[:-1][: limit - 1], EOS] for ids in islice(remaining, size)]
        if not batch:
            return
        yield padded(batch, config.pad_id)


def greedy(model: Transformer, source: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, steps) symbols, with room for the end but without it, and their logits (batch, steps, V)"""
    steps, limit = source.shape[1] + EXTRA_STEPS, model.config.position_limit
    cache, tokens = model.start(model.encode(source)), torch.full((len(source),), EOS)
    symbols, found = [], []
    for _ in range(steps if limit is None else min(steps, limit - 1)):
        logits, cache = model.step(tokens, cache)
        tokens = logits.index_fill(1, torch.tensor([EOS]), -torch.inf).argmax(1)
        symbols.append(tokens)
        found.append(logits)
    return torch.stack(symbols, 1), torch.stack(found, 1)
