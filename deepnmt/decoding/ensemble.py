"""Several models as one: the mean of their probabilities at each step (computed from log probabilities)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deepnmt.decoding.search import State, Step


class EnsembleState(list[State]):
    """The states of several step functions."""

    def reorder(self, rows: Tensor) -> "EnsembleState":
        return EnsembleState(part.reorder(rows) for part in self)

    def select(self, sentences: Tensor) -> "EnsembleState":
        return EnsembleState(part.select(sentences) for part in self)


def ensemble_step(steps: Sequence[Step[Any]], symbols: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
    outputs = [step(symbols, part) for step, part in zip(steps, state, strict=True)]
    log_probs = [logits.float().log_softmax(1) for logits, _ in outputs]
    mean = torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))
    return mean, EnsembleState(part for _, part in outputs)
