"""A MODEL folder: the config, the weights and their description. `data` writes the tokeniser files."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

from deepnmt import __version__
from deepnmt.errors import InputError, RunError
from deepnmt.files import read_json, write_json
from deepnmt.model.adapters import merge_all
from deepnmt.model.config import ModelConfig
from deepnmt.model.transformer import Transformer
from deepnmt.settings import from_table, to_table

FORMAT = 1
CONFIG, WEIGHTS, META = "config.json", "model.safetensors", "meta.json"
EMA = "ema.safetensors"  # in a checkpoint: the moving average of the weights that are trained
ADAPTER = "adapter.safetensors"  # low-rank adapters that are not merged into the weights


def save_model(folder: Path, model: Transformer, meta: dict[str, Any] | None = None) -> None:
    """Write a model into an existing or new folder; the caller makes the write atomic (`files.replacing`)."""
    write_model(folder, model.config, weights(model), meta)


def write_model(
    folder: Path, config: ModelConfig, tensors: Mapping[str, Tensor], meta: dict[str, Any] | None = None
) -> None:
    """Write the config, the weights and the description of a MODEL folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, to_table(config))
    write_tensors(folder / WEIGHTS, tensors)
    write_json(folder / META, {"format": FORMAT, "deepnmt": __version__, **(meta or {})})


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        reason = re.search(r"([^:]+) \(os error \d+\)$", str(error))
        raise RunError(f"cannot write {path}: {reason[1].strip() if reason else error}") from error
    path.chmod(0o644)  # safetensors lets nobody but the owner read the file; a model may be served by another user


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights to translate with: with adapters merged, and in a checkpoint, the moving average if there is one."""
    tensors = read_tensors(folder / WEIGHTS)
    for name in (ADAPTER, EMA):
        if (folder / name).exists():
            tensors |= read_tensors(folder / name)
    return merge_all(tensors, folder / ADAPTER)


def load_model(folder: str | Path, device: str | torch.device = "cpu") -> Transformer:
    """The model of a MODEL folder, in eval mode on `device`."""
    folder = Path(folder)
    load_meta(folder)
    return build_model(folder, read_weights(folder)).to(device)


def build_model(folder: Path, tensors: Mapping[str, Tensor]) -> Transformer:
    """A model with the config of a MODEL folder and these weights, in eval mode."""
    model = undrawn_model(load_config(folder))
    fill(weights(model), tensors, folder / WEIGHTS)
    return model.eval()


def undrawn_model(config: ModelConfig, *, allocate: bool = True) -> Transformer:
    """A model whose weights are still to be filled in; if they are not allocated, large ones have only a shape."""
    with _WithoutDrawing(allocate):
        return Transformer(config)


class _WithoutDrawing(TorchFunctionMode):
    """Skips drawing random weights, which would be overwritten and take most of the loading time."""

    DRAWING = (init.kaiming_uniform_, init.normal_, init.uniform_, Tensor.normal_, Tensor.uniform_)

    def __init__(self, allocate: bool) -> None:
        super().__init__()
        self.allocate = allocate

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.empty and not self.allocate:
            kwargs = {**(kwargs or {}), "device": "meta"}
        return None if func in self.DRAWING else func(*args, **(kwargs or {}))


def load_config(folder: Path) -> ModelConfig:
    table = _read_json(folder / CONFIG)
    try:
        return from_table(ModelConfig, table)
    except InputError as error:
        raise InputError(f"{folder / CONFIG}: {error}") from error


def load_meta(folder: Path) -> dict[str, Any]:
    meta = _read_json(folder / META)
    if meta.get("format") != FORMAT:
        raise InputError(
            f"{folder / META} has format {meta.get('format')!r}, but this version of deepnmt reads {FORMAT}: "
            "update deepnmt, or convert the model with the version that wrote it"
        )
    return meta


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, even if it has several names."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def fill(tensors: Mapping[str, Tensor], stored: Mapping[str, Tensor], where: Path) -> None:
    """Copy stored tensors into these, which must have the same names and shapes; a sharded one takes its part."""
    for name in sorted(tensors.keys() ^ stored.keys()):
        raise InputError(f"{where} {'lacks' if name in tensors else 'has an unknown'} tensor {name}")
    for name, tensor in tensors.items():
        if tensor.shape != stored[name].shape:
            raise InputError(f"{where}: {name} has shape {tuple(stored[name].shape)} instead of {tuple(tensor.shape)}")
        value = stored[name].to(tensor.device)
        if hasattr(tensor, "device_mesh"):  # a DTensor, which takes most of a second to import
            from torch.distributed.tensor import distribute_tensor

            value = distribute_tensor(value, tensor.device_mesh, tensor.placements)  # type: ignore[attr-defined]
        tensor.copy_(value)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        hint = _where_else(path.parent)
        if not path.parent.exists():
            raise InputError(f"the model folder {path.parent} does not exist{hint}")
        raise InputError(f"{path.parent} is not a MODEL folder: it has no {path.name}{hint}")
    return read_json(path)


def _where_else(folder: Path) -> str:
    """Where the model is, if the folder is a RUN, or the model of a RUN that has not finished."""
    if (folder / "model" / META).is_file():
        return f" (a RUN; its model is {folder / 'model'})"
    run = folder.parent if folder.name == "model" else folder
    last = run / "last.json"
    if not last.is_file():
        return ""
    return f" ({run} has not finished training; its last checkpoint is {run / str(read_json(last).get('checkpoint'))})"
