"""Checkpoints of a run: complete or absent, verified before use, and only as many as the recipe keeps.

RUN/checkpoints/step-00001000 and epoch-00003 are MODEL folders (config.json, model.safetensors, meta.json) that also
hold what resuming needs: optimizer.safetensors (or shards/, when sharded), ema.safetensors, state.json, and
manifest.json with the checksum of every file. A folder is written aside and renamed, so a named one is complete.
Training waits only until its tensors are copied; a thread writes them and removes old checkpoints.
"""

import json
import math
import shutil
import warnings
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.tensor import DTensor

from deepnmt.config import Recipe
from deepnmt.data.batching import StreamState
from deepnmt.errors import InputError
from deepnmt.files import replacing, sha256, write_json
from deepnmt.model.storage import WEIGHTS, fill, read_tensors, weights, write_model, write_tensors
from deepnmt.progress import say
from deepnmt.settings import to_table
from deepnmt.training.background import Background
from deepnmt.training.distributed import World
from deepnmt.training.folder import copy_tokenizers
from deepnmt.training.optimizer import optimizer_tensors, whole
from deepnmt.training.state import TrainingState

EMA, OPTIMIZER, SHARDS = "ema.safetensors", "optimizer.safetensors", "shards"
STATE, MANIFEST = "state.json", "manifest.json"


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, whose folder has the tokenisers."""

    folder: Path
    world: World
    recipe: Recipe
    background: Background = field(default_factory=Background)

    def save(self, state: TrainingState, epoch: int | None = None) -> None:
        """Every rank calls this; the main one writes, and each writes its own shards. `finish` waits for the files."""
        self.background.wait()
        path = self.folder / (f"step-{state.step:08d}" if epoch is None else f"epoch-{epoch:05d}")
        tensors = {WEIGHTS: {name: whole(tensor) for name, tensor in weights(state.model).items()}}
        if state.ema:
            tensors[EMA] = {name: whole(t) for name, t in state.ema.shadow.items()}
        optimizer = optimizer_tensors(state.model, state.optimizer)
        shards = None
        if any(isinstance(tensor, DTensor) for tensor in optimizer.values()):
            shards = self.folder / f".{path.name}.{SHARDS}"
            _remove_first(shards, self.world)
            save_shards(optimizer, checkpoint_id=shards)
        else:
            tensors[OPTIMIZER] = optimizer
        if self.world.is_main:
            copies = {name: _copy(group) for name, group in tensors.items()}
            stored = deepcopy({"run": state.stored(), "data": state.data})
            self.background.start(lambda: self._write(path, copies, shards, stored))

    def _write(self, path: Path, tensors: dict[str, dict[str, Tensor]], shards: Path | None, stored: Any) -> None:
        with replacing(path) as aside:
            meta = {"step": stored["run"]["step"], "decoding": to_table(self.recipe.decoding)}
            write_model(aside, self.recipe.model, tensors.pop(WEIGHTS), meta)
            copy_tokenizers(self.folder.parent, aside)
            for name, group in tensors.items():
                write_tensors(aside / name, group)
            if shards is not None:
                shards.rename(aside / SHARDS)
            write_json(aside / STATE, stored)
            _write_manifest(aside)
        self._retain()

    def finish(self) -> None:
        """Wait for the files, and remove what a kill left behind that is not to be kept."""
        self.background.wait()
        if self.world.is_main and self.all():
            self._retain()
        self.world.agree(None)

    def newest(self) -> Path | None:
        """The newest checkpoint that is intact; a damaged one is skipped with a warning."""
        self.background.wait()
        found = None
        if self.world.is_main:
            for path in sorted(self.all(), key=_age, reverse=True):
                damage = find_damage(path)
                if damage is None:
                    found = path
                    break
                say(f"{path} is damaged ({damage}); using the checkpoint before it")
            if found is None and self.all():
                raise InputError(f"every checkpoint in {self.folder} is damaged; start a new run in another folder")
        return self.world.agree(found)

    def load(self, path: Path, state: TrainingState) -> None:
        """Restore a checkpoint, written by any number of ranks, sharded or not."""
        stored = json.loads((path / STATE).read_text(encoding="utf-8"))
        fill(weights(state.model), read_tensors(path / WEIGHTS), path / WEIGHTS)
        if state.ema:
            averaged = path / EMA if (path / EMA).exists() else path / WEIGHTS
            fill(state.ema.shadow, read_tensors(averaged), averaged)
        optimizer = optimizer_tensors(state.model, state.optimizer)
        if (path / SHARDS).exists():
            _read_shards(path / SHARDS, optimizer, alone=self.world.size == 1)
        else:
            fill(optimizer, read_tensors(path / OPTIMIZER), path / OPTIMIZER)
        state.restore(stored["run"], stored["data"])

    def all(self) -> list[Path]:
        return list_checkpoints(self.folder)

    def _retain(self) -> None:
        steps = [path for path in self.all() if path.name.startswith("step-")]
        epochs = [path for path in self.all() if path.name.startswith("epoch-")]
        config, newest = self.recipe.training, max((*steps, *epochs), key=_age)
        best = best_first(steps)[: config.keep_best]
        kept = {newest, *steps[-config.keep_last :], *best, *epochs[max(0, len(epochs) - config.keep_epochs) :]}
        for path in {*steps, *epochs} - kept:
            doomed = path.with_name(f".{path.name}.doomed")
            path.rename(doomed)
            shutil.rmtree(doomed)
        write_json(self.folder.parent / "last.json", {"checkpoint": _pointer(newest)})
        if best:
            write_json(self.folder.parent / "best.json", {"checkpoint": _pointer(best[0]), "score": score_of(best[0])})


def list_checkpoints(folder: Path) -> list[Path]:
    """The complete ones, ordered by name."""
    return sorted(path for path in folder.glob("*-*") if not path.name.startswith("."))


def step_of(path: Path) -> int:
    return int(read_state(path).get("step", -1))


def _age(path: Path) -> tuple[float, str]:
    """Larger is newer. A checkpoint that cannot be read counts as the newest, so that it is not skipped silently."""
    kind, _, number = path.name.partition("-")
    return int(number) if kind == "step" else read_state(path).get("step", math.inf), path.name


def score_of(path: Path) -> float | None:
    score: float | None = read_state(path).get("score")
    return score


def best_first(paths: Iterable[Path]) -> list[Path]:
    """The checkpoints whose scores can be compared with the newest one's, best first; among equals the newest first."""
    scored = sorted((path for path in paths if score_of(path) is not None), key=_age)
    measure = measure_of(scored[-1]) if scored else None
    comparable = [path for path in scored if measure_of(path) in (measure, None)]
    return sorted(comparable, key=lambda path: (score_of(path), *_age(path)), reverse=True)


