"""What is found out about a model while it trains."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from deepnmt.data.collate import AnyBatch
from deepnmt.training.config import Metric, Precision
from deepnmt.training.distributed import in_one_piece
from deepnmt.training.engine import Objective
from deepnmt.training.precision import autocast


@dataclass(frozen=True)
class Validation:
    """Loss and nll are means per target token, in nats; scores are of decoded text, each with its signature."""

    loss: float
    nll: float
    scores: dict[str, float] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    samples: list[tuple[str, str, str]] = field(default_factory=list)  # source, hypothesis, reference
    matrices: dict[str, Tensor] = field(default_factory=dict)  # the connection weights of each stack

    @property
    def perplexity(self) -> float:
        """exp(nll): per subword, so it can only be compared within one vocabulary."""
        return perplexity(self.nll)

    def score(self, metric: Metric) -> float:
        """More is better. Without decoded text there is only the loss."""
        return self.scores.get(metric, -self.loss)


def perplexity(nll: float) -> float:
    return math.exp(nll) if nll < 700 else math.inf


@torch.no_grad()
def mean_loss(
    objective: Objective, batches: Iterable[AnyBatch], precision: Precision, device: torch.device
) -> tuple[float, float]:
    """Loss and nll per target token over batches, without dropout."""
    was_training = objective.model.training
    objective.model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    tokens = 0
    with in_one_piece(objective), autocast(precision, device):
        for batch in batches:
            sums += torch.stack(objective(batch.to(device)))
            tokens += batch.num_target_tokens
    objective.model.train(was_training)
    loss, nll = (sums / max(tokens, 1)).tolist()
    return loss, nll


def connection_matrices(objective: Objective) -> dict[str, Tensor]:
    """The weights with which the layers of each stack are connected, where they are learned."""
    with in_one_piece(objective):
        asked = ((name, getattr(module, "matrix", None)) for name, module in objective.model.named_modules())
        found = {name: ask() for name, ask in asked if ask is not None}
    return {name: matrix for name, matrix in found.items() if matrix is not None}
