"""An experiment: models to train (arms), measurements, published results and claims.

`experiments/` has a file for each table and figure of the paper, and for a few others; a user's file has the same form.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from deepnmt.errors import InputError
from deepnmt.files import read_toml
from deepnmt.settings import did_you_mean, from_table

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
    """A claim to judge: `better` scores above `worse`, or `fails` does not train."""

    better: str = ""
    worse: str = ""
    fails: str = ""

    def __post_init__(self) -> None:
        if bool(self.better) != bool(self.worse) or bool(self.better) == bool(self.fails):
            raise ValueError("a claim has `better` and `worse`, or `fails`")

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
    metric: str = "bleu"  # of the table, and of the claims
    plot: Literal["", "score", "speed"] = ""  # over depth
    equal: Literal["tokens", "time"] = "tokens"  # which every arm gets the same amount of
    own_setting: bool = False  # learning rates and batches of the recipes, even at a small scale
    keeps_shape: bool = False  # a scale does not resize the models
    shows_gradients: bool = False
    shows_perplexity: bool = False
    shows_significance: bool = False  # of the difference from the first arm of the group
    shows_curves: bool = True  # of training
    charts_by_group: bool = False  # of training: more lines than one can tell apart in one chart
    claims_title: str = "Claims"
    trains: bool = True

    def __post_init__(self) -> None:
        labels = [arm.label for arm in self.arms]
        if not labels:
            raise ValueError("arms is empty; an experiment has at least one")
        if not self.trains and self.measures != ("speed",):
            raise ValueError('trains = false measures speed only: set measures = ["speed"]')
        for arm in self.arms:
            if not arm.label.strip() or len(arm.label.splitlines()) > 1:
                raise ValueError(f"the label {arm.label!r} must be one line of text")
            if arm.line and arm.depth is None:
                raise ValueError(f"arm {arm.label!r} has a line in a plot over depth; set its depth too")
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"two arms have the label {twice[0]!r}")
        for claim in self.claims:
            for label in filter(None, (claim.better, claim.worse, claim.fails)):
                if label not in labels:
                    raise ValueError(f"a claim is about {label!r}, which is not an arm{did_you_mean(label, labels)}")

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


def read_experiment(path: Path) -> Experiment:
    """The experiment of a user's file; its recipes are files relative to it, or presets."""
    if not re.fullmatch(r"\w[\w.-]*", path.stem) or path.stem in (*EXPERIMENTS, "runs", "tests", "workers"):
        raise InputError(
            f"{path}: {path.stem!r} cannot be the name of an experiment: it is taken, or has characters besides "
            "letters, digits, '_', '-' and '.'; rename the file"
        )
    table = read_toml(path)
    try:
        found = from_table(Experiment, table)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    arms = (
        replace(arm, recipe=str(path.parent / arm.recipe)) if arm.recipe.endswith(".toml") else arm
        for arm in found.arms
    )
    return replace(found, arms=tuple(arms))


OF_THE_PAPER = {"metric": "compound_bleu", "claims_title": "The paper's claims"}
EXPERIMENTS = {
    path.stem: from_table(Experiment, OF_THE_PAPER | read_toml(path), path.stem)
    for path in sorted((Path(__file__).parent / "experiments").glob("*.toml"))
}
EXPERIMENTS["beyond-rates"] = at_rates(EXPERIMENTS["beyond"], depth=18, rates=(5e-4, 1e-3, 2e-3))
