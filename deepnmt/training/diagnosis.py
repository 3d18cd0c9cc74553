"""Training that fails is named, with what to try: it diverges, or its gradient does not reach the lowest layers."""

import math
from dataclasses import dataclass

from deepnmt.errors import RunError
from deepnmt.training.config import TrainingConfig

# The lowest layer's gradient as a part of the top layer's, under which nothing is learned there any more.
VANISHED = 1e-5
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
    guessing_steps: int = GUESSING_STEPS

    def diverged(self, step: int) -> TrainingError:
        return TrainingError(f"diverged at step {step}: the loss or its gradient is not finite; {self._advice()}")

    def strikes(self, step: int, nll: float, layers: dict[str, float], before: int) -> int:
        """How many signs in a row there are now that nothing is learned; raises when they are enough."""
        ratio = depth_ratio(layers)
        guessing = self.guessing_nll if self.guessing_nll is not None else math.log(self.vocab_size)
        is_guessing = nll >= GUESSING * guessing
        vanished = ratio is not None and ratio < VANISHED
        is_early = step < max(2 * self.config.warmup_steps, self.guessing_steps)
        if not is_guessing or (is_early and not vanished):
            return 0
        if before + 1 < STRIKES:
            return before + 1
        if vanished:
            reason = f"the gradient reaching the lowest encoder layer is {ratio:.0e} of the top's"
        else:
            reason = f"its loss is still that of guessing words by frequency ({guessing:.2f} nats)"
        raise TrainingError(f"not learning at step {step} (nll {nll:.2f} nats): {reason}; {self._advice()}")

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


def depth_ratio(layers: dict[str, float]) -> float | None:
    """Gradient norm of the lowest encoder layer over the top decoder layer's: the whole way of the gradient."""
    stacked = [norm for name, norm in layers.items() if "layers." in name]
    if len(stacked) < 2 or stacked[-1] == 0:
        return None
    return stacked[0] / stacked[-1]
