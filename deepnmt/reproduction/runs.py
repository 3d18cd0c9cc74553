"""From experiments to a list of runs: what each is called, what it trains, what it will cost."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from deepnmt.analysis.size import measure, total
from deepnmt.config import Recipe, load_recipe
from deepnmt.data.dataset import Dataset
from deepnmt.errors import InputError
from deepnmt.model.config import ModelConfig
from deepnmt.reproduction.experiment import Arm, Experiment, Measure
from deepnmt.reproduction.paper import EXPERIMENTS
from deepnmt.reproduction.scales import SCALES, Scale, arms_of, overrides_of
from deepnmt.settings import did_you_mean

# Other places of the paper where an experiment is meant.
ALIASES = {"appendix-a": "trainability", "section5.1": "trainability", "appendix-b": "table7", "figure2": "table2"}

# For estimates before anything was measured: arithmetic at this rate, and this long for each layer of each batch.
RATES = {"cuda": (2.0e14, 4e-4, 15.0), "cpu": (2.0e10, 4e-3, 3.0)}  # FLOP/s, s per layer, s beside training
TRYING = {"cuda": 75.0, "cpu": 3.0}  # s more where arms have equal time: their speed is tried before (on an H200)
SPARE = 0.9  # of the minutes that are planned for
LEAST_SHARE = 0.1  # of the scale's tokens, under which nothing is learned


@dataclass(frozen=True)
class Use:
    """A run as an arm of an experiment."""

    experiment: str
    label: str


@dataclass
class PlannedRun:
    """One model and seed. Arms of several experiments that come to the same settings are one run."""

    name: str
    recipe_name: str
    overrides: list[str]
    seed: int
    recipe: Recipe
    trains: bool
    seconds: float | None  # of training, where time is what arms have the same of
    uses: list[Use] = field(default_factory=list)
    measures: set[Measure] = field(default_factory=set)


@dataclass(frozen=True)
class Budget:
    """What every run gets: tokens, or for experiments of equal time, seconds."""

    tokens: int | None
    seconds: float | None


def choose_experiments(names: Sequence[str]) -> dict[str, Experiment]:
    names = [ALIASES.get(name, name) for name in names]
    for name in names:
        if name not in EXPERIMENTS:
            raise InputError(
                f"unknown experiment {name!r}{did_you_mean(name, EXPERIMENTS)}; one of {', '.join(EXPERIMENTS)}"
            )
    return {name: EXPERIMENTS[name] for name in dict.fromkeys(names)}


def choose_arms(experiments: dict[str, Experiment], patterns: Sequence[str]) -> dict[str, Experiment]:
    """Only the arms whose label is one of these patterns (`DLCL *`); by default all."""
    if not patterns:
        return experiments
    labels = [arm.label for experiment in experiments.values() for arm in experiment.arms]
    chosen = {label for label in labels if any(fnmatchcase(label, pattern) for pattern in patterns)}
    for pattern in patterns:
        if not any(fnmatchcase(label, pattern) for label in labels):
            raise InputError(f"--arms {pattern!r} is none of {', '.join(map(repr, dict.fromkeys(labels)))}")
    return {
        name: replace(experiment, arms=tuple(arm for arm in experiment.arms if arm.label in chosen))
        for name, experiment in experiments.items()
    }


def plan_runs(
    experiments: dict[str, Experiment],
    scale_name: str,
    seeds: int,
    budget: Budget,
    settings: Sequence[str],
    dataset: Dataset | None = None,
) -> list[PlannedRun]:
    """Every run once, seed by seed: when a study stops early, all arms have the same number of seeds."""
    scale = SCALES[scale_name]
    runs: dict[str, PlannedRun] = {}
    for seed in range(1, seeds + 1):
        for name, experiment in experiments.items():
            if seed > 1 and not experiment.trains:
                continue
            for arm in arms_of(experiment, scale):
                run = _plan(arm, experiment, scale, seed, budget, settings, dataset)
                run = runs.setdefault(run.name, run)
                run.uses.append(Use(name, arm.label))
                run.measures |= set(experiment.measures)
    return list(runs.values())


def _plan(
    arm: Arm,
    experiment: Experiment,
    scale: Scale,
    seed: int,
    budget: Budget,
    settings: Sequence[str],
    dataset: Dataset | None,
) -> PlannedRun:
    written = load_recipe(arm.recipe, arm.overrides, dataset)
    of_scale = overrides_of(arm, experiment, scale, written, budget.tokens)
    overrides = [*arm.overrides, *of_scale, *settings, f"training.seed={seed}"]
    recipe = load_recipe(arm.recipe, overrides, dataset)
    seconds = budget.seconds if experiment.equal == "time" and not scale.is_full else None
    identity = json.dumps([_chosen(recipe), experiment.trains, seconds], sort_keys=True, default=str)
    name = f"{_slug(arm, recipe)}-s{seed}-{hashlib.sha256(identity.encode()).hexdigest()[:6]}"
    return PlannedRun(name, arm.recipe, overrides, seed, recipe, experiment.trains, seconds)


def _chosen(settings: Any) -> Any:
    """Settings other than the defaults: a setting that is added later does not make other runs of the old ones."""
    if not is_dataclass(settings):
        return settings
    found: dict[str, Any] = {"": type(settings).__name__}
    for item in fields(settings):
        value = getattr(settings, item.name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if value != default:
            found[item.name] = _chosen(value)
    return found


def _slug(arm: Arm, recipe: Recipe) -> str:
    model = recipe.model
    kind = model.encoder.connection.kind
    return f"{model.norm}-{kind}-{model.encoder.num_layers}+{model.decoder.num_layers}-d{model.encoder.dim}"


def set_budget(
    experiments: dict[str, Experiment], scale_name: str, minutes: float | None, device: str, runs: "Planner"
) -> Budget:
    """The scale's own number of tokens for every run, or as many as fit into the minutes on one device."""
    scale = SCALES[scale_name]
    if scale.is_full:
        if minutes is not None:
            raise InputError("--minutes is for the small scales: --scale full trains as long as the paper did")
        return Budget(None, None)
    timed = [e for e in experiments.values() if e.equal == "time"]
    if minutes is None:
        if timed:
            raise InputError("this experiment gives every arm the same time: say how much in all with --minutes")
        return Budget(scale.tokens, None)
    planned = runs(Budget(scale.tokens, None))
    trained = [run for run in planned if run.trains]
    aside = sum(estimate(run, device).aside for run in planned)
    aside += TRYING[device] * len(trained) if timed else 0.0
    left = SPARE * minutes * 60 - aside
    if left <= 0:
        raise InputError(
            f"{len(planned)} runs need about {aside / SPARE / 60:.0f} minutes beside training: more than --minutes "
            f"{minutes:g}"
        )
    if timed:
        return Budget(scale.tokens, left / len(trained))
    assert scale.tokens is not None
    needed = sum(estimate(run, device).training for run in trained)
    share = min(left / needed, 1.0) if needed else 1.0
    if share < LEAST_SHARE:
        enough = (aside + LEAST_SHARE * needed) / SPARE / 60
        raise InputError(
            f"--minutes {minutes:g} is too little for {len(planned)} useful runs: give at least {enough:.0f}, or "
            "choose fewer --seeds or experiments"
        )
    return Budget(round(scale.tokens * share), None)


