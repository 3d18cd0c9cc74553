"""A RUN folder: the recipe as resolved, the tokenisers, the checkpoints, the curves; begun once, then gone on with."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepnmt.errors import InputError
from deepnmt.files import replacing, write_json
from deepnmt.settings import to_toml

RECIPE, ABOUT, CHECKPOINTS, MODEL = "recipe.toml", "run.json", "checkpoints", "model"
TOKENIZERS = "tokenizer.*.json"

# What may change when a run goes on: how long, how often it is looked at, what is kept; not what is computed.
MAY_CHANGE = {
    *("training.max_steps", "training.decay_steps", "training.max_epochs", "training.patience"),
    *("training.plan_memory", "training.diagnose"),
    *("training.log_every", "training.validate_every", "training.save_every", "training.save_epochs"),
    *("training.keep_last", "training.keep_best", "training.keep_epochs", "training.best_by"),
    *("training.validation_beam", "training.validation_lines", "training.export", "training.average_last"),
    *("training.rollbacks", "training.rollback_factor", "training.tensorboard", "training.wandb_project"),
    *("training.parallel", "training.distributed_timeout_seconds"),
    *("decoding.beam", "decoding.length_penalty"),
}


def check_folder(folder: Path, resume: bool) -> bool:
    """Whether the folder holds a run to go on with; refuses what must not be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --out must name a folder")
    has_run = (folder / RECIPE).exists()
    if has_run and not resume:
        raise InputError(f"{folder} already holds a run; go on with it by --resume, or choose another --out")
    if not has_run and folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty and holds no run; choose another --out")
    return has_run


def check_recipe(folder: Path, stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with another recipe, naming what differs."""
    before, after = flatten(stored), flatten(now)
    for name in sorted(before.keys() | after.keys()):
        if name not in MAY_CHANGE and before.get(name) != after.get(name):
            raise InputError(
                f"{folder} was started with {_setting(name, before)}, and now {_setting(name, after)}: "
                "a run goes on as it began; restore the setting, or start a new run in another folder"
            )


def began_from(folder: Path, start: Path | None) -> Path | None:
    """The MODEL whose weights a run began with, or None; refuses another one now."""
    stored = read_about(folder).get("from")
    if start is not None and str(start.resolve()) != stored:
        began = "new weights" if stored is None else f"those of {stored}"
        raise InputError(
            f"{folder} was started with {began}, and not from {start}: leave --from out, or choose another --out"
        )
    return None if stored is None else Path(stored)


def begin_folder(folder: Path, recipe: Mapping[str, Any], about: Mapping[str, Any], tokenizers: Path) -> None:
    """The recipe is written last: a folder that has it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    copy_tokenizers(tokenizers, folder)
    write_json(folder / ABOUT, about)
    write_recipe(folder, recipe)


def write_recipe(folder: Path, recipe: Mapping[str, Any]) -> None:
    with replacing(folder / RECIPE) as aside:
        aside.write_text(to_toml(recipe), encoding="utf-8")


def read_about(folder: Path) -> dict[str, Any]:
    """run.json of a RUN folder, refused if it is not one."""
    try:
        about: dict[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} is not a RUN folder: it has no readable {ABOUT}") from error
    return about


def copy_tokenizers(source: Path, target: Path) -> None:
    for path in source.glob(TOKENIZERS):
        shutil.copyfile(path, target / path.name)


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _setting(name: str, values: Mapping[str, Any]) -> str:
    return f"{name} = {json.dumps(values[name])}" if name in values else f"{name} unset"
