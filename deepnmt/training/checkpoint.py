"""Checkpoints of a run: whole or not there, checked before they are used, and only as many as asked for.

RUN/checkpoints/step-00001000 and epoch-00003 are MODEL folders (config.json, model.safetensors, meta.json) with what
training needs to go on: optimizer.safetensors (or shards/, when sharded), ema.safetensors, state.json, and
manifest.json with the checksum of every file. A folder is written aside and renamed, so one that has its name is whole.
Training waits only until its tensors are copied: they are written, checked and thinned out beside it.
"""

import json
import math
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.tensor import DTensor, distribute_tensor

from deepnmt.data.batching import StreamState
from deepnmt.errors import InputError, RunError
from deepnmt.files import replacing, sha256, write_json
from deepnmt.training.background import Background
from deepnmt.training.config import TrainingConfig
from deepnmt.training.distributed import World
from deepnmt.training.optimizer import optimizer_tensors, whole
from deepnmt.training.run import Run

WEIGHTS, EMA, OPTIMIZER, SHARDS = "model.safetensors", "ema.safetensors", "optimizer.safetensors", "shards"
STATE, MANIFEST = "state.json", "manifest.json"


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run. `describe` adds what makes a folder a MODEL, given the folder and the step."""

    folder: Path
    world: World
    config: TrainingConfig
    describe: Callable[[Path, int], None]
    background: Background = field(default_factory=Background)

    def save(self, run: Run, data: StreamState | None, epoch: int | None = None) -> None:
        """Every rank calls this; the main one writes, and each its own shards. `finish` waits until it is there."""
        self.background.wait()
        path = self.folder / (f"step-{run.step:08d}" if epoch is None else f"epoch-{epoch:05d}")
        tensors = {WEIGHTS: {name: whole(p.detach()) for name, p in run.model.named_parameters()}}
        if run.ema:
            tensors[EMA] = {name: whole(t) for name, t in run.ema.shadow.items()}
        optimizer = optimizer_tensors(run.model, run.optimizer)
        shards = None
        if any(isinstance(tensor, DTensor) for tensor in optimizer.values()):
            shards = self.folder / f".{path.name}.{SHARDS}"
            _remove_first(shards, self.world)
            save_shards(optimizer, checkpoint_id=shards)
        else:
            tensors[OPTIMIZER] = optimizer
        if self.world.is_main:
            copies = {name: _copy(group) for name, group in tensors.items()}
            state = deepcopy({"run": run.state(), "data": data})
            self.background.start(lambda: self._write(path, copies, shards, state))

    def _write(self, path: Path, tensors: dict[str, dict[str, Tensor]], shards: Path | None, state: Any) -> None:
        with replacing(path) as aside:
            aside.mkdir()
            for name, group in tensors.items():
                _write_tensors(aside / name, group)
            if shards is not None:
                shards.rename(aside / SHARDS)
            self.describe(aside, state["run"]["step"])
            write_json(aside / STATE, state)
            _write_manifest(aside)
        self._retain()

    def finish(self) -> None:
        """Wait until what was saved is there, and no more than that, also after a kill before the rest was removed."""
        self.background.wait()
        if self.world.is_main and self.all():
            self._retain()
        self.world.agree(None)

    def newest(self) -> Path | None:
        """The newest checkpoint that is whole; a damaged one is passed over with a warning."""
        self.background.wait()
        found = None
        if self.world.is_main:
            for path in sorted(self.all(), key=_age, reverse=True):
                damage = find_damage(path)
                if damage is None:
                    found = path
                    break
                print(f"deepnmt: {path} is damaged ({damage}); going back to the one before", file=sys.stderr)
            if found is None and self.all():
                raise InputError(f"every checkpoint in {self.folder} is damaged; start a new run in another folder")
        return self.world.agree(found)

    def load(self, path: Path, run: Run) -> StreamState | None:
        """Bring a run back to a checkpoint; returns the data's state. Any number of ranks, sharded or not."""
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        parameters = {name: p.detach() for name, p in run.model.named_parameters()}
        fill(parameters, load_file(path / WEIGHTS), path / WEIGHTS)
        if run.ema:
            averaged = path / EMA if (path / EMA).exists() else path / WEIGHTS
            fill(run.ema.shadow, load_file(averaged), averaged)
        optimizer = optimizer_tensors(run.model, run.optimizer)
        if (path / SHARDS).exists():
            _read_shards(path / SHARDS, optimizer, alone=self.world.size == 1)
        else:
            fill(optimizer, load_file(path / OPTIMIZER), path / OPTIMIZER)
        run.load(state["run"])
        data: StreamState | None = state["data"]
        return data

    def all(self) -> list[Path]:
        return list_checkpoints(self.folder)

    def clean(self) -> None:
        """Remove what a kill left half written."""
        if self.world.is_main and self.folder.is_dir():
            for leftover in self.folder.glob(".*"):
                shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink()

    def _retain(self) -> None:
        steps = [path for path in self.all() if path.name.startswith("step-")]
        epochs = [path for path in self.all() if path.name.startswith("epoch-")]
        best = best_first(steps)[: self.config.keep_best]
        kept = {*steps[-self.config.keep_last :], *best, *epochs[max(0, len(epochs) - self.config.keep_epochs) :]}
        kept.add(max((*steps, *epochs), key=_age))
        for path in {*steps, *epochs} - kept:
            doomed = path.with_name(f".{path.name}.doomed")
            path.rename(doomed)
            shutil.rmtree(doomed)
        write_json(self.folder.parent / "last.json", {"checkpoint": _pointer(max(kept, key=step_of))})
        if best:
            write_json(self.folder.parent / "best.json", {"checkpoint": _pointer(best[0]), "score": score_of(best[0])})


