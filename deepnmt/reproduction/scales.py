"""How large an experiment is run: the paper's own setting, or a smaller one in which the ratios between arms stay.

In small, every arm has one setting (batch, updates, rate, warm-up, dropout), chosen once: no arm is tuned more than
another, and all see the same tokens. Only table 7, which is about settings, has two, in the paper's ratio.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from deepnmt.config import Recipe
from deepnmt.model.config import StackConfig
from deepnmt.reproduction.experiment import Arm, Experiment

PAPER_DIM = 512  # of Base: twice as wide (Big) there is twice as wide here
PAPER_TOKENS_PER_UPDATE = 32_768  # of Base, likewise


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Base's width; Big has twice that."""

    dim: int
    ffn_dim: int
    num_heads: int
    encoder_divisor: int = 1
    fewer_decoder_layers: int = 0


@dataclass(frozen=True, kw_only=True)
class Scale:
    about: str
    shape: Shape | None = None  # None: the recipes' own
    tokens: int | None = None  # per run, batches counted full; None: as the recipe says
    tokens_per_update: int = 0
    tokens_per_batch: int = 0  # what the device takes at once
    lr: float = 0.0
    warmup_share: float = 0.0  # of all updates
    dropouts: tuple[float, float, float] = (0.1, 0.0, 0.0)  # residual, attention, feed-forward
    settings: tuple[str, ...] = field(default_factory=tuple)  # for every arm
    looks: int = 10  # validations in a run
    seeds: int = 3
    # The last epochs in full. In small, the last of evenly spaced checkpoints: a fifth of the run, like 5 epochs of 25.
    averaged: int = 5
    worst_bleu: float = 1.0  # under this a model counts as failed

    @property
    def is_full(self) -> bool:
        return self.tokens is None


AVERAGED_SHARE = 5

SCALES: dict[str, Scale] = {
    "full": Scale(
        about="the paper's setting, for WMT data: recipes as they are. One run takes one GPU (accumulating what eight "
        "would have seen at once, which is the same update), eight GPUs take eight runs at a time"
    ),
    "europarl": Scale(
        about="the paper's sizes on hundreds of thousands of pairs, one seed; minutes per run on one H200",
        shape=Shape(dim=512, ffn_dim=2048, num_heads=8),
        tokens=100_000_000,
        tokens_per_update=32_768,
        lr=1e-3,
        warmup_share=0.25,
        dropouts=(0.1, 0.1, 0.1),
        tokens_per_batch=32_768,
        settings=("batching.layout=packed",),
        looks=5,
        seeds=1,
        averaged=3,
    ),
    "europarl-small": Scale(
        about="half the paper's width on hundreds of thousands of pairs, one seed; minutes per run, several at once",
        shape=Shape(dim=256, ffn_dim=1024, num_heads=4),
        tokens=20_480_000,
        tokens_per_update=8192,
        lr=2e-3,
        warmup_share=0.25,
        dropouts=(0.1, 0.0, 0.0),
        tokens_per_batch=8192,
        settings=("batching.layout=packed",),
        looks=5,
        seeds=1,
    ),
    "multi30k": Scale(
        # 8,192 tokens and 2e-3 are the paper's deep setting at an eighth of its batch with its rate and its share of
        # warm-up (16k of 50k updates). Dropout is that of the published Transformer-Tiny on this data.
        about="a quarter of the paper's width on tens of thousands of pairs, three seeds; half a minute per run",
        shape=Shape(dim=128, ffn_dim=256, num_heads=4, fewer_decoder_layers=2),
        tokens=24_576_000,
        tokens_per_update=8192,
        lr=2e-3,
        warmup_share=0.32,
        dropouts=(0.3, 0.0, 0.0),
        tokens_per_batch=8192,
        settings=("batching.layout=packed",),
        looks=5,
        seeds=3,
    ),
    "tiny": Scale(
        about="a toy for a CPU: a fifth of the depth, seconds per run; shows that the way works, nothing else",
        shape=Shape(dim=16, ffn_dim=32, num_heads=2, encoder_divisor=5, fewer_decoder_layers=5),
        tokens=30_000,
        tokens_per_update=256,
        lr=5e-3,
        warmup_share=0.2,
        tokens_per_batch=256,
        settings=("training.tensorboard=false",),
        looks=2,
        seeds=2,
        averaged=2,
        worst_bleu=0.0,
    ),
}


def overrides_of(
    arm: Arm, experiment: Experiment, scale: Scale, recipe: Recipe, tokens: int | None, max_steps: int | None = None
) -> list[str]:
    """What makes the arm's recipe one of this scale. `recipe` is the arm's as it is written; `max_steps` is for arms
    that are given the same time."""
    if scale.is_full:
        return [f"training.keep_epochs={max(scale.averaged, recipe.training.keep_epochs)}"]
    overrides = [*scale.settings]
    if scale.shape is not None and not arm.keeps_shape:
        overrides += [
            *_resized("encoder", recipe.model.encoder, scale.shape),
            *_resized("decoder", recipe.model.decoder, scale.shape),
        ]
    batch = scale.tokens_per_update
    if experiment.own_setting:
        batch = batch * recipe.training.tokens_per_update // PAPER_TOKENS_PER_UPDATE
    else:
        overrides += _one_setting(arm, scale)
        batch = batch // 2 if arm.setting == "base" else batch
    # Half the batch makes twice the updates, and the base setting has half the deep one's warm-up in updates.
    warmup_share = scale.warmup_share / (4 if arm.setting == "base" else 1)
    steps = max_steps or max(round((tokens or scale.tokens or 0) / batch), 1)
    every = max(steps // (AVERAGED_SHARE * scale.averaged), 1)
    return [
        *overrides,
        f"training.tokens_per_update={batch}",
        f"batching.tokens_per_batch={min(batch, scale.tokens_per_batch)}",
        f"training.max_steps={steps}",
        f"training.warmup_steps={max(round(warmup_share * steps), 1)}",
        f"training.log_every={max(min(steps // 60, 100), 1)}",
        f"training.validate_every={max(steps // scale.looks, 1)}",
        f"training.save_every={every}",
        f"training.keep_last={scale.averaged}",
        "training.save_epochs=false",
        "training.validation_lines=0",
        'training.best_by="loss"',
        'training.export="last"',
    ]


def _one_setting(arm: Arm, scale: Scale) -> list[str]:
    """The base setting has half of the deep one's rate, with half its batch and twice its updates."""
    residual, attention, inside = scale.dropouts
    return [
        f"training.lr={scale.lr / (2 if arm.setting == 'base' else 1)}",
        "training.betas=[0.9, 0.98]",
        f"model.dropout={residual}",
        f"model.attention_dropout={attention}",
        f"model.ffn_dropout={inside}",
    ]


def _resized(name: str, stack: StackConfig, shape: Shape) -> list[str]:
    times = max(stack.dim // PAPER_DIM, 1)
    layers = stack.num_layers
    layers = layers // shape.encoder_divisor if name == "encoder" else layers - shape.fewer_decoder_layers
    sizes = {
        "num_layers": max(layers, 1),
        "dim": shape.dim * times,
        "ffn_dim": shape.ffn_dim * times,
        "num_heads": shape.num_heads * times,
    }
    return [f"model.{name}.{field}={value}" for field, value in sizes.items()]


def arms_of(experiment: Experiment, scale: Scale) -> Sequence[Arm]:
    where = "full" if scale.is_full else "small"
    return [arm for arm in experiment.arms if arm.only in ("", where)]
