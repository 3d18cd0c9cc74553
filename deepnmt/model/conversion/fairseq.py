"""Checkpoints of fairseq's `transformer` (0.9 and later, as long as they store `args` or `cfg`)."""

import re
from pathlib import Path

import torch
from torch import Tensor

from deepnmt.errors import InputError
from deepnmt.model.conversion.reading import ForeignModel, read_torch

_NORMS = {
    "encoder": {"self_attn_layer_norm": 0, "final_layer_norm": 1},
    "decoder": {"self_attn_layer_norm": 0, "encoder_attn_layer_norm": 1, "final_layer_norm": 2},
}


def read(path: Path) -> ForeignModel:
    foreign = read_torch(path)
    for name in ("no_token_positional_embeddings", "cross_self_attention", "no_cross_attention"):
        if foreign.settings.get(name):
            raise InputError(f"{path} uses {name}, which deepnmt does not support")
    scaled = not foreign.settings.get("no_scale_embedding")
    return ForeignModel(path, to_authors_names(foreign), foreign.settings, {"scale_embeddings": scaled})


def to_authors_names(foreign: ForeignModel) -> dict[str, Tensor]:
    """fairseq later split the packed projections, named the norms and stored the output projection separately."""
    state: dict[str, Tensor] = {}
    for name, tensor in foreign.state.items():
        if match := re.fullmatch(r"(.+_attn)\.([qkv])_proj\.(weight|bias)", name):
            if match[2] == "q":
                rank = 2 if match[3] == "weight" else 1
                parts = [foreign.tensor(name.replace("q_proj", f"{part}_proj"), rank) for part in "qkv"]
                if parts[1].shape != parts[2].shape:
                    raise InputError(f"{foreign.path}: keys and values of {match[1]} have different shapes")
                state |= _packed(match[1], match[3], parts)
        elif match := re.fullmatch(r"(encoder|decoder)\.(layers\.\d+)\.(\w+_layer_norm)\.(weight|bias)", name):
            number = _NORMS[match[1]].get(match[3], match[3])
            state[f"{match[1]}.{match[2]}.layer_norms.{number}.{match[4]}"] = tensor
        elif name == "decoder.output_projection.weight":
            if not torch.equal(tensor, foreign.tensor("decoder.embed_tokens.weight")):
                state["decoder.embed_out"] = tensor
        else:
            state[name] = tensor
    return state


def _packed(attention: str, kind: str, parts: list[Tensor]) -> dict[str, Tensor]:
    """The projections of one attention as one tensor; as two where the source has another width."""
    if len({part.shape for part in parts}) == 1:
        return {f"{attention}.in_proj_{kind}": torch.cat(parts)}
    return {f"{attention}.query_{kind}": parts[0], f"{attention}.key_value_{kind}": torch.cat(parts[1:])}