def measure_of(path: Path) -> str | None:
    """What the score of a checkpoint measures; None in checkpoints from before that was stored."""
    measure: str | None = read_state(path).get("measure")
    return measure


def read_position(path: Path) -> StreamState | None:
    """Where the training data stood when the checkpoint was saved."""
    position: StreamState | None = json.loads((path / STATE).read_text(encoding="utf-8"))["data"]
    return position


def read_state(path: Path) -> dict[str, Any]:
    """The run's part of state.json; empty if it cannot be read, which `find_damage` explains."""
    try:
        state: dict[str, Any] = json.loads((path / STATE).read_text(encoding="utf-8"))["run"]
    except (OSError, ValueError, KeyError):
        return {}
    return state


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        for name, checksum in manifest["sha256"].items():
            if sha256(path / name) != checksum:
                return f"the checksum of {name} differs"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "it is not complete"
    return None


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights a checkpoint is used with: the moving average where there is one."""
    damage = find_damage(path)
    if damage is not None:
        raise InputError(f"{path} is damaged ({damage})")
    return read_tensors(path / EMA if (path / EMA).exists() else path / WEIGHTS)


def _copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As they are now: training continues while they are written."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def _read_shards(path: Path, tensors: dict[str, Tensor], alone: bool) -> None:
    """Into these tensors, whatever ranks wrote the shards and however many there are now."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # it is, and that is meant
        load_shards(tensors, checkpoint_id=path, no_dist=alone)


def _write_manifest(folder: Path) -> None:
    files: Iterable[Path] = sorted(path for path in folder.rglob("*") if path.is_file())
    write_json(folder / MANIFEST, {"sha256": {str(path.relative_to(folder)): sha256(path) for path in files}})


def _remove_first(path: Path, world: World) -> None:
    if world.is_main:
        shutil.rmtree(path, ignore_errors=True)
    world.agree(None)


def _pointer(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
