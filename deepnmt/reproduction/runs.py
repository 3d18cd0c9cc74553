"""From experiments to a list of runs, with their names, recipes and estimated times."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from deepnmt.analysis.size import measure
from deepnmt.columns import aligned
from deepnmt.config import Recipe, load_recipe
from deepnmt.data.dataset import Dataset
from deepnmt.devices import available_cores
from deepnmt.errors import InputError
from deepnmt.model.config import ModelConfig
from deepnmt.reproduction.experiment import EXPERIMENTS, Arm, Experiment, Measure, read_experiment
from deepnmt.reproduction.scales import Scale
from deepnmt.settings import did_you_mean

# For estimates before anything is measured: FLOP/s (on a CPU, of a core), s per layer and batch, s besides training.
RATES = {"cuda": (2.0e14, 4e-4, 15.0), "cpu": (4.0e10, 4e-3, 3.0)}
TRYING = {"cuda": 75.0, "cpu": 3.0}  # additional s to measure the speed of arms with equal time
SPARE = 0.9  # share of the given minutes that is planned
LEAST_SHARE = 0.1  # of the scale's tokens; models learn nothing with fewer


@dataclass
class PlannedRun:
    """One model and seed. Arms of several experiments with the same settings share a run."""

    name: str
    recipe_name: str
    overrides: list[str]
    seed: int
    recipe: Recipe
    trains: bool
    seconds: float | None  # of training, in experiments that give every arm the same time
    uses: list[tuple[str, str]] = field(default_factory=list)  # experiments, and the labels of its arms in them
    measures: set[Measure] = field(default_factory=set)

    @property
    def purpose(self) -> str:
        return "; ".join(f"{experiment}: {label}" for experiment, label in self.uses)


@dataclass(frozen=True)
class Budget:
    """The training budget of every run: tokens, or seconds in experiments of equal time; else the recipe's."""

    tokens: int | None = None
    seconds: float | None = None


def choose(names: Sequence[str], arms: Sequence[str] = ()) -> dict[str, Experiment]:
    """The experiments of these names and files; `arms` are patterns (`DLCL *`), each of which must match a label."""
    known = {other: name for name, experiment in EXPERIMENTS.items() for other in (name, *experiment.also)}
    chosen: dict[str, Experiment] = {}
    for name in names:
        if name.endswith(".toml"):
            if Path(name).stem in chosen:
                raise InputError(f"{name}: another experiment of this call has the same name; rename the file")
            chosen[Path(name).stem] = read_experiment(Path(name))
        elif name in known:
            chosen[known[name]] = EXPERIMENTS[known[name]]
        else:
            nearest = did_you_mean(name, [*EXPERIMENTS, *(path.name for path in Path().glob("*.toml"))])
            raise InputError(f"unknown experiment {name!r}{nearest} (one of {', '.join(EXPERIMENTS)}, or a .toml file)")
    labels = [arm.label for experiment in chosen.values() for arm in experiment.arms]
    for pattern in arms:
        if not any(fnmatchcase(label, pattern) for label in labels):
            raise InputError(f"--arms {pattern!r} matches none of {', '.join(map(repr, dict.fromkeys(labels)))}")
    return chosen


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The arms of experiments at a scale; `settings` are for all of them, `arms` patterns of the labels to run."""

    experiments: dict[str, Experiment]
    scale: Scale
    seeds: int
    settings: Sequence[str] = ()
    arms: Sequence[str] = ()
    dataset: Dataset | None = None

    def runs(self, budget: Budget) -> list[PlannedRun]:
        """List every run once, seed by seed, so that all arms have the same number of seeds if a study stops early."""
        runs: dict[str, PlannedRun] = {}
        for seed in range(1, self.seeds + 1):
            for name, experiment in self.experiments.items():
                for arm in self.scale.arms(experiment) if experiment.trains or seed == 1 else ():
                    if not self.arms or any(fnmatchcase(arm.label, pattern) for pattern in self.arms):
                        run = self._run(name, arm, seed, budget)
                        run = runs.setdefault(run.name, run)
                        run.uses.append((name, arm.label))
                        run.measures |= set(experiment.measures)
        return list(runs.values())

    def _run(self, name: str, arm: Arm, seed: int, budget: Budget) -> PlannedRun:
        experiment = self.experiments[name]
        overrides = experiment.overrides_of(arm)
        try:
            written = load_recipe(arm.recipe, overrides, self.dataset)
            overrides += self.scale.overrides_of(arm, experiment, written, budget.tokens)
            overrides += [*self.settings, f"training.seed={seed}"]
            recipe = load_recipe(arm.recipe, overrides, self.dataset)
        except InputError as error:
            raise InputError(f"{name}, arm {arm.label!r}: {error}") from error
        trains = experiment.trains
        seconds = budget.seconds if experiment.equal == "time" and not self.scale.is_full else None
        return PlannedRun(_name(recipe, trains, seconds), arm.recipe, overrides, seed, recipe, trains, seconds)

    def budget(self, device: str, tokens: int | None = None, minutes: float | None = None) -> Budget:
        """These tokens for every run, or as many as fit into the minutes on one device; by default the scale's."""
        timed = [name for name, experiment in self.experiments.items() if experiment.equal == "time"]
        if self.scale.is_full:
            if tokens is not None or minutes is not None:
                option = "--tokens" if tokens is not None else "--minutes"
                raise InputError(f"{option} is for the small scales; --scale full trains as long as the paper")
            return Budget()
        if timed and tokens is not None:
            raise InputError(f"--tokens: {timed[0]} gives every arm the same time; use --minutes instead")
        if timed and minutes is None:
            raise InputError("this experiment gives every arm the same time; set the total with --minutes")
        if tokens is not None or minutes is None:
            return Budget(tokens or self.scale.tokens)
        runs = self.runs(Budget(self.scale.tokens))
        trained = [run for run in runs if run.trains]
        aside = sum(estimate(run, device).aside for run in runs)
        aside += TRYING[device] * len(trained) if timed else 0.0
        left = SPARE * minutes * 60 - aside
        if left <= 0:
            raise InputError(
                f"{len(runs)} runs need about {aside / SPARE / 60:.0f} minutes besides training, more than --minutes "
                f"{minutes:g}"
            )
        if timed:
            return Budget(self.scale.tokens, left / len(trained))
        needed = sum(estimate(run, device).training for run in trained)
        share = min(left / needed, 1.0) if needed else 1.0
        if share < LEAST_SHARE:
            enough = (aside + LEAST_SHARE * needed) / SPARE / 60
            raise InputError(
                f"--minutes {minutes:g} is too short for {len(runs)} useful runs; give at least {enough:.0f}, or "
                "choose fewer --seeds or experiments"
            )
        return Budget(round((self.scale.tokens or 0) * share))


