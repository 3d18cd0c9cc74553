"""Rebuilds a model from a state dict with the names of the authors' code, a fork of fairseq."""

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deepnmt.errors import InputError
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import ConnectionConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.connections.residual import ResidualConfig
from deepnmt.model.conversion.reading import ForeignModel
from deepnmt.model.storage import fill, weights
from deepnmt.model.transformer import Transformer

Numbering = tuple[list[int], list[int]]
"""For source and target: which of its rows each of our symbols has, or NEW."""
NEW = -1
SILENT = -100.0  # the bias of a symbol that is never predicted: small enough, yet label smoothing hardly notices
START = 0  # the first symbol only starts a sentence
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}


def rebuild(foreign: ForeignModel, numbering: Numbering | None = None) -> Transformer:
    if numbering is not None:
        foreign = replace(foreign, state=_renumbered(foreign, numbering))
    try:
        model = Transformer(_config(foreign))
    except ValueError as error:
        raise InputError(f"{foreign.path}: {error}") from error
    fill(weights(model), _rename(foreign, model.config), foreign.path)
    return model.eval()


def _renumbered(foreign: ForeignModel, numbering: Numbering) -> dict[str, Tensor]:
    """Reorder the rows of the tables to our numbering. A new symbol gets a row of zeros and is never predicted."""
    state = dict(foreign.state)
    sides = {"encoder.embed_tokens.weight": 0, "decoder.embed_tokens.weight": 1, "decoder.embed_out": 1}
    for name, side in sides.items():
        if name in state:
            state[name] = _rows(foreign, name, numbering[side])
    target = torch.tensor(numbering[1])
    if "decoder.output_bias" not in state:
        state["decoder.output_bias"] = torch.zeros(len(foreign.tensor("decoder.embed_tokens.weight")))
        foreign = replace(foreign, state=state)
    bias = _rows(foreign, "decoder.output_bias", numbering[1]).masked_fill_(target == NEW, SILENT)
    bias[START] = SILENT
    return state | {"decoder.output_bias": bias}


def _rows(foreign: ForeignModel, name: str, rows: list[int]) -> Tensor:
    table = foreign.tensor(name).float()
    if {*rows} - {NEW} != {*range(len(table))}:
        listed = len({*rows} - {NEW})
        raise InputError(f"{foreign.path}: {name} has {len(table):,} rows, but the vocabulary has {listed:,} symbols")
    index = torch.tensor(rows)
    chosen = table[index.clamp(min=0)]
    chosen[index == NEW] = 0
    return chosen


def _config(foreign: ForeignModel) -> ModelConfig:
    state = foreign.state
    source, target = (foreign.tensor(f"{side}.embed_tokens.weight") for side in ("encoder", "decoder"))
    shared = source.shape == target.shape and torch.equal(source, target)
    norms = {side: f"{side}.layer_norm.weight" in state for side in ("encoder", "decoder")}
    if norms["encoder"] != norms["decoder"]:
        raise InputError(
            f"{foreign.path} has pre-norm in one stack and post-norm in the other, which deepnmt does not support"
        )
    learned_positions = "encoder.embed_positions.weight" in state
    pad_id = int(foreign.settings.get("pad", 1))
    told = foreign.settings
    settings: dict[str, Any] = {
        "source_vocab_size": source.shape[0],
        "target_vocab_size": target.shape[0],
        "norm": "pre" if norms["encoder"] else "post",
        "encoder": _stack_config(foreign, "encoder"),
        "decoder": _stack_config(foreign, "decoder"),
        "share_embeddings": shared,
        "tie_output": "decoder.embed_out" not in state,
        "positions": "learned" if learned_positions else "sinusoidal",
        "max_positions": len(state["encoder.embed_positions.weight"]) - pad_id - 1
        if learned_positions
        else ModelConfig.max_positions,
        "activation": _activation(foreign),
        "output_bias": "decoder.output_bias" in state,
        "dropout": float(told.get("dropout", 0.1)),
        "attention_dropout": float(told.get("attention_dropout", 0.0)),
        "ffn_dropout": float(
            foreign.settings.get("relu_dropout", 0.0) or foreign.settings.get("activation_dropout", 0.0)
        ),
        "pad_id": pad_id,
    }
    return ModelConfig(**settings | foreign.config)


def _activation(foreign: ForeignModel) -> Any:
    name = foreign.settings.get("activation_fn", "relu")
    if name not in ACTIVATIONS:
        raise InputError(f"{foreign.path} uses activation_fn = {name}, which deepnmt does not support")
    return ACTIVATIONS[name]


def _stack_config(foreign: ForeignModel, side: str) -> StackConfig:
    depths = {int(match[1]) for name in foreign.state if (match := re.match(rf"{side}\.layers\.(\d+)\.", name))}
    if depths != set(range(len(depths))) or not depths:
        raise InputError(f"{foreign.path} has no layers {side}.layers.0, 1, ... in a row")
    return StackConfig(
        num_layers=len(depths),
        dim=foreign.tensor(f"{side}.embed_tokens.weight").shape[1],
        ffn_dim=foreign.tensor(f"{side}.layers.0.fc1.weight").shape[0],
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
    "encoder_attn.query_": "cross_attention.query.",
    "encoder_attn.key_value_": "cross_attention.key_value.",
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
            raise InputError(f"{foreign.path} has the parameter {name}, which deepnmt does not support")
        ours.update(renamed)
    return ours


def _rename_one(name: str, tensor: Tensor) -> dict[str, Tensor] | None:
    """Our name and value for one of theirs; the packed projection of cross attention becomes two."""
    if name == "decoder.embed_out":
        return {"output.weight": tensor}
    if name == "decoder.output_bias":
        return {"output_bias": tensor}
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
