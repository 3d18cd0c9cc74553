"""One model from several checkpoints: the mean of their weights, in float64."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.errors import InputError
from deepnmt.files import read_toml, replacing
from deepnmt.model.storage import load_config, read_weights, write_model
from deepnmt.training.checkpoint import age, best_first, find_damage, list_checkpoints, read_state, step_of
from deepnmt.training.config import TrainingConfig
from deepnmt.training.folder import CHECKPOINTS, MODEL, RECIPE, copy_tokenizers


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the checkpoints' weights. In float64 the mean of equal float32 numbers is exact."""
    for path in paths:
        if (damage := find_damage(path)) is not None:
            raise InputError(f"{path} is damaged ({damage})")
    first = read_weights(paths[0])
    sums = {name: weight.double() for name, weight in first.items()}
    for path in paths[1:]:
        other = read_weights(path)
        if {name: w.shape for name, w in other.items()} != {name: w.shape for name, w in first.items()}:
            raise InputError(f"{path} and {paths[0]} are not of the same model: their weights differ in name or shape")
        for name, weight in other.items():
            sums[name] += weight.double()
    return {name: (total / len(paths)).to(first[name].dtype) for name, total in sums.items()}


def choose_checkpoints(
    run: Path, *, last: int = 5, best: int | None = None, steps: Sequence[int] = (), kind: str | None = None
) -> list[Path]:
    """The last checkpoints of a kind (epoch or step), or those with the best scores, the best last, or those of steps.

    The default kind is epochs, or steps where no epoch ended.
    """
    paths = all_checkpoints(run)
    by_step = {step_of(path): path for path in paths}  # an epoch may end at a step that is saved
    for step in steps:
        if step not in by_step:
            known = ", ".join(map(str, sorted(by_step)))
            raise InputError(f"{run} has no checkpoint of step {step}; there are {known}")
    if steps:
        return [by_step[step] for step in steps]
    kind = kind or ("epoch" if paths[0].name.startswith("epoch") else "step")  # they are sorted by name
    found, kept = [path for path in paths if path.name.startswith(kind)], "last" if kind == "step" else "epochs"
    if best is not None:
        found, kind, kept = best_first(by_step.values())[::-1], "validated", "best"
    count = last if best is None else best
    if len(found) < count:
        raise InputError(
            f"{run} has only {len(found)} of {count} {kind} checkpoints; ask for fewer, or train with a higher "
            f"training.keep_{kept}"
        )
    return found[len(found) - count :]


def all_checkpoints(run: Path) -> list[Path]:
    paths = list_checkpoints(run / CHECKPOINTS)
    if not paths:
        raise InputError(f"{run} contains no checkpoint; `deepnmt train --out` writes RUN folders")
    return paths


def write_average(run: Path, paths: Sequence[Path], out: Path, meta: dict[str, Any] | None = None) -> None:
    """Write a MODEL folder with the mean of these checkpoints, the tokenisers of their run, and a record of both."""
    TokenizerPair.load(run)  # raises for a run without them before anything is written
    weights = average_weights(paths)
    newest = max(paths, key=step_of)
    described = {
        "step": step_of(newest),
        "averaged": [path.name for path in paths],
        "score": read_state(newest).get("score") if len(paths) == 1 else None,
        "decoding": read_decoding(run),
    }
    described = {name: value for name, value in described.items() if value is not None} | (meta or {})
    with replacing(out) as aside:
        write_model(aside, load_config(paths[0]), weights, described)
        copy_tokenizers(run, aside)


def export_model(run: Path, config: TrainingConfig) -> str:
    """Write RUN/model according to `training.export`; return a phrase that says which checkpoints it is from."""
    paths = all_checkpoints(run)
    newest, best = max(paths, key=age), best_first(paths)
    shape = load_config(newest)  # checkpoints of a model that grows differ in depth
    epochs = [path for path in paths if path.name.startswith("epoch") and load_config(path) == shape]
    if config.export == "average" and len(epochs) > 1:
        chosen = epochs[-config.average_last :]
        made_of = f"the average of the last {len(chosen)} epochs"
    elif config.export == "best" and best:
        chosen, state = best[:1], read_state(best[0])
        metric = state["measure"].partition("|")[0]
        made_of = f"the best checkpoint ({best[0].name}, {metric} {abs(state['score']):.2f})"
    else:
        chosen, made_of = [newest], f"the last checkpoint ({newest.name})"
    write_average(run, chosen, run / MODEL)
    return made_of


def read_decoding(run: Path) -> dict[str, Any] | None:
    """The [decoding] section of the run's recipe: the default settings for translating with its model."""
    return read_toml(run / RECIPE).get("decoding") if (run / RECIPE).is_file() else None
