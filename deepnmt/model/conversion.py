"""Checkpoints of the authors' code (their fairseq fork) into our names and config, executing nothing of them."""

import argparse
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepnmt.errors import InputError
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import ConnectionConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.connections.residual import ResidualConfig
from deepnmt.model.storage import load_weights
from deepnmt.model.transformer import Transformer


@dataclass(frozen=True)
class ForeignModel:
    """A state dict under the authors' names, and the settings that shapes do not tell."""

    path: Path
    state: dict[str, Tensor]
    settings: Mapping[str, Any]

    def setting(self, name: str, default: Any = None) -> Any:
        value = self.settings.get(name, default)
        if value is None:
            raise InputError(f"{self.path} does not say its {name}, so the model cannot be rebuilt")
        return value


def convert_dlcl(path: Path) -> Transformer:
    """The model of a checkpoint of the authors' trainer, or of an .npz of its parameters."""
    foreign = _read_npz(path) if path.suffix == ".npz" else _read_checkpoint(path)
    model = Transformer(_config(foreign))
    load_weights(model, _rename(foreign, model.config), path)
    return model.eval()


def _read_npz(path: Path) -> ForeignModel:
    try:
        with np.load(path, allow_pickle=False) as stored:
            meta = json.loads(str(stored["meta"]))
            state = {
                name.removeprefix("param/"): torch.from_numpy(stored[name])
                for name in stored.files
                if name.startswith("param/")
            }
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise InputError(f"{path} is not an .npz of model parameters: {error}") from error
    heads = meta.get("heads")
    settings = {"encoder_attention_heads": heads, "decoder_attention_heads": heads, "pad": meta.get("pad")}
    return ForeignModel(path, state, settings)


def _read_checkpoint(path: Path) -> ForeignModel:
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            stored = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path} is not a torch file that is safe to load: {reason}") from error
    if not isinstance(stored, dict) or "args" not in stored or "model" not in stored:
        raise InputError(f"{path} is not a checkpoint of the authors' trainer: it needs the keys args and model")
    return ForeignModel(path, _renumber_norms(dict(stored["model"])), vars(stored["args"]))


