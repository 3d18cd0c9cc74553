"""A RUN folder: the resolved recipe, the tokenisers, the checkpoints and the curves; created once, then resumed."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepnmt import __version__
from deepnmt.config import Recipe
from deepnmt.data.dataset import Dataset
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.errors import InputError
from deepnmt.files import read_json, write_json, write_text
from deepnmt.settings import to_table, to_toml
from deepnmt.training.lock import LOCK

RECIPE, ABOUT, CHECKPOINTS, MODEL = "recipe.toml", "run.json", "checkpoints", "model"
TOKENIZERS = "tokenizer.*.json"

# Settings of [training] that may change when a run is resumed: its length, validation and storage, not the computation.
MAY_CHANGE = {
    *("max_steps", "decay_steps", "max_epochs", "patience", "log_every", "validate_every", "save_every", "save_epochs"),
    *("keep_last", "keep_best", "keep_epochs", "best_by", "validation_beam", "validation_lines", "export"),
    *("average_last", "rollbacks", "rollback_factor", "diagnose", "tensorboard", "wandb_project"),
    *("parallel", "distributed_timeout_seconds", "plan_memory", "activation_checkpointing"),
}


def check_folder(folder: Path, resume: bool) -> bool:
    """Whether the folder holds a run to resume; refuses what must not be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; `out` must name a folder")
    has_run = (folder / RECIPE).exists()
    if has_run and not resume:
        raise InputError(f"{folder} already contains a run; resume it with `resume=True`, or choose another `out`")
    if not has_run and folder.is_dir() and any(not _is_beginning(path) for path in folder.iterdir()):
        raise InputError(f"{folder} is not empty and contains no run; choose another `out`")
    return has_run


def _is_beginning(path: Path) -> bool:
    """Whether a run that was killed before it wrote its recipe may have left this file behind."""
    names = (TOKENIZERS, ABOUT, LOCK, f".{ABOUT}.*", f".{RECIPE}.*")
    return path.is_file() and any(path.match(name) for name in names)


def check_recipe(folder: Path, stored: Recipe, now: Recipe) -> None:
    """Refuse to resume with another recipe, naming the setting that differs."""
    before, after = flatten(to_table(stored)), flatten(to_table(now))
    for name in sorted(before.keys() | after.keys()):
        section, _, field = name.partition(".")
        may_change = section == "decoding" or (section == "training" and field in MAY_CHANGE)
        if not may_change and before.get(name) != after.get(name):
            raise InputError(
                f"{folder} was started with {_setting(name, before)}, but now {_setting(name, after)}: "
                "restore the setting, or start a new run in another folder"
            )


def check_tokenizers(folder: Path, dataset: Dataset) -> None:
    """Refuse a dataset whose subwords are not those of the RUN or MODEL folder."""
    stored, tokenizers = TokenizerPair.load(folder), dataset.tokenizers
    if (stored.source.pieces, stored.target.pieces) != (tokenizers.source.pieces, tokenizers.target.pieces):
        new = [tag for tag in tokenizers.source.tags if tag not in stored.source.tags]
        if new and stored.source.subwords.pieces == tokenizers.source.subwords.pieces:
            raise InputError(
                f"{dataset.folder} has tags that {folder} does not know ({', '.join(new)}); prepare the text without "
                "them, or train a new model"
            )
        raise InputError(
            f"{dataset.folder} has other subwords than {folder}; use `deepnmt prepare --tokenizer {folder}`"
        )


def initial_model(folder: Path, given: Path | None) -> Path | None:
    """The MODEL whose weights a run started with, or None; refuses another one."""
    stored = read_about(folder).get("from")
    if given is not None and str(given.resolve()) != stored:
        began = "new weights" if stored is None else f"the weights of {stored}"
        raise InputError(
            f"{folder} was started with {began}, not with {given}: omit `from_model`, or choose another `out`"
        )
    return None if stored is None else Path(stored)


def write_folder(folder: Path, recipe: Recipe, dataset: Dataset, start: Path | None) -> None:
    """Write or update everything but checkpoints and curves. The recipe comes last: a folder that has it is complete.

    A resumed run keeps its own tokenisers, which are those of the dataset.
    """
    if not (folder / RECIPE).exists():
        copy_tokenizers(dataset.folder, folder)
    about = {"deepnmt": __version__, "data": str(dataset.folder.resolve())}
    write_json(folder / ABOUT, about | ({} if start is None else {"from": str(start.resolve())}))
    write_text(folder / RECIPE, to_toml(to_table(recipe)))
    # What a kill left half-written: only the holder of the lock may remove it.
    for leftover in [*folder.glob(".*.partial*"), *(folder / CHECKPOINTS).glob(".*")]:
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def read_about(folder: Path) -> dict[str, Any]:
    """run.json of a RUN folder; refuses a folder that is not one."""
    return read_json(folder / ABOUT, f"{folder} is not a RUN folder")


def copy_tokenizers(source: Path, target: Path) -> None:
    for path in source.glob(TOKENIZERS):
        shutil.copyfile(path, target / path.name)


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _setting(name: str, values: Mapping[str, Any]) -> str:
    return f"{name} = {json.dumps(values[name])}" if name in values else f"{name} unset"
