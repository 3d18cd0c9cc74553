"""Folders of Hugging Face's `transformers`: Marian, M2M100 and NLLB, FSMT. All three classes have fairseq's names.

`config.json`, and weights in `model.safetensors` or `pytorch_model.bin`, whole or in several files with an index.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepnmt.errors import InputError
from deepnmt.files import read_json
from deepnmt.model.conversion.reading import ForeignModel, read_state_dict
from deepnmt.model.embedding import SinusoidalPositions
from deepnmt.model.storage import read_tensors

CONFIG = "config.json"
WEIGHTS = {"model.safetensors": read_tensors, "pytorch_model.bin": read_state_dict}
# Settings of the ancestors of these classes, with the values that the classes stand for.
IMPLIED = {"normalize_embedding": False, "static_position_embeddings": True, "tie_encoder_decoder": False}
OURS, MARIANS = "sinusoidal", "sinusoidal-hf"  # positions
SPECIAL = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}


def read_marian(folder: Path) -> ForeignModel:
    """Post-norm; the decoder starts with the row of <pad>, which the numbering makes our first symbol."""
    config = read_json(folder / CONFIG)
    if config.get("decoder_start_token_id", config.get("pad_token_id")) != config.get("pad_token_id"):
        raise InputError(f"{folder / CONFIG}: decoder_start_token_id is not pad_token_id, which deepnmt expects")
    changes = {"positions": "sinusoidal-hf", "first_position": 0, "start_id": 0}
    return _read(folder, config, "marian", changes | {"norm": "post"})


def read_like_fairseq(model_type: str, norm: str, folder: Path) -> ForeignModel:
    """A class with our positions and our special symbols."""
    config = read_json(folder / CONFIG)
    _check_settings(folder, config, SPECIAL)
    return _read(folder, config, model_type, {"norm": norm})


def read_exported(folder: Path) -> ForeignModel:
    """A model exported by deepnmt as Marian or M2M100; Marian's table shows which positions it uses."""
    config = read_json(folder / CONFIG)
    model_type, start = config.get("model_type"), config.get("decoder_start_token_id")
    _check_settings(folder, config, {**SPECIAL, "decoder_start_token_id": start})
    if model_type == "m2m_100":
        return _read(folder, config, "m2m_100", {"norm": "pre"})
    if model_type != "marian":
        raise InputError(f"{folder} has deepnmt's own model class; use the MODEL that it was exported from")
    changes = {"norm": "post", "start_id": None if start == SPECIAL["eos_token_id"] else start}
    path, state = _weights(folder)
    table = next((state[name] for name in state if ".embed_positions." in name), None)
    if table is None:
        raise InputError(
            f"{path} has no embed_positions; set model._keys_to_ignore_on_save = None before save_pretrained"
        )
    for positions, first in ((OURS, 2), (MARIANS, 0), (OURS, 0)):
        if are_sinusoids(table, positions == OURS, first):
            changes |= {"positions": positions, "first_position": first}
            return _read(folder, config, "marian", changes)
    raise InputError(f"{path}: embed_positions are not sinusoids")


def _read(folder: Path, config: Mapping[str, Any], model_type: str, changes: dict[str, Any]) -> ForeignModel:
    if config.get("model_type") != model_type:
        raise InputError(f"{folder / CONFIG}: model_type is {config.get('model_type')!r}, not {model_type!r}")
    _check_settings(folder, config, IMPLIED)
    settings = {**config, "activation_fn": config.get("activation_function", "relu"), "pad": 1}
    path, state = _weights(folder)
    state = {name.removeprefix("model."): tensor for name, tensor in state.items()}
    reaches_last, first_position = changes.get("positions", OURS) == OURS, changes.get("first_position", 0)
    for name, table in state.items():
        if ".embed_positions." in name and not are_sinusoids(table, reaches_last, first_position):
            raise InputError(f"{path}: {name} are not the sinusoids of its class")
    changes["scale_embeddings"] = bool(config.get("scale_embedding", model_type != "marian"))
    norm, found = changes.pop("norm"), "pre" if "encoder.layer_norm.weight" in state else "post"
    if norm != found:
        raise InputError(f"{path} is {found}-norm, but {model_type} is {norm}-norm")
    return ForeignModel(path, _with_tables(state), settings, changes)


def _check_settings(folder: Path, config: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        if config.get(name, value) not in (value, None):
            raise InputError(f"{folder / CONFIG}: {name} = {config[name]}, but deepnmt supports only {name} = {value}")


def are_sinusoids(table: Tensor, reaches_last: bool, first_position: int) -> bool:
    """Check that stored positions equal the computed ones, except for the padding row."""
    if table.dim() != 2 or table.shape[1] % 2:
        return False
    sinusoids = SinusoidalPositions(table.shape[1], reaches_last)(torch.arange(len(table)) + first_position)
    differs = (table.float() - sinusoids).abs() > 1e-2  # some are in half precision
    return not differs[2:].any()


def _weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    for name, read in WEIGHTS.items():
        if (folder / name).is_file():
            return folder / name, read(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            listed = read_json(index).get("weight_map")
            if not isinstance(listed, dict):
                raise InputError(f"{index} has no weight_map")
            files = sorted({Path(str(file)).name for file in listed.values()})
            return index, {name: tensor for file in files for name, tensor in read(folder / file).items()}
    raise InputError(f"{folder} has no {' or '.join(WEIGHTS)}")


def _with_tables(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Store tied tables under every name, since a file may have only one of them; drop sinusoids."""
    state = {name: tensor for name, tensor in state.items() if ".embed_positions." not in name}
    shared, output, bias = (state.pop(name, None) for name in ("shared.weight", "lm_head.weight", "final_logits_bias"))
    table = shared if shared is not None else output
    tables = {
        "encoder.embed_tokens.weight": table,
        "decoder.embed_tokens.weight": table,
        "decoder.output_projection.weight": output,
        "decoder.output_bias": None if bias is None else bias.flatten(),
    }
    return {name: tensor for name, tensor in tables.items() if tensor is not None} | state