def list_checkpoints(folder: Path) -> list[Path]:
    """In order of their names; nothing half written is among them."""
    return sorted(path for path in folder.glob("*-*") if not path.name.startswith("."))


def step_of(path: Path) -> int:
    return int(read_state(path).get("step", -1))


def _age(path: Path) -> tuple[float, str]:
    """The newest has the most; what cannot be read is looked at first, so that it is not passed over in silence."""
    kind, _, number = path.name.partition("-")
    return int(number) if kind == "step" else read_state(path).get("step", math.inf), path.name


def score_of(path: Path) -> float | None:
    score: float | None = read_state(path).get("score")
    return score


def best_first(paths: Iterable[Path]) -> list[Path]:
    """Those that have a score, the best first; of equal ones the newest, which has learned the longest."""
    scored = [path for path in paths if score_of(path) is not None]
    return sorted(scored, key=lambda path: (score_of(path), *_age(path)), reverse=True)


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


def fill(tensors: dict[str, Tensor], stored: dict[str, Tensor], where: Path) -> None:
    """Copy stored tensors into these, which must have the same names and shapes; sharded ones take their part."""
    for name in sorted(tensors.keys() ^ stored.keys()):
        raise InputError(f"{where} {'lacks' if name in tensors else 'has an unknown'} tensor {name}: not this model's")
    for name, tensor in tensors.items():
        if tensor.shape != stored[name].shape:
            raise InputError(f"{where}: {name} has shape {tuple(stored[name].shape)}, not {tuple(tensor.shape)}")
        value = stored[name].to(tensor.device)
        if isinstance(tensor, DTensor):
            value = distribute_tensor(value, tensor.device_mesh, tensor.placements)
        tensor.copy_(value)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights a checkpoint is used with: the moving average where there is one."""
    damage = find_damage(path)
    if damage is not None:
        raise InputError(f"{path} is damaged ({damage})")
    try:
        return load_file(path / EMA if (path / EMA).exists() else path / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As they are now: training goes on while they are written."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise RunError(f"cannot write {path.name} of a checkpoint ({error}); the one before is whole") from error
    path.chmod(0o644)  # safetensors lets nobody but the owner read what it writes


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
