"""Checkpoints of a run: complete or absent, verified before use, and only as many as the recipe keeps.

RUN/checkpoints/step-00001000 and epoch-00003 are MODEL folders (config.json, model.safetensors, adapter.safetensors if
there are adapters, meta.json) that also hold what resuming needs: optimizer.safetensors, ema.safetensors, state.json,
and manifest.json with the checksum of every file. A sharded model writes the same files. A folder is renamed from a
temporary name once complete.
Training waits only until its tensors are copied; a thread writes them and removes old checkpoints.
"""

import math
import re
import shutil
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

from torch import Tensor

from deepnmt.config import Recipe
from deepnmt.errors import InputError
from deepnmt.files import read_json, replacing, sha256, write_json
from deepnmt.model.adapters import MARK
from deepnmt.model.config import ModelConfig
from deepnmt.model.storage import ADAPTER, EMA, WEIGHTS, fill, read_tensors, weights, write_model, write_tensors
from deepnmt.progress import say
from deepnmt.settings import to_table
from deepnmt.training.distributed import World
from deepnmt.training.folder import copy_tokenizers
from deepnmt.training.optimizer import optimizer_tensors, whole
from deepnmt.training.state import TrainingState

OPTIMIZER = "optimizer.safetensors"
STATE, MANIFEST = "state.json", "manifest.json"