def _renumber_norms(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """An early version of their code kept the weights as a matrix, and counted the norms of y_1, y_2, ... from zero."""
    for side in ("encoder", "decoder"):
        weight = state.get(f"{side}.history.weight")
        if weight is not None and weight.dim() == 2:
            norms = [name for name in state if name.startswith(f"{side}.history.layer_norms.")]
            moved = {re.sub(r"\d+", lambda index: str(int(index[0]) + 1), name): state.pop(name) for name in norms}
            state |= moved | {f"{side}.history.weight": weight.unsqueeze(2)}
    return state


def _config(foreign: ForeignModel) -> ModelConfig:
    state = foreign.state
    source, target = (_tensor(foreign, f"{side}.embed_tokens.weight") for side in ("encoder", "decoder"))
    shared = source.shape == target.shape and torch.equal(source, target)
    norms = {side: f"{side}.layer_norm.weight" in state for side in ("encoder", "decoder")}
    if norms["encoder"] != norms["decoder"]:
        raise InputError(f"{foreign.path} has pre-norm in one stack and post-norm in the other: no such model here")
    learned_positions = "encoder.embed_positions.weight" in state
    pad_id = int(foreign.settings.get("pad", 1))
    return ModelConfig(
        source_vocab_size=source.shape[0],
        target_vocab_size=target.shape[0],
        norm="pre" if norms["encoder"] else "post",
        encoder=_stack_config(foreign, "encoder"),
        decoder=_stack_config(foreign, "decoder"),
        share_embeddings=shared,
        tie_output="decoder.embed_out" not in state,
        positions="learned" if learned_positions else "sinusoidal",
        max_positions=len(state["encoder.embed_positions.weight"]) - pad_id - 1 if learned_positions else 1024,
        dropout=float(foreign.settings.get("dropout", 0.1)),
        attention_dropout=float(foreign.settings.get("attention_dropout", 0.0)),
        ffn_dropout=float(foreign.settings.get("relu_dropout", 0.0)),
        pad_id=pad_id,
    )


def _stack_config(foreign: ForeignModel, side: str) -> StackConfig:
    depths = {int(match[1]) for name in foreign.state if (match := re.match(rf"{side}\.layers\.(\d+)\.", name))}
    if depths != set(range(len(depths))) or not depths:
        raise InputError(f"{foreign.path} has no layers {side}.layers.0, 1, ... in a row")
    return StackConfig(
        num_layers=len(depths),
        dim=_tensor(foreign, f"{side}.embed_tokens.weight").shape[1],
        ffn_dim=_tensor(foreign, f"{side}.layers.0.fc1.weight").shape[0],
        num_heads=int(foreign.setting(f"{side}_attention_heads")),
        connection=_connection_config(foreign, side),
    )


def _connection_config(foreign: ForeignModel, side: str) -> ConnectionConfig:
    weight = foreign.state.get(f"{side}.history.weight")
    if weight is None:
        return ResidualConfig()
    settings = foreign.settings
    softmax = bool(settings.get("normalize_learned_weight", False))
    window = int(settings.get("history_window_size", -1))
    return DlclConfig(
        learned=bool(settings.get(f"{side}_learnable", True)),
        start="one" if settings.get("init_value") == "one" else "average",
        norm_embedding=f"{side}.history.layer_norms.0.weight" in foreign.state,
        softmax=softmax,
        groups=weight.shape[2],
        # Without softmax their window is only where the weights start: what was learned outside of it counts.
        window=window if softmax and window > 0 else None,
        dropout=float(settings.get("history_dropout", 0.0)),
    )


_LAYER = {
    "self_attn.in_proj_": "attention.input.",
    "self_attn.out_proj.": "attention.output.",
    "encoder_attn.out_proj.": "cross_attention.output.",
    "fc1.": "feed_forward.expand.",
    "fc2.": "feed_forward.contract.",
}
_NORMS = {
    "encoder": ("around_attention", "around_feed_forward"),
    "decoder": ("around_attention", "around_cross_attention", "around_feed_forward"),
}
_EMBEDDING = {"encoder": "source_embedding", "decoder": "target_embedding"}
_NO_PARAMETER = re.compile(r"(encoder|decoder)\.(version|embed_positions\.(_float_tensor|weights))")


def _rename(foreign: ForeignModel, config: ModelConfig) -> dict[str, Tensor]:
    ours: dict[str, Tensor] = {}
    for name, tensor in foreign.state.items():
        if _NO_PARAMETER.fullmatch(name):
            continue
        if name == "decoder.embed_tokens.weight" and config.share_embeddings:
            continue
        renamed = _rename_one(name, tensor)
        if renamed is None:
            raise InputError(f"{foreign.path} holds {name}, which deepnmt does not understand")
        ours.update(renamed)
    return ours


def _rename_one(name: str, tensor: Tensor) -> dict[str, Tensor] | None:
    """Our name and value for one of theirs; the packed projection of cross attention becomes two."""
    if name == "decoder.embed_out":
        return {"output.weight": tensor}
    side, _, rest = name.partition(".")
    if side not in _EMBEDDING:
        return None
    if rest in ("layer_norm.weight", "layer_norm.bias"):
        return {f"{side}.final_norm.{rest.rpartition('.')[2]}": tensor}
    if rest in ("embed_tokens.weight", "embed_positions.weight"):
        return {f"{_EMBEDDING[side]}.{rest.removeprefix('embed_')}": tensor}
    if rest == "history.weight":
        return {f"{side}.connection.weight": tensor}
    if match := re.fullmatch(r"history\.layer_norms\.(\d+)\.(weight|bias)", rest):
        return {f"{side}.connection.norms.{match[1]}.{match[2]}": tensor}
    if match := re.fullmatch(r"layers\.(\d+)\.(.+)", rest):
        return _rename_in_layer(side, f"{side}.layers.{match[1]}", match[2], tensor)
    return None


def _rename_in_layer(side: str, layer: str, rest: str, tensor: Tensor) -> dict[str, Tensor] | None:
    kind = rest.rpartition(".")[2].rpartition("_")[2]  # weight or bias
    if rest.startswith("encoder_attn.in_proj_"):
        dim = len(tensor) // 3
        query, key_value = tensor[:dim], tensor[dim:]
        return {
            f"{layer}.cross_attention.query.{kind}": query,
            f"{layer}.cross_attention.key_value.{kind}": key_value,
        }
    if match := re.fullmatch(r"layer_norms\.(\d)\.(weight|bias)", rest):
        names = _NORMS[side]
        return {f"{layer}.{names[int(match[1])]}.norm.{match[2]}": tensor} if int(match[1]) < len(names) else None
    for theirs, mine in _LAYER.items():
        if rest.startswith(theirs) and kind in ("weight", "bias"):
            return {f"{layer}.{mine}{kind}": tensor}
    return None


def _tensor(foreign: ForeignModel, name: str) -> Tensor:
    if name not in foreign.state:
        raise InputError(f"{foreign.path} lacks {name}")
    return foreign.state[name]