def fixed_budget(experiments: dict[str, Experiment], scale_name: str, tokens: int) -> Budget:
    """As many tokens as the call says for every run."""
    if SCALES[scale_name].is_full:
        raise InputError("--tokens is for the small scales: --scale full trains as long as the paper did")
    for name, experiment in experiments.items():
        if experiment.equal == "time":
            raise InputError(f"--tokens: {name} gives every arm the same time instead; say how much with --minutes")
    return Budget(tokens, None)


Planner = Callable[[Budget], list[PlannedRun]]


@dataclass(frozen=True)
class Estimate:
    parameters: int
    training: float  # seconds
    aside: float  # starting, validating, averaging, decoding, scoring


def estimate(run: PlannedRun, device: str) -> Estimate:
    rate, per_layer, aside = RATES[device]
    model, training = run.recipe.model, run.recipe.training
    parameters = count_parameters(model)
    if not run.trains:
        return Estimate(parameters, 0.0, aside)
    if run.seconds is not None:
        return Estimate(parameters, run.seconds, aside + TRYING[device])
    embeddings = (model.source_vocab_size + model.target_vocab_size) * model.decoder.dim
    used = max(parameters - embeddings, 0) + model.target_vocab_size * model.decoder.dim
    layers = model.encoder.num_layers + model.decoder.num_layers
    per_token = 6 * used / rate + layers * per_layer / run.recipe.batching.tokens_per_batch
    return Estimate(parameters, per_token * training.tokens_per_update * training.max_steps, aside)


def describe_plan(runs: Sequence[PlannedRun], device: str, at_once: int) -> str:
    """The runs with their sizes and estimated times, for a dry run."""
    total = 0.0
    lines = [f"{'run':<44} {'parameters':>12} {'updates':>9} {'tokens':>14} {'minutes':>8}  for"]
    for run in runs:
        expected, training = estimate(run, device), run.recipe.training
        minutes = (expected.training + expected.aside) / 60
        total += minutes
        is_counted = run.trains and run.seconds is None
        updates = f"{training.max_steps:,}" if is_counted else "-"
        tokens = f"{training.tokens_per_update * training.max_steps:,}" if is_counted else "-"
        uses = "; ".join(f"{use.experiment}: {use.label}" for use in run.uses)
        lines.append(f"{run.name:<44} {expected.parameters:>12,} {updates:>9} {tokens:>14} {minutes:>8.1f}  {uses}")
    shared = f", less with {at_once} at a time" if at_once > 1 else ""
    return "\n".join([*lines, f"{len(runs)} runs, about {total:.0f} minutes on one device{shared} (estimated)"])


@cache
def count_parameters(config: ModelConfig) -> int:
    return total(measure(config)).parameters
