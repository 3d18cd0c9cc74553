"""Checkpoints of the authors' code, a fork of fairseq, and .npz files of its parameters."""

import re
from pathlib import Path

from torch import Tensor

from deepnmt.model.conversion.fairseq import with_names_of_today
from deepnmt.model.conversion.reading import ForeignModel, read_npz, read_torch


def read(path: Path) -> ForeignModel:
    """The model of a checkpoint of the authors' trainer, or of an .npz of its parameters."""
    foreign = read_npz(path) if path.suffix == ".npz" else read_torch(path)
    return ForeignModel(path, with_names_of_today(_renumber_norms(foreign.state)), foreign.settings)


def _renumber_norms(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """An early version of their code kept the weights as a matrix, and counted the norms of y_1, y_2, ... from zero."""
    for side in ("encoder", "decoder"):
        weight = state.get(f"{side}.history.weight")
        if weight is not None and weight.dim() == 2:
            norms = [name for name in state if name.startswith(f"{side}.history.layer_norms.")]
            moved = {re.sub(r"\d+", lambda index: str(int(index[0]) + 1), name): state.pop(name) for name in norms}
            state |= moved | {f"{side}.history.weight": weight.unsqueeze(2)}
    return state
