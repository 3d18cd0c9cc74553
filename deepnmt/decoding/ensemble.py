"""Several models as one: the mean of their probabilities at each step (computed from log probabilities)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deepnmt.decoding.search import State, Step


class Ensemble:
    """The step function of several step functions; its state is an `EnsembleState`."""

    def __init__(self, steps: Sequence[Step[Any]]) -> None:
        self.steps = steps

    def __call__(self, symbols: Tensor, state: "EnsembleState") -> tuple[Tensor, "EnsembleState"]:
        outputs = [step(symbols, part) for step, part in zip(self.steps, state.parts, strict=True)]
        log_probs = [logits.float().log_softmax(1) for logits, _ in outputs]
        mean = torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))
        return mean, EnsembleState([part for _, part in outputs])


class EnsembleState:
    def __init__(self, parts: Sequence[State]) -> None:
        self.parts = parts

    def reorder(self, rows: Tensor) -> "EnsembleState":
        return EnsembleState([part.reorder(rows) for part in self.parts])

    def select(self, sentences: Tensor) -> "EnsembleState":
        return EnsembleState([part.select(sentences) for part in self.parts])
