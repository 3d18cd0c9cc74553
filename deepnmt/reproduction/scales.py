"""The scale of an experiment: the paper's, or a smaller one that keeps the ratios between the arms.

At a small scale every arm has the same setting (batch, updates, learning rate, warm-up, dropout): no arm is tuned more
than another, and all see the same tokens. Table 7, which compares settings, has two, in the paper's ratio, and an arm
may have the best learning rate of a sweep that all arms had.
"""

from dataclasses import dataclass
from pathlib import Path

from deepnmt.config import Recipe
from deepnmt.files import read_toml
from deepnmt.model.config import StackConfig
from deepnmt.reproduction.experiment import Arm, Experiment
from deepnmt.settings import from_table

PAPER_DIM = 512  # of Base; Big is twice as wide at every scale
PAPER_TOKENS_PER_UPDATE = 32_768  # of Base, likewise
AVERAGED_SHARE = 5  # small runs average over the last fifth, like 5 of 25 epochs


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes are those of Base; Big has twice the width. Without `tokens`, the recipes are not changed."""

    about: str
    dim: int = 0
    ffn_dim: int = 0
    num_heads: int = 0
    encoder_divisor: int = 1
    fewer_decoder_layers: int = 0
    tokens: int | None = None
    tokens_per_update: int = 0
    tokens_per_batch: int = 0
    lr: float = 0.0
    warmup_share: float = 0.0
    dropouts: tuple[float, float, float] = (0.1, 0.0, 0.0)
    settings: tuple[str, ...] = ()  # for every arm
    validations: int = 10  # in a run
    seeds: int = 3
    averaged: int = 5  # checkpoints: the last epochs at full scale, else evenly spaced steps
    worst_bleu: float = 1.0  # below this a model counts as failed

    @property
    def is_full(self) -> bool:
        return self.tokens is None

    def arms(self, experiment: Experiment) -> list[Arm]:
        where = "full" if self.is_full else "small"
        return [arm for arm in experiment.arms if arm.only in ("", where)]

    def overrides_of(self, arm: Arm, experiment: Experiment, recipe: Recipe, tokens: int | None) -> list[str]:
        """The overrides that adapt the arm's recipe to this scale; `tokens` per run replace the scale's."""
        if self.is_full:
            return [f"training.keep_epochs={max(self.averaged, recipe.training.keep_epochs)}"]
        overrides = [*self.settings]
        if not experiment.keeps_shape:
            overrides += self._resized("encoder", recipe.model.encoder) + self._resized("decoder", recipe.model.decoder)
        # The base setting has half the learning rate, batch and warm-up of the deep one, and twice its updates.
        halves = 2 if arm.setting == "base" else 1
        batch = self.tokens_per_update // halves
        if experiment.own_setting:
            batch = max(self.tokens_per_update * recipe.training.tokens_per_update // PAPER_TOKENS_PER_UPDATE, 1)
        else:
            overrides += [f"training.lr={arm.lr or self.lr / halves}", "training.betas=[0.9, 0.98]"]
            names = ("dropout", "attention_dropout", "ffn_dropout")
            overrides += [f"model.{name}={share}" for name, share in zip(names, self.dropouts, strict=True)]
        steps = max(round((tokens or self.tokens or 0) / batch), 1)
        return [
            *overrides,
            f"training.tokens_per_update={batch}",
            f"batching.tokens_per_batch={min(batch, self.tokens_per_batch)}",
            f"training.max_steps={steps}",
            f"training.warmup_steps={max(round(self.warmup_share / halves**2 * steps), 1)}",
            f"training.log_every={max(min(steps // 60, 100), 1)}",
            f"training.validate_every={max(steps // self.validations, 1)}",
            f"training.save_every={max(steps // (AVERAGED_SHARE * self.averaged), 1)}",
            f"training.keep_last={self.averaged}",
            "training.save_epochs=false",
            "training.validation_lines=0",
            'training.best_by="loss"',
            'training.export="last"',
        ]

    def _resized(self, name: str, stack: StackConfig) -> list[str]:
        times = max(stack.dim // PAPER_DIM, 1)
        layers = stack.num_layers
        layers = layers // self.encoder_divisor if name == "encoder" else layers - self.fewer_decoder_layers
        sizes = {"dim": self.dim * times, "ffn_dim": self.ffn_dim * times, "num_heads": self.num_heads * times}
        return [f"model.{name}.{field}={value}" for field, value in {"num_layers": max(layers, 1), **sizes}.items()]


SCALES = {
    name: from_table(Scale, table, name) for name, table in read_toml(Path(__file__).with_suffix(".toml")).items()
}
