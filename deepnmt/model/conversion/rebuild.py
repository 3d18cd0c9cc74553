"""Rebuilds a model from a state dict with the names of fairseq."""

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
from deepnmt.model.conversion.reading import ForeignModel, unsupported
from deepnmt.model.storage import fill, weights
from deepnmt.model.transformer import Transformer

Numbering = tuple[list[int], list[int]]
"""For source and target: which of its rows each of our symbols has, or NEW."""
NEW = -1
SILENT = -100.0  # the bias of a symbol that is never predicted: small enough, yet label smoothing hardly notices
OUTPUT = "decoder.output_projection.weight"
START = 0  # the first symbol only starts a sentence
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}


def rebuild(foreign: ForeignModel, numbering: Numbering | None = None) -> Transformer:
    if numbering is not None:
        foreign = replace(foreign, state=_renumbered(foreign, numbering))
    try:
        model = Transformer(_config(foreign))
    except (TypeError, ValueError) as error:
        raise InputError(f"{foreign.path}: {error}") from error
    fill(weights(model), _rename(foreign, model.config), foreign.path)
    return model.eval()


def _renumbered(foreign: ForeignModel, numbering: Numbering) -> dict[str, Tensor]:
    """Reorder the rows of the tables to our numbering. A new symbol gets a row of zeros and is never predicted.

    Neither is the start symbol if it has the row of another symbol.
    """
    state = dict(foreign.state)
    sides = {"encoder.embed_tokens.weight": 0, "decoder.embed_tokens.weight": 1, OUTPUT: 1}
    for name, side in sides.items():
        if name in state:
            state[name] = _rows(foreign, foreign.tensor(name), name, numbering[side])
    target = torch.tensor(numbering[1])
    name = "decoder.output_bias"
    if name in state:
        bias = foreign.tensor(name, rank=1)
    else:
        bias = torch.zeros(len(foreign.tensor("decoder.embed_tokens.weight")))
    bias = _rows(foreign, bias, name, numbering[1]).masked_fill_(target == NEW, SILENT)
    if numbering[1][START] in numbering[1][START + 1 :]:
        bias[START] = SILENT
    return state | {name: bias}


def _rows(foreign: ForeignModel, table: Tensor, name: str, rows: list[int]) -> Tensor:
    if {*rows} - {NEW} != {*range(len(table))}:
        listed = len({*rows} - {NEW})
        raise InputError(f"{foreign.path}: {name} has {len(table):,} rows, but the vocabulary has {listed:,} symbols")
    index = torch.tensor(rows)
    chosen = table[index.clamp(min=0)].float()
    chosen[index == NEW] = 0
    return chosen


def _config(foreign: ForeignModel) -> ModelConfig:
    state = foreign.state
    source, target = (foreign.tensor(f"{side}.embed_tokens.weight") for side in ("encoder", "decoder"))
    shared = source.shape == target.shape and torch.equal(source, target)
    norms = {side: f"{side}.layer_norm.weight" in state for side in ("encoder", "decoder")}
    if norms["encoder"] != norms["decoder"]:
        raise unsupported(foreign.path, "pre-norm in one stack and post-norm in the other")
    activation = str(foreign.settings.get("activation_fn", "relu"))
    if activation not in ACTIVATIONS:
        raise unsupported(foreign.path, f"activation_fn = {activation}")
    pad_id = int(foreign.number("pad", 1))
    settings: dict[str, Any] = {
        "source_vocab_size": source.shape[0],
        "target_vocab_size": target.shape[0],
        "norm": "pre" if norms["encoder"] else "post",
        "encoder": _stack_config(foreign, "encoder"),
        "decoder": _stack_config(foreign, "decoder"),
        "share_embeddings": shared,
        "tie_output": OUTPUT not in state or torch.equal(state[OUTPUT], target),
        "activation": ACTIVATIONS[activation],
        "output_bias": "decoder.output_bias" in state,
        "dropout": foreign.number("dropout", 0.1),
        "attention_dropout": foreign.number("attention_dropout", 0),
        "ffn_dropout": foreign.number("relu_dropout", 0) or foreign.number("activation_dropout", 0),
        "pad_id": pad_id,
    }
    if (table := state.get("encoder.embed_positions.weight")) is not None:
        settings |= {"positions": "learned", "max_positions": len(table) - pad_id - 1}
    return ModelConfig(**settings | foreign.config)