def _name(recipe: Recipe, trains: bool, seconds: float | None) -> str:
    """A descriptive name that ends in a digest of all settings."""
    model = recipe.model
    shape = f"{model.encoder.num_layers}+{model.decoder.num_layers}-d{model.encoder.dim}"
    identity = json.dumps([_chosen(recipe), trains, seconds], sort_keys=True, default=str)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:6]
    kinds = f"{model.sublayer_of(model.encoder).kind}-{model.encoder.connection.kind}"
    return f"{kinds}-{shape}-s{recipe.training.seed}-{digest}"


def _chosen(settings: Any) -> Any:
    """Settings that differ from the defaults, so that new settings do not change the names of existing runs."""
    if not is_dataclass(settings):
        return settings
    found: dict[str, Any] = {"": type(settings).__name__}
    for item in fields(settings):
        value = getattr(settings, item.name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if value != default:
            found[item.name] = _chosen(value)
    return found


class Estimate(NamedTuple):
    training: float  # seconds
    aside: float  # starting, validating, averaging, decoding, scoring


def estimate(run: PlannedRun, device: str) -> Estimate:
    rate, per_layer, aside = RATES[device]
    rate *= available_cores() if device == "cpu" else 1
    model, training = run.recipe.model, run.recipe.training
    if not run.trains:
        return Estimate(0.0, aside)
    if run.seconds is not None:
        return Estimate(run.seconds, aside + TRYING[device])
    embeddings = (model.source_vocab_size + model.target_vocab_size) * model.decoder.dim
    used = max(count_parameters(model) - embeddings, 0) + model.target_vocab_size * model.decoder.dim
    layers = model.encoder.num_layers + model.decoder.num_layers
    per_token = 6 * used / rate + layers * per_layer / run.recipe.batching.tokens_per_batch
    return Estimate(per_token * training.tokens_per_update * training.max_steps, aside)


def describe_plan(runs: Sequence[PlannedRun], device: str, at_once: int) -> str:
    """List the runs with their sizes and estimated times."""
    rows = [["run", "parameters", "updates", "tokens", "minutes", "for"]]
    for run in runs:
        training, updates, tokens = run.recipe.training, "-", "-"
        if run.trains and run.seconds is None:
            updates, tokens = f"{training.max_steps:,}", f"{training.tokens_per_update * training.max_steps:,}"
        size, minutes = count_parameters(run.recipe.model), sum(estimate(run, device)) / 60
        rows.append([run.name, f"{size:,}", updates, tokens, f"{minutes:.1f}", run.purpose])
    whole = sum(sum(estimate(run, device)) for run in runs) / 60
    shared = f", less with {at_once} at a time" if at_once > 1 else ""
    return (
        f"{aligned(rows, slice(1, 5))}\n{len(runs)} runs, about {whole:.1f} minutes on one device{shared} (estimated)"
    )


@cache
def count_parameters(config: ModelConfig) -> int:
    return sum(part.parameters for part in measure(config))
