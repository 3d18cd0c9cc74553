"""Training that fails is named, with what to try: it diverges, or its gradient does not reach the lowest layers."""

import math
from dataclasses import dataclass

from deepnmt.errors import RunError
from deepnmt.training.config import TrainingConfig

# The lowest layer's gradient as a part of the top layer's, under which nothing is learned there any more. It is a
# hundredth or more in stacks that learn, in either norm; in post-norm ones too deep to learn a few 1e-5, and ever less.
VANISHED = 1e-4
# A loss this close to that of guessing by frequency means that the source is not used.
GUESSING = 0.98
STRIKES = 5
# Guessing is where every model begins; it has twice the warm-up, and at least this long, to get away from it.
GUESSING_STEPS = 1000


class TrainingError(RunError):
    """Names the step and the reason; the last checkpoint is good."""


@dataclass(frozen=True)
class Diagnosis:
    """What a run's numbers mean. `guessing_nll` is the entropy of the target's words, in nats: no model needed."""

    config: TrainingConfig
    vocab_size: int
    guessing_nll: float | None
    is_post_norm: bool
    has_shortcuts: bool = False  # the encoder's connection lets a layer's output pass by the layers above it
    guessing_steps: int = GUESSING_STEPS

    def diverged(self, step: int) -> TrainingError:
        return TrainingError(f"diverged at step {step}: the loss or its gradient is not finite; {self._advice()}")

    def strikes(self, step: int, nll: float, layers: dict[str, float], before: int) -> int:
        """How many signs in a row there are now that nothing is learned; raises when they are enough."""
        ratio = depth_ratio(layers, self.has_shortcuts)
        guessing = self.guessing_nll if self.guessing_nll is not None else math.log(self.vocab_size)
        is_guessing = nll >= GUESSING * guessing
        vanished = ratio is not None and ratio < VANISHED
        if not self._is_sign(step, is_guessing, vanished):
            return 0
        if before + 1 < STRIKES:
            return before + 1
        reason = f"its loss is still that of guessing words by frequency ({guessing:.2f} nats)"
        if vanished:
            lowest = "any encoder layer" if self.has_shortcuts else "the lowest encoder layer"
            reason = f"the gradient reaching {lowest} is {ratio:.0e} of the top's"
            reason += "" if is_guessing else ", and the decoder learns without the source"
        raise TrainingError(f"not learning at step {step} (nll {nll:.2f} nats): {reason}; {self._advice()}")

    def _is_sign(self, step: int, is_guessing: bool, vanished: bool) -> bool:
        """A decoder that learns to write without its source does better than guessing, so then the gradient decides."""
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
    """Gradient norm of the lowest encoder layer over the top decoder layer's: the whole way of the gradient.

    With shortcuts a model may well learn to pass by its lowest layer; then the encoder layer with the most counts.
    """
    encoder = [norm for name, norm in layers.items() if name.startswith("encoder.layers.")]
    decoder = [norm for name, norm in layers.items() if name.startswith("decoder.layers.")]
    if not encoder or not decoder or decoder[-1] == 0:
        return None
    return (max(encoder) if has_shortcuts else encoder[0]) / decoder[-1]
