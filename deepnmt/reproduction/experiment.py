"""An experiment: models to train (arms), measurements, the paper's results and its claims.

`experiments/` has a file for each table and figure of the paper, and for a few others.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from deepnmt.settings import from_table

Measure = Literal["scores", "speed", "weights"]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One model: a recipe with overrides. `paper` has the paper's results, NaN where its model failed to train."""

    label: str
    recipe: str
    overrides: tuple[str, ...] = ()
    group: str = ""
    paper: dict[str, float] = field(default_factory=dict)  # parameters (millions), bleu, ppl, speed (tokens/s)
    depth: int | None = None  # of the encoder, if not the recipe's; its position in a plot over depth
    line: str = ""  # its line in that plot
    family: str = ""  # its charts of training, if the experiment has several; without one it is in all of them
    setting: Literal["scale", "base"] = "scale"  # at a small scale, `base` halves batch and learning rate
    lr: float | None = None  # at a small scale: the best of a sweep that all arms had; by default the scale's
    only: Literal["", "full", "small"] = ""  # the scales that run it


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper: `better` scores above `worse`, or `fails` does not train."""

    better: str = ""
    worse: str = ""
    fails: str = ""

    @property
    def text(self) -> str:
        return f"{self.fails} fails to train" if self.fails else f"{self.better} is better than {self.worse}"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    title: str
    about: str
    arms: tuple[Arm, ...]
    overrides: tuple[str, ...] = ()  # for every arm
    claims: tuple[Claim, ...] = ()
    also: tuple[str, ...] = ()  # other parts of the paper that it covers
    measures: tuple[Measure, ...] = ("scores",)
    metric: str = "compound_bleu"  # compared with the paper's figure
    plot: Literal["", "score", "speed"] = ""  # over depth
    equal: Literal["tokens", "time"] = "tokens"  # which every arm gets the same amount of
    own_setting: bool = False  # learning rates and batches of the recipes, even at a small scale
    keeps_shape: bool = False  # a scale does not resize the models
    shows_gradients: bool = False
    shows_perplexity: bool = False
    shows_significance: bool = False  # of the difference from the first arm of the group
    shows_curves: bool = True  # of training
    charts_by_group: bool = False  # of training: more lines than one can tell apart in one chart
    claims_title: str = "The paper's claims"
    trains: bool = True

    def overrides_of(self, arm: Arm) -> list[str]:
        """The overrides of an arm at the paper's scale."""
        depth = [] if arm.depth is None else [f"model.encoder.num_layers={arm.depth}"]
        return [*self.overrides, *arm.overrides, *depth]


def at_rates(experiment: Experiment, depth: int, rates: Sequence[float]) -> Experiment:
    """A sweep: every arm of this depth with each of these learning rates, judged by its validation loss alone."""
    return Experiment(
        title=f"{experiment.title}: learning rates",
        about=f"The arms with {depth} encoder layers, each with every learning rate. The other settings are equal.",
        arms=tuple(
            replace(arm, label=f"{arm.label}, {rate:g}", group=arm.label, lr=rate)
            for arm in experiment.arms
            if arm.depth == depth
            for rate in rates
        ),
        measures=(),
        shows_perplexity=True,
        shows_curves=False,
    )


EXPERIMENTS = {
    path.stem: from_table(Experiment, tomllib.loads(path.read_text(encoding="utf-8")), path.stem)
    for path in sorted((Path(__file__).parent / "experiments").glob("*.toml"))
}
EXPERIMENTS["beyond-rates"] = at_rates(EXPERIMENTS["beyond"], depth=18, rates=(5e-4, 1e-3, 2e-3))
