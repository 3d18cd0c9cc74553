"""Validation during training: the loss of the held-out set, and scores of its translations."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from deepnmt.config import Recipe
from deepnmt.data.batching import held_out_batches
from deepnmt.data.dataset import Dataset, Direction
from deepnmt.progress import say
from deepnmt.training.config import Metric
from deepnmt.training.distributed import World, in_one_piece, is_sharded
from deepnmt.training.engine import Objective

SAMPLES = 3  # translations that are logged with each validation


@dataclass(frozen=True)
class TextMetrics:
    """What validation needs from the rooms above: how to translate with a model between two languages, and how to
    score translations into a language.

    `score` returns metrics by name, each with its `value` and `signature`.
    """

    translate: Callable[[Any, tuple[str, str], list[str]], list[str]]
    score: Callable[[list[str], list[str], str], Mapping[str, Any]]


@dataclass(frozen=True)
class Validation:
    """Loss and nll are means per target token, in nats; scores are of decoded text, each with its signature."""

    loss: float
    nll: float
    scores: dict[str, float] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    samples: list[tuple[str, str, str]] = field(default_factory=list)  # source, hypothesis, reference
    matrices: dict[str, Tensor] = field(default_factory=dict)  # the connection weights of each stack

    def score(self, metric: Metric) -> float:
        """Higher is better, and a loss that is not finite is the worst. Without translations only the loss counts."""
        return self.scores.get(metric, -self.loss if math.isfinite(self.loss) else -math.inf)


class Validator:
    """Validates the model of an objective, in eval mode; without `metrics` nothing is translated.

    `measure` tells what its scores measure: only scores of the same measure can be compared.
    """

    def __init__(
        self, recipe: Recipe, dataset: Dataset, objective: Objective, world: World, metrics: TextMetrics | None
    ) -> None:
        assert dataset.valid is not None
        config, longest = recipe.training, recipe.model.position_limit
        self.objective, self.world, self.beam = objective, world, config.validation_beam
        self.batches = held_out_batches(dataset.valid, recipe.batching.tokens_per_batch, longest)
        count = config.validation_lines
        self.directions = [direction.first(count) for direction in dataset.valid_directions] if count != 0 else []
        self.metrics = metrics if self.directions else None
        digest = hashlib.blake2b(digest_size=4)
        for side in dataset.valid.sides:
            digest.update(side.ids.tobytes() + side.offsets.tobytes())
        how = f"loss|smoothing:{config.label_smoothing}"
        if self.metrics is not None and config.best_by != "loss":
            how = f"{config.best_by}|beam:{self.beam}|length_penalty:{recipe.decoding.length_penalty}"
            how += f"|lines:{sum(len(direction.source) for direction in self.directions)}"
        self.measure = f"{how}|valid:{digest.hexdigest()}"
        left_out = len(dataset.valid) - sum(len(batch.sentences) for batch in self.batches)
        if left_out and world.is_main:
            say(f"{left_out:,} validation pairs exceed model.max_positions = {longest} and are left out of the loss")

    def __call__(self, model: nn.Module) -> Validation:
        loss, nll = self._mean_loss()
        with in_one_piece(self.objective):
            named = self.objective.model.named_modules()
            learned = {name: module.matrix() for name, module in named if hasattr(module, "matrix")}
        matrices = {name: matrix for name, matrix in learned.items() if matrix is not None}
        if self.metrics is None:
            return Validation(loss, nll, matrices=matrices)
        values: dict[str, dict[str, float]] = {}
        signatures: dict[str, str] = {}
        samples = []
        for direction in self.directions:
            hypotheses = self._translate(model, direction, self.metrics)
            samples.append(list(zip(direction.source, hypotheses, direction.target, strict=True)))
            name = "-".join(direction.languages)
            for metric, score in self.metrics.score(hypotheses, direction.target, direction.languages[1]).items():
                values.setdefault(metric, {})[name] = score.value
                signatures[f"{metric}/{name}"] = f"{score.signature}|beam:{self.beam}"
        scores = {metric: fmean(found.values()) for metric, found in values.items()}
        if len(self.directions) == 1:
            signatures = {name.partition("/")[0]: signature for name, signature in signatures.items()}
        else:
            scores |= {f"{metric}/{name}": value for metric, found in values.items() for name, value in found.items()}
            signatures |= {metric: f"mean of {', '.join(found)}" for metric, found in values.items()}
        shown = [sample for row in zip(*samples, strict=False) for sample in row][:SAMPLES]
        return Validation(loss, nll, scores, signatures, shown, matrices)

    def _translate(self, model: nn.Module, direction: Direction, metrics: TextMetrics) -> list[str]:
        translate = partial(metrics.translate, model, direction.languages)
        with in_one_piece(self.objective), self.objective.autocast(self.world.device):
            # Sharded ranks must all do the same; others share the lines.
            alone = is_sharded(self.objective)
            return translate(direction.source) if alone else self.world.spread(translate, direction.source)

    @torch.no_grad()
    def _mean_loss(self) -> tuple[float, float]:
        """Loss and nll per target token."""
        device = self.world.device
        sums, tokens = torch.zeros(2, dtype=torch.float64, device=device), 0
        with in_one_piece(self.objective), self.objective.autocast(device):  # weights are rounded once for all batches
            for batch in self.batches:
                sums += torch.stack(self.objective(batch.to(device)))
                tokens += batch.num_target_tokens
        loss, nll = (sums / max(tokens, 1)).tolist()
        return loss, nll


def perplexity(nll: float) -> float:
    """exp(nll): per subword, so it can only be compared within one vocabulary."""
    return math.exp(nll) if nll < 700 else math.inf