class Checkpoints:
    """The checkpoints of one run, whose folder has the tokenisers."""

    def __init__(self, folder: Path, world: World, recipe: Recipe) -> None:
        self.folder, self.world, self.recipe = folder, world, recipe
        self._thread = ThreadPoolExecutor(max_workers=1)  # a process that ends lets it finish, unless it is killed
        self._writing: Future[None] | None = None

    def save(self, state: TrainingState, epoch: int | None = None) -> None:
        """Every rank calls this, and the main one writes. `wait` waits for the files."""
        self.wait()
        path = self.folder / (f"step-{state.step:08d}" if epoch is None else f"epoch-{epoch:05d}")
        tensors = {WEIGHTS: weights(state.model), OPTIMIZER: optimizer_tensors(state.model, state.optimizer)}
        if adapters := {name: tensors[WEIGHTS].pop(name) for name in list(tensors[WEIGHTS]) if MARK in name}:
            tensors[ADAPTER] = adapters
        if state.ema:
            tensors[EMA] = state.ema.shadow
        copies = {name: self._copy(group) for name, group in tensors.items()}
        if self.world.is_main:
            stored = deepcopy({"run": state.stored(), "data": state.data})
            self._writing = self._thread.submit(self._write, path, state.model.config, copies, stored)

    def _copy(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The main rank's copy of tensors as they are now, in one piece: training continues while they are written."""
        pieces = ((name, whole(tensor.detach())) for name, tensor in tensors.items())
        return {name: piece.to("cpu", copy=True).contiguous() for name, piece in pieces if self.world.is_main}

    def _write(
        self, path: Path, config: ModelConfig, tensors: dict[str, dict[str, Tensor]], stored: dict[str, Any]
    ) -> None:
        with replacing(path) as aside:
            meta = {"step": stored["run"]["step"], "decoding": to_table(self.recipe.decoding)}
            write_model(aside, config, tensors.pop(WEIGHTS), meta)
            copy_tokenizers(self.folder.parent, aside)
            for name, group in tensors.items():
                write_tensors(aside / name, group)
            write_json(aside / STATE, stored)
            files = sorted(file for file in aside.rglob("*") if file.is_file())
            write_json(aside / MANIFEST, {"sha256": {str(file.relative_to(aside)): sha256(file) for file in files}})
        self._retain()

    def wait(self) -> None:
        """Wait until the last checkpoint is written; raise the error if that failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def finish(self) -> None:
        """Wait for the files, and remove surplus checkpoints that a kill left behind."""
        self.wait()
        if self.world.is_main and self.all():
            self._retain()
        self.world.agree(None)

    def newest(self) -> Path | None:
        """The newest checkpoint that is intact; a damaged one is skipped with a warning."""
        self.wait()
        return self.world.agree(self._newest() if self.world.is_main else None)

    def _newest(self) -> Path | None:
        paths = sorted(self.all(), key=age, reverse=True)
        for path in paths:
            if (damage := find_damage(path)) is None:
                return path
            say(f"{path} is damaged ({damage}); using the checkpoint before it")
        if paths:
            raise InputError(f"every checkpoint in {self.folder} is damaged; start a new run in another folder")
        return None

    def load(self, path: Path, state: TrainingState) -> None:
        """Restore a checkpoint, written by any number of ranks, sharded or not."""
        adapters = read_tensors(path / ADAPTER) if (path / ADAPTER).exists() else {}
        fill(weights(state.model), read_tensors(path / WEIGHTS) | adapters, path / WEIGHTS)
        if state.ema:
            averages = read_tensors(path / EMA)
            fill(state.ema.shadow, {name: averages[name] for name in averages.keys() & state.ema.shadow}, path / EMA)
        fill(optimizer_tensors(state.model, state.optimizer), read_tensors(path / OPTIMIZER), path / OPTIMIZER)
        stored = read_json(path / STATE)
        state.restore(stored["run"], stored["data"])

    def all(self) -> list[Path]:
        return list_checkpoints(self.folder)

    def _retain(self) -> None:
        steps, epochs = (list_checkpoints(self.folder, kind) for kind in ("step", "epoch"))
        config, newest = self.recipe.training, max((*steps, *epochs), key=age)
        best = best_first(steps)[: config.keep_best]
        kept = {newest, *steps[-config.keep_last :], *best, *epochs[max(0, len(epochs) - config.keep_epochs) :]}
        for path in {*steps, *epochs} - kept:
            doomed = path.with_name(f".{path.name}.doomed")
            path.rename(doomed)
            shutil.rmtree(doomed)
        run = self.folder.parent
        write_json(run / "last.json", {"checkpoint": str(newest.relative_to(run))})
        if best:
            score = read_state(best[0])["score"]
            write_json(run / "best.json", {"checkpoint": str(best[0].relative_to(run)), "score": score})
        else:
            (run / "best.json").unlink(missing_ok=True)


def list_checkpoints(folder: Path, kind: str = "step|epoch") -> list[Path]:
    """The complete ones, ordered by name."""
    return sorted(path for path in folder.glob("*") if re.fullmatch(rf"({kind})-\d+", path.name))


def step_of(path: Path) -> int:
    return int(read_state(path).get("step", -1))


def age(path: Path) -> tuple[float, str]:
    """Larger is newer. A checkpoint that cannot be read counts as the newest, so that it is not skipped silently."""
    kind, _, number = path.name.partition("-")
    return int(number) if kind == "step" else read_state(path).get("step", math.inf), path.name


def best_first(paths: Iterable[Path]) -> list[Path]:
    """The checkpoints whose scores can be compared with the newest one's, best first; among equals the newest first."""
    states = {path: read_state(path) for path in sorted(paths, key=age)}
    scored = {path: state for path, state in states.items() if state.get("score") is not None}
    measure = [state["measure"] for state in scored.values()][-1:]
    comparable = [path for path, state in scored.items() if state["measure"] in measure]
    return sorted(comparable, key=lambda path: (scored[path]["score"], *age(path)), reverse=True)


def read_state(path: Path) -> dict[str, Any]:
    """The run's part of state.json; empty if it cannot be read, which `find_damage` explains."""
    try:
        state: dict[str, Any] = read_json(path / STATE)["run"]
    except (InputError, KeyError):
        return {}
    return state


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        for name, checksum in read_json(path / MANIFEST)["sha256"].items():
            if sha256(path / name) != checksum:
                return f"the checksum of {name} differs"
    except (OSError, InputError, KeyError, TypeError, AttributeError):
        return "it is not complete"
    return None
