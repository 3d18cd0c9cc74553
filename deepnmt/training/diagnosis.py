"""Recognises training that fails, and suggests a remedy: it diverges, or gradients do not reach the lowest layers."""

import math
from dataclasses import dataclass

import numpy as np

from deepnmt.config import Recipe
from deepnmt.data.dataset import Dataset
from deepnmt.errors import RunError
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.sublayers import SUBLAYERS
from deepnmt.training.config import TrainingConfig

# Ratio of the lowest layer's gradient to the top layer's below which the lowest layer no longer learns. Stacks that
# learn have 1e-2 or more, with either norm; post-norm stacks too deep to learn have a few 1e-5, and falling.
VANISHED = 1e-4
# A loss this close to guessing by frequency means that the model does not use the source.
GUESSING = 0.98
GUESSING_SAMPLE = 5_000_000  # target ids of a corpus that are counted
STRIKES = 5
# Every model starts by guessing; it has twice the warm-up, and at least this many steps, to do better.
GUESSING_STEPS = 1000


class TrainingError(RunError):
    """Names the step and the reason; the last checkpoint is intact."""


@dataclass(frozen=True)
class Diagnosis:
    """Interprets the figures of a run. `guessing_nll` is the entropy of the target's words, in nats."""

    config: TrainingConfig
    guessing_nll: float
    is_post_norm: bool
    has_shortcuts: bool = False  # the encoder's connection lets a layer's output bypass the layers above it
    guessing_steps: int = GUESSING_STEPS

    def diverged(self, step: int) -> TrainingError:
        return TrainingError(f"diverged at step {step}: the loss or its gradient is not finite; {self._advice()}")

    def strikes(self, step: int, nll: float, layers: dict[str, float], before: int) -> int:
        """The number of consecutive signs that the model does not learn; raises when there are enough."""
        ratio = depth_ratio(layers, self.has_shortcuts)
        is_guessing = nll >= GUESSING * self.guessing_nll
        vanished = ratio is not None and ratio < VANISHED
        if not self._is_sign(step, is_guessing, vanished):
            return 0
        if before + 1 < STRIKES:
            return before + 1
        reason = f"its loss is still that of guessing words by frequency ({self.guessing_nll:.2f} nats)"
        if vanished:
            lowest = "any encoder layer" if self.has_shortcuts else "the lowest encoder layer"
            reason = f"the gradient reaching {lowest} is {ratio:.0e} of the top's"
            reason += "" if is_guessing else ", and the decoder learns without the source"
        raise TrainingError(f"not learning at step {step} (nll {nll:.2f} nats): {reason}; {self._advice()}")

    def _is_sign(self, step: int, is_guessing: bool, vanished: bool) -> bool:
        """A decoder that learns without its source does better than guessing; then the gradient decides."""
        if vanished:
            return is_guessing or step >= min(self.config.warmup_steps, self.guessing_steps)
        return is_guessing and step >= max(2 * self.config.warmup_steps, self.guessing_steps)

    def _advice(self) -> str:
        remedies = [
            f"a lower training.lr than {self.config.lr:g}",
            f"a longer training.warmup_steps than {self.config.warmup_steps}",
        ]
        if self.config.clip_norm is None:
            remedies.append("training.clip_norm = 1.0")
        if self.is_post_norm:
            remedies = ['model.norm = "pre"', 'model.encoder.connection = "dlcl"', *remedies]
        return f"try {', '.join(remedies[:-1])} or {remedies[-1]}"


def depth_ratio(layers: dict[str, float], has_shortcuts: bool = False) -> float | None:
    """Gradient norm of the lowest encoder layer over the top decoder layer's: the gradient's whole path.

    With shortcuts a model may learn to bypass its lowest layer; then the encoder layer with the largest norm counts.
    A layer whose gradient is exactly zero was skipped in this update (LayerDrop), which says nothing.
    """
    encoder = [norm for name, norm in layers.items() if name.startswith("encoder.layers.") and norm]
    decoder = [norm for name, norm in layers.items() if name.startswith("decoder.layers.") and norm]
    if not encoder or not decoder:
        return None
    return (max(encoder) if has_shortcuts else encoder[0]) / decoder[-1]


def diagnosis_for(recipe: Recipe, dataset: Dataset) -> Diagnosis:
    encoder = recipe.model.encoder
    return Diagnosis(
        recipe.training,
        guessing_nll(dataset),
        is_post_norm=SUBLAYERS[recipe.model.sublayer_of(encoder).kind].placement == "post",
        has_shortcuts=CONNECTIONS[encoder.connection.kind].has_shortcuts,
    )


def guessing_nll(dataset: Dataset) -> float:
    """The entropy of the target's words in nats: the loss of a model that only knows their frequencies."""
    counts = np.zeros(dataset.tokenizers.target.vocab_size, np.int64)
    for corpus in dataset.train.values():
        ids = corpus.target.ids[:GUESSING_SAMPLE]
        counts += np.bincount(ids, minlength=len(counts))
        counts[dataset.tokenizers.target.eos_id] += len(ids) // max(1, int(corpus.target.lengths.mean()))
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum()) if len(shares) else math.log(len(counts))
