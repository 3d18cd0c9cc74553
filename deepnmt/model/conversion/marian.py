"""Marian models: Marian's .npz or Hugging Face's format, whichever the folder has.

Matrices of an .npz are [in, out], biases [1, out]; layers count from one. Its settings are in `special:model.yml`.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepnmt.errors import InputError
from deepnmt.flat_yaml import read_flat_yaml
from deepnmt.model.conversion import huggingface
from deepnmt.model.conversion.reading import ForeignModel, check_settings, read_arrays, unsupported

SETTINGS = "special:model.yml"
# Settings that the names and shapes do not show, with what deepnmt computes.
KNOWN = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-train-position-embeddings": ("false",),
    "transformer-no-affine": ("false",),
    "transformer-flat-attention": ("false",),
    "transformer-disable-position-embeddings": ("false",),
    "transformer-attention-mask": ("default",),
    "transformer-pool": ("false",),
    "transformer-postprocess-emb": ("d", ""),
    "right-left": ("false",),
    "ulr": ("false",),
    "factors-combine": ("sum",),
}
# The operations before a sub-layer, after it and on top (n: norm, a: add; d, dropout, is left out): post- and pre-norm.
PLACEMENTS = (("", "an", ""), ("n", "a", "n"))
LAYER = {
    r"self_W([qkvo])": "self_attn.{0}_proj.weight",
    r"self_b([qkvo])": "self_attn.{0}_proj.bias",
    r"context_W([qkvo])": "encoder_attn.{0}_proj.weight",
    r"context_b([qkvo])": "encoder_attn.{0}_proj.bias",
    r"ffn_W([12])": "fc{0}.weight",
    r"ffn_b([12])": "fc{0}.bias",
    r"self_Wo_ln_(scale|bias)(?:_pre)?": "self_attn_layer_norm.{0}",
    r"context_Wo_ln_(scale|bias)(?:_pre)?": "encoder_attn_layer_norm.{0}",
    r"ffn_ffn_ln_(scale|bias)(?:_pre)?": "final_layer_norm.{0}",
}
WHOLE = {
    r"(encoder|decoder)_top_ln_(scale|bias)(?:_pre)?": "{0}.layer_norm.{1}",
    r"(encoder|decoder)_Wemb": "{0}.embed_tokens.weight",
    r"decoder_ff_logit_out_W": "decoder.output_projection.weight",
    r"decoder_ff_logit_out_Wt": "decoder.output_projection.weight",
    r"decoder_ff_logit_out_b": "decoder.output_bias",
}
PROCESSES = ("preprocess", "postprocess", "postprocess-top")
TABLES = re.compile(r".*Wemb|decoder_ff_logit_out_Wt")  # the matrices that are not [in, out]


def read(path: Path) -> ForeignModel:
    if path.is_dir() and (path / huggingface.CONFIG).is_file():
        return huggingface.read_marian(path)
    return _read_npz(find_npz(path))


def find_npz(path: Path) -> Path:
    """The .npz file of a folder, or the file itself."""
    if not path.is_dir():
        return path
    found = sorted(file for file in path.glob("*.npz") if not file.name.endswith(".optimizer.npz"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise InputError(f"{path} must have exactly one .npz file; found {names}")
    return found[0]


def _read_npz(path: Path) -> ForeignModel:
    arrays = read_arrays(path)
    if SETTINGS not in arrays:
        raise InputError(f"{path} is not a Marian model: it has no {SETTINGS}")
    text = arrays.pop(SETTINGS).astype(np.uint8).tobytes().rstrip(b"\0").decode("utf-8", "replace")
    settings = read_flat_yaml(text, f"{path}, {SETTINGS}")
    check_settings(path, settings, KNOWN)
    placement = tuple(str(settings.get(f"transformer-{name}", "")).replace("d", "") for name in PROCESSES)
    if placement not in PLACEMENTS:
        made = ", ".join(f"transformer-{name} = {settings.get(f'transformer-{name}', '')!r}" for name in PROCESSES)
        raise InputError(f"{path} uses {made}, which is neither pre-norm nor post-norm")
    heads = settings.get("transformer-heads", 8)
    state: dict[str, Tensor] = {}
    for name, array in arrays.items():
        if not name.startswith("special:"):
            state |= _renamed(path, name, array)
    shape = {
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "activation_fn": settings.get("transformer-ffn-activation", "swish"),
    }
    changes: dict[str, Any] = {"first_position": 0, "start_id": 0}
    return ForeignModel(path, state, shape, changes)


def _renamed(path: Path, name: str, array: npt.NDArray[Any]) -> dict[str, Tensor]:
    """Rename to fairseq's names in torch's layout; the table of a shared vocabulary becomes two."""
    tensor = torch.from_numpy(array)
    if array.ndim == 2:
        tensor = tensor.squeeze(0) if len(array) == 1 and not TABLES.fullmatch(name) else tensor
        tensor = tensor if TABLES.fullmatch(name) or tensor.dim() == 1 else tensor.T.contiguous()
    if name == "Wemb":
        return {f"{side}.embed_tokens.weight": tensor for side in ("encoder", "decoder")}
    layer = re.fullmatch(r"(encoder|decoder)_l(\d+)_(.+)", name)
    prefix = f"{layer[1]}.layers.{int(layer[2]) - 1}." if layer else ""
    for pattern, theirs in (LAYER if layer else WHOLE).items():
        if match := re.fullmatch(pattern, layer[3] if layer else name):
            parts = [{"o": "out", "scale": "weight"}.get(part, part) for part in match.groups()]
            return {prefix + theirs.format(*parts): tensor}
    raise unsupported(path, f"the parameter {name}")