def _stack_config(foreign: ForeignModel, side: str) -> StackConfig:
    depths = {int(match[1]) for name in foreign.state if (match := re.match(rf"{side}\.layers\.(\d+)\.", name))}
    if depths != set(range(len(depths))) or not depths:
        raise InputError(f"{foreign.path} has no layers {side}.layers.0, 1, ... in a row")
    return StackConfig(
        num_layers=len(depths),
        dim=foreign.tensor(f"{side}.embed_tokens.weight").shape[1],
        ffn_dim=foreign.tensor(f"{side}.layers.0.fc2.weight").shape[1],
        num_heads=int(foreign.number(f"{side}_attention_heads")),
        connection=_connection_config(foreign, side),
        norm_eps=foreign.number("norm_eps") if "norm_eps" in foreign.settings else None,
    )


def _connection_config(foreign: ForeignModel, side: str) -> ConnectionConfig:
    if f"{side}.history.weight" not in foreign.state:
        return ResidualConfig()
    settings = foreign.settings
    softmax = bool(settings.get("normalize_learned_weight", False))
    window = int(foreign.number("history_window_size", -1))
    return DlclConfig(
        learned=bool(settings.get(f"{side}_learnable", True)),
        start="one" if settings.get("init_value") == "one" else "average",
        norm_embedding=f"{side}.history.layer_norms.0.weight" in foreign.state,
        softmax=softmax,
        groups=foreign.tensor(f"{side}.history.weight", rank=3).shape[2],
        # Without softmax their window is only where the weights start: what was learned outside of it counts.
        window=window if softmax and window > 0 else None,
        dropout=foreign.number("history_dropout", 0),
    )


_LAYER = r"((?:encoder|decoder)\.layers\.\d+)"
# Their names and ours, up to the last word. We pack queries, keys and values.
_NAMES = {
    r"(encoder|decoder)\.layer_norm\.": r"\1.final_norm.",
    r"encoder\.embed_(tokens|positions)\.(?=weight)": r"source_embedding.\1.",
    r"decoder\.embed_(tokens|positions)\.(?=weight)": r"target_embedding.\1.",
    r"decoder\.output_projection\.(?=weight)": r"output.",
    r"decoder\.output_(?=bias)": r"output_",
    r"(encoder|decoder)\.history\.(?=weight)": r"\1.connection.",
    r"(encoder|decoder)\.history\.layer_norms\.(\d+)\.": r"\1.connection.norms.\2.",
    rf"{_LAYER}\.self_attn\.[qkv]_proj\.": r"\1.attention.input.",
    rf"{_LAYER}\.self_attn\.out_proj\.": r"\1.attention.output.",
    rf"{_LAYER}\.self_attn\.relative_": r"\1.attention.relative.",
    rf"{_LAYER}\.encoder_attn\.q_proj\.": r"\1.cross_attention.query.",
    rf"{_LAYER}\.encoder_attn\.[kv]_proj\.": r"\1.cross_attention.key_value.",
    rf"{_LAYER}\.encoder_attn\.out_proj\.": r"\1.cross_attention.output.",
    rf"{_LAYER}\.fc1\.": r"\1.feed_forward.expand.",
    rf"{_LAYER}\.fc2\.": r"\1.feed_forward.contract.",
    rf"{_LAYER}\.self_attn_layer_norm\.": r"\1.around_attention.norm.",
    rf"{_LAYER}\.encoder_attn_layer_norm\.": r"\1.around_cross_attention.norm.",
    rf"{_LAYER}\.final_layer_norm\.": r"\1.around_feed_forward.norm.",
}
_NO_PARAMETER = re.compile(r"(encoder|decoder)\.(version|embed_positions\.(_float_tensor|weights))")


def _rename(foreign: ForeignModel, config: ModelConfig) -> dict[str, Tensor]:
    """The tensors by our names."""
    copies = {"decoder.embed_tokens.weight": config.share_embeddings, OUTPUT: config.tie_output}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in foreign.state.items():
        if not _NO_PARAMETER.fullmatch(name) and not copies.get(name):
            part = re.search(r"(?<=_attn\.)[qkv](?=_proj\.)", name)
            parts.setdefault(_our_name(foreign, name), {})[part[0] if part else ""] = tensor
    return {name: _packed(foreign, name, found) for name, found in parts.items()}


def _packed(foreign: ForeignModel, name: str, parts: dict[str, Tensor]) -> Tensor:
    if len(parts) == 1:
        return next(iter(parts.values()))
    if len({part.shape[1:] for part in parts.values()}) > 1 or not all(part.dim() for part in parts.values()):
        raise InputError(f"{foreign.path}: the parts of {name} have different shapes")
    return torch.cat([parts[part] for part in "qkv" if part in parts])


def _our_name(foreign: ForeignModel, name: str) -> str:
    for theirs, ours in _NAMES.items():
        renamed, count = re.subn(rf"^{theirs}(?=(?:weight|bias|keys|values)$)", ours, name)
        if count:
            return renamed
    raise unsupported(foreign.path, f"the parameter {name}")
