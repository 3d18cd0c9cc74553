"""Checkpoints of fairseq's `transformer`, as long as they store `args` or `cfg`."""

import re
from pathlib import Path

from torch import Tensor

from deepnmt.model.conversion.reading import ForeignModel, read_torch, unsupported

_NORMS = {
    ("encoder", "0"): "self_attn",
    ("encoder", "1"): "final",
    ("decoder", "0"): "self_attn",
    ("decoder", "1"): "encoder_attn",
    ("decoder", "2"): "final",
}


def read(path: Path) -> ForeignModel:
    foreign = read_torch(path)
    for name in ("no_token_positional_embeddings", "cross_self_attention", "no_cross_attention"):
        if foreign.settings.get(name):
            raise unsupported(path, name)
    scaled = not foreign.settings.get("no_scale_embedding")
    return ForeignModel(path, with_names_of_today(foreign.state), foreign.settings, {"scale_embeddings": scaled})


def with_names_of_today(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """fairseq before 0.9, and the paper authors' code, packed the projections and counted the norms."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if (match := re.fullmatch(r"(.+_attn)\.in_proj_(weight|bias)", name)) and tensor.dim():
            parts = zip("qkv", tensor.chunk(3), strict=False)
            renamed |= {f"{match[1]}.{part}_proj.{match[2]}": chunk for part, chunk in parts}
        elif (match := re.fullmatch(r"(encoder|decoder)\.(layers\.\d+)\.layer_norms\.(\d+)\.(\w+)", name)) and (
            norm := _NORMS.get((match[1], match[3]))
        ):
            renamed[f"{match[1]}.{match[2]}.{norm}_layer_norm.{match[4]}"] = tensor
        else:
            renamed["decoder.output_projection.weight" if name == "decoder.embed_out" else name] = tensor
    return renamed
