"""What an experiment is: models to train (arms), what to measure, what the paper found, and what it claims."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

Measure = Literal["scores", "speed", "weights"]
Setting = Literal["scale", "base"]


@dataclass(frozen=True)
class Arm:
    """One model: a recipe and what differs from it. `paper` has the paper's own numbers by the names in `COLUMNS`."""

    label: str
    recipe: str
    _: KW_ONLY
    overrides: tuple[str, ...] = ()
    group: str = ""
    paper: Mapping[str, float | str] = field(default_factory=dict)
    depth: int | None = None  # where it stands in a plot over depth
    line: str = ""  # and on which line
    setting: Setting = "scale"  # in small: the scale's one setting, or half its batch and rate, as the paper's base
    only: Literal["", "full", "small"] = ""  # where it is run
    keeps_shape: bool = False  # a scale does not resize it


@dataclass(frozen=True)
class Claim:
    """What the paper says: `better` scores above `worse`; or, alone, that `fails` does not train."""

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
    claims: tuple[Claim, ...] = ()
    measures: tuple[Measure, ...] = ("scores",)
    metric: str = "compound_bleu"  # the figure that stands beside the paper's
    plot: Literal["", "score", "speed"] = ""  # over depth
    equal: Literal["tokens", "time"] = "tokens"  # what every arm gets the same of
    own_setting: bool = False  # rates and batches of the recipes even in small
    shows_gradients: bool = False
    shows_perplexity: bool = False
    trains: bool = True


# The columns that a table may set beside the paper's.
COLUMNS = {"parameters": "M parameters", "bleu": "BLEU", "ppl": "perplexity", "speed": "tokens/s"}
