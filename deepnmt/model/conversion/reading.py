"""Reads the files of other toolkits without executing pickled code."""

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepnmt.errors import InputError


@dataclass(frozen=True)
class ForeignModel:
    """A state dict, the settings that its shapes do not show, and our settings implied by the format.

    `rebuild` takes a state dict with fairseq's names. `vocabularies` are those of the source and the target, if the
    checkpoint has them: a symbol per row, the special ones with our names. `source_ends`: the encoder has seen an end
    symbol.
    """

    path: Path
    state: dict[str, Tensor]
    settings: Mapping[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    vocabularies: tuple[list[str], list[str]] | None = None
    source_ends: bool = True

    def tensor(self, name: str, rank: int = 2) -> Tensor:
        if name not in self.state:
            raise InputError(f"{self.path} lacks {name}")
        if self.state[name].dim() != rank:
            raise InputError(f"{self.path}: {name} has {self.state[name].dim()} dimensions instead of {rank}")
        return self.state[name]

    def number(self, name: str, default: float | None = None) -> float:
        """A setting; None in the file means the default."""
        value = self.settings.get(name)
        value = default if value is None else value
        if value is None:
            raise InputError(f"{self.path} has no setting {name}, which is needed to rebuild the model")
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.path}: {name} = {value!r} is not a number") from error


def unsupported(path: Path, what: str) -> InputError:
    return InputError(f"{path} uses {what}, which deepnmt does not support")


def check_settings(path: Path, settings: Mapping[str, Any], known: Mapping[str, Sequence[Any]]) -> None:
    """Refuse settings with other values than the `known` ones; None in the file means the default."""
    for name, values in known.items():
        if (value := settings.get(name)) is not None and value not in values:
            raise unsupported(path, f"{name} = {value}")


def read_npz(path: Path) -> ForeignModel:
    """Arrays `param/NAME` and a JSON string `meta`."""
    arrays = read_arrays(path)
    try:
        meta = json.loads(str(arrays["meta"]))
    except (ValueError, KeyError) as error:
        raise InputError(f"{path} is not an .npz of model parameters: {error}") from error
    prefix = "param/"
    state = {n.removeprefix(prefix): torch.from_numpy(array) for n, array in arrays.items() if n.startswith(prefix)}
    if not isinstance(meta, dict):
        raise InputError(f"{path} is not an .npz of model parameters: its meta is not a table")
    settings = {"encoder_attention_heads": meta.get("heads"), "decoder_attention_heads": meta.get("heads")}
    return ForeignModel(path, state, settings | ({"pad": meta["pad"]} if "pad" in meta else {}))


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz by name; pickled ones are refused."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except Exception as error:  # of zip, zlib or numpy, which do not say what damaged files raise
        raise InputError(f"{path} is not an .npz of model parameters: {error}") from error


class Placeholder:
    """Stands for an object of another toolkit in a pickle. It has the object's attributes and does nothing."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__ |= state


# Training statistics that fairseq pickles with the weights.
_METERS = [
    f"{module}.{name}"
    for module in ("fairseq.meters", "fairseq.logging.meters")
    for name in ("AverageMeter", "TimeMeter", "StopwatchMeter")
]


def read_torch(path: Path) -> ForeignModel:
    """A checkpoint of fairseq or of a fork of it: `model`, a state dict, and its settings in `args`, a Namespace.

    Since fairseq 0.10 the settings are under `cfg` and `model`, as a Namespace or a table.
    """
    stored = read_checkpoint(path, _METERS)
    state, settings = stored.get("model"), _settings(stored)
    if settings is None or not isinstance(state, dict):
        raise InputError(f"{path} is not a fairseq checkpoint: it needs model, and args or cfg")
    return ForeignModel(path, tensors_of(path, state), settings)


def read_checkpoint(path: Path, replaced: Iterable[str]) -> dict[str, Any]:
    """The entries of a checkpoint. Objects of the classes `replaced` become placeholders.

    torch rebuilds tensors, plain containers, Namespaces and placeholders, and refuses any other name in the pickle.
    """
    stored = _load(path, [argparse.Namespace, *((Placeholder, name) for name in replaced)])
    return stored if isinstance(stored, dict) else {}


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """A torch file of tensors by name."""
    stored = _load(path, [])
    if not isinstance(stored, dict):
        raise InputError(f"{path} is not a state dict")
    return tensors_of(path, stored)


def _load(path: Path, classes: list[Any]) -> Any:
    try:
        with torch.serialization.safe_globals(classes):
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder; name the checkpoint in it") from error
    except Exception as error:  # a damaged pickle may raise anything
        raise InputError(f"{path} cannot be loaded safely: {_reason(error)}") from error


def tensors_of(path: Path, state: Mapping[str, Any]) -> dict[str, Tensor]:
    for name, tensor in state.items():
        dense = isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_meta
        if not (isinstance(name, str) and dense):
            raise InputError(f"{path}: {name} of its model is not a tensor")
    return dict(state)


def _settings(stored: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found = stored.get("args")
    if found is None and isinstance(stored.get("cfg"), dict):
        found = stored["cfg"].get("model")
    if isinstance(found, argparse.Namespace):
        return vars(found)
    return found if isinstance(found, dict) else None


def _reason(error: Exception) -> str:
    """A short form of torch's message, without its advice to load the file unsafely."""
    text = str(error).strip()
    if forbidden := re.search(r"GLOBAL ([\w.]+)", text):
        return f"its pickle asks for {forbidden[1]}, which is not data"
    if detail := re.search(r"WeightsUnpickler error: *(.+)", text):
        text = detail[1]
    text = re.sub(r"^\[enforce fail at .*?\] \. ", "", text)
    return text.splitlines()[0][:200] if text else type(error).__name__
