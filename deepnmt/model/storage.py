"""A MODEL folder: the config, the weights and where they come from. The tokeniser files beside them are `data`'s."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

from deepnmt import __version__
from deepnmt.errors import InputError
from deepnmt.files import write_json
from deepnmt.model.config import ModelConfig
from deepnmt.model.transformer import Transformer
from deepnmt.settings import from_table, to_table

FORMAT = 1
CONFIG, WEIGHTS, META = "config.json", "model.safetensors", "meta.json"


def save_model(folder: Path, model: Transformer, meta: dict[str, Any] | None = None) -> None:
    """Write a model into an existing or new folder. The caller writes aside and renames (`files.replacing`)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, to_table(model.config))
    save_file({name: weight.detach().cpu().contiguous() for name, weight in weights(model).items()}, folder / WEIGHTS)
    # safetensors lets nobody but the owner read what it writes; a model may be served by another user.
    (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)
    write_json(folder / META, {"format": FORMAT, "deepnmt": __version__, **(meta or {})})


def load_model(folder: str | Path, device: str | torch.device = "cpu") -> Transformer:
    """The model of a MODEL folder, in eval mode."""
    folder = Path(folder)
    load_meta(folder)
    config = load_config(folder)
    with _WithoutDrawing():
        model = Transformer(config)
    take_weights(model, folder)
    return model.to(device).eval()


def take_weights(model: Transformer, folder: Path) -> None:
    """Set every parameter from a MODEL folder."""
    try:
        stored = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder / WEIGHTS} cannot be read: {error}") from error
    load_weights(model, stored, folder / WEIGHTS)


class _WithoutDrawing(TorchFunctionMode):
    """Random numbers that the stored weights would overwrite: most of the time to load a model, if they were drawn."""

    DRAWING = (init.kaiming_uniform_, init.normal_, init.uniform_, Tensor.normal_, Tensor.uniform_)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
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
            f"{folder / META} has format {meta.get('format')!r}, and this deepnmt reads {FORMAT}: "
            "update deepnmt, or convert the model with the version that wrote it"
        )
    return meta


def weights(model: Transformer) -> dict[str, torch.Tensor]:
    """Every parameter once, however many names it has."""
    return dict(model.named_parameters())


def load_weights(model: Transformer, stored: dict[str, torch.Tensor], where: Path) -> None:
    """Set every parameter from `stored`, which must have just these names and shapes."""
    expected = weights(model)
    for name in sorted(expected.keys() ^ stored.keys()):
        raise InputError(f"{where} {'lacks' if name in expected else 'has an unknown'} tensor {name}")
    with torch.no_grad():
        for name, parameter in expected.items():
            if parameter.shape != stored[name].shape:
                raise InputError(
                    f"{where}: {name} has shape {tuple(stored[name].shape)}, the config says {tuple(parameter.shape)}"
                )
            parameter.copy_(stored[name])


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        inside = path.parent / "model"
        hint = f" (a RUN; its model is {inside})" if (inside / path.name).is_file() else ""
        raise InputError(f"{path.parent} is not a MODEL folder: it has no {path.name}{hint}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged: not a JSON object")
    return content
