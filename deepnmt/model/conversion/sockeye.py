"""Model folders of Sockeye 3: `params.best`, a state dict, `config`, nested tables in YAML, and vocabularies in JSON.

Attention has no biases, its keys and values alternate from head to head, and the decoder starts with <s>.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepnmt.errors import InputError
from deepnmt.files import read_json
from deepnmt.model.conversion.huggingface import are_sinusoids
from deepnmt.model.conversion.reading import ForeignModel, check_settings, read_state_dict, unsupported
from deepnmt.text import read_lines

CONFIG, PARAMETERS, VERSION = "config", "params.best", "version"
STACKS = ("config_encoder", "config_decoder")
NORM_EPS = 1e-6
# Settings that the names and shapes do not show, with what deepnmt computes.
KNOWN = {
    "config_data.num_source_factors": ("1",),
    "config_data.num_target_factors": ("1",),
    "config_decoder.decoder_type": ("transformer",),
    "config_decoder.block_prepended_cross_attention": ("false",),
    "config_encoder.use_lhuc": ("false",),
    "config_decoder.use_lhuc": ("false",),
}
DEFAULTS = {f"{stack}.use_glu": "false" for stack in STACKS}
# Settings that must be the same in both stacks.
ALIKE = ("preprocess_sequence", "postprocess_sequence", "act_type", "use_glu", "positional_embedding_type")
# The operations before a sub-layer and after it (n: norm, r: add; d, dropout, is left out): post- and pre-norm.
PLACEMENTS = (("", "rn"), ("n", "r"))
ACTIVATIONS = {  # by act_type and use_glu
    ("relu", "false"): "relu",
    ("gelu", "false"): "gelu",
    ("swish1", "false"): "swish",
    ("swish1", "true"): "swiglu",
}
IGNORED = re.compile(r"(nvs|length_ratio|traced_\w+)\..+")  # vocabulary selection, predicted lengths, copies
NAMES = {
    r"embedding_source\.embedding\.weight": "encoder.embed_tokens.weight",
    r"embedding_target\.embedding\.weight": "decoder.embed_tokens.weight",
    r"output_layer\.weight": "decoder.output_projection.weight",
    r"output_layer\.bias": "decoder.output_bias",
    r"(encoder|decoder)\.pos_embedding\.weight": "{0}.embed_positions.weight",
    r"(encoder|decoder)\.final_process\.layer_norm\.(\w+)": "{0}.layer_norm.{1}",
    r"(.+)\.(?:pre|post)_(?:self_attention|autoregr_layer)\.layer_norm\.(\w+)": "{0}.self_attn_layer_norm.{1}",
    r"(.+)\.(?:pre|post)_enc_attention\.layer_norm\.(\w+)": "{0}.encoder_attn_layer_norm.{1}",
    r"(.+)\.(?:pre|post)_ff\.layer_norm\.(\w+)": "{0}.final_layer_norm.{1}",
    r"(.+)\.ff\.ff([12])\.(\w+)": "{0}.fc{1}.{2}",
}
ATTENTION = re.compile(
    r"((encoder|decoder)\.layers\.\d+)\.(self_attention|autoregr_layer|enc_attention)\.ff_(in|q|kv|out)\.weight"
)
PARTS = {"in": ("q", "k", "v"), "q": ("q",), "kv": ("k", "v"), "out": ("out",)}
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]


def read(path: Path) -> ForeignModel:
    """The best parameters of a folder, or one of its other files of parameters."""
    folder, file = (path, path / PARAMETERS) if path.is_dir() else (path.parent, path)
    settings = _read_settings(folder)
    activation = ACTIVATIONS[settings["config_encoder.act_type"], settings["config_encoder.use_glu"]]
    stored = {name: tensor for name, tensor in _read_parameters(file).items() if not IGNORED.fullmatch(name)}
    if activation == "swiglu":
        _pack_gates(file, stored)
    state: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        state |= _renamed(file, name, tensor, settings)
    shape = {
        "encoder_attention_heads": settings["config_encoder.attention_heads"],
        "decoder_attention_heads": settings["config_decoder.attention_heads"],
        "dropout": settings.get("config_encoder.dropout_prepost"),
        "attention_dropout": settings.get("config_encoder.dropout_attention"),
        "activation_dropout": settings.get("config_encoder.dropout_act"),
        "norm_eps": NORM_EPS,
    }
    norm = "pre" if "n" in settings["config_encoder.preprocess_sequence"] else "post"
    changes: dict[str, Any] = {"norm": norm, "activation": activation, "first_position": 0, "start_id": 0}
    vocabularies = _read_vocabulary(folder / "vocab.src.0.json"), _read_vocabulary(folder / "vocab.trg.0.json")
    foreign = ForeignModel(file, state, shape, changes, vocabularies)
    _read_positions(foreign, settings["config_encoder.positional_embedding_type"])
    return foreign


def _read_parameters(path: Path) -> dict[str, Tensor]:
    if path.is_dir():
        remedy = f"convert it with `python -m sockeye.convert_deepspeed --model {path.parent}`"
        raise InputError(f"{path} is a folder, as DeepSpeed writes it; {remedy}")
    try:
        return read_state_dict(path)
    except InputError as error:
        if not _version(path.parent).startswith("3.0."):
            raise
        remedy = "if it has MXNet's parameters, convert them with `python -m sockeye.mx_to_pt` of Sockeye 3.0.15"
        raise InputError(f"{error}; {remedy}") from error


def _version(folder: Path) -> str:
    """Empty if the folder does not say."""
    path = folder / VERSION
    return "".join(read_lines(path)).strip()[:20] if path.is_file() else ""


def _read_vocabulary(path: Path) -> list[str]:
    """The symbols in the order of their numbers."""
    numbers = read_json(path)
    if any(type(number) is not int for number in numbers.values()):
        raise InputError(f"{path} is not a vocabulary: it must map each symbol to a number")
    symbols = sorted(numbers, key=numbers.__getitem__)
    if [numbers[symbol] for symbol in symbols] != [*range(len(symbols))] or symbols[: len(SPECIAL)] != SPECIAL:
        raise InputError(f"{path} must number its symbols from 0, beginning with {' '.join(SPECIAL)}")
    return symbols


def _read_settings(folder: Path) -> dict[str, str]:
    """The settings of `config`, which must be those that deepnmt supports."""
    if (version := _version(folder)) and not version.startswith("3."):
        raise InputError(f"{folder} is a model of Sockeye {version}; deepnmt supports those of Sockeye 3")
    path = folder / CONFIG
    settings = DEFAULTS | _read_tables(path)
    check_settings(path, settings, KNOWN)
    for stack in STACKS:
        for name in (*ALIKE, "attention_heads"):
            if f"{stack}.{name}" not in settings:
                raise InputError(f"{path} is not the config of a Sockeye model: it has no {stack}.{name}")
        if not re.fullmatch(r"[1-9][0-9]{0,5}", heads := settings[f"{stack}.attention_heads"]):
            raise InputError(f"{path}: {stack}.attention_heads = {heads} must be at least 1")
    for name in ALIKE:
        encoder, decoder = (settings[f"{stack}.{name}"] for stack in STACKS)
        if encoder != decoder:
            made = f"{name} = {encoder!r} in the encoder and {decoder!r} in the decoder"
            raise InputError(f"{path} has {made}; deepnmt needs the same in both")
    before, after, activation, gated, positions = (settings[f"config_encoder.{name}"] for name in ALIKE)
    if (before.replace("d", ""), after.replace("d", "")) not in PLACEMENTS:
        made = f"preprocess_sequence = {before!r} and postprocess_sequence = {after!r}"
        raise InputError(f"{path} has {made}, which is neither pre-norm nor post-norm")
    if (activation, gated) not in ACTIVATIONS:
        raise unsupported(path, f"act_type = {activation} and use_glu = {gated}")
    if positions not in ("fixed", "learned"):
        raise unsupported(path, f"positional_embedding_type = {positions}")
    return settings


def _read_tables(path: Path) -> dict[str, str]:
    """The entries of nested tables by their dotted names; list items are skipped."""
    entries: dict[str, str] = {}
    outer: list[tuple[int, str]] = []
    for line in read_lines(path):
        if entry := re.fullmatch(r"( *)(\w+):(?: +(.*))?", line):
            indent, key, value = len(entry[1]), entry[2], (entry[3] or "").strip()
            while outer and outer[-1][0] >= indent:
                outer.pop()
            if not value or value[0] in "!&":  # a table or a list, with its tag or anchor
                outer.append((indent, key))
            else:
                entries[".".join([*(name for _, name in outer), key])] = value.strip("'\"")
    return entries


def _renamed(path: Path, name: str, tensor: Tensor, settings: dict[str, str]) -> dict[str, Tensor]:
    """Rename to fairseq's names; a projection of attention becomes one for each part, with biases of zero."""
    if not tensor.is_floating_point():
        raise InputError(f"{path}: {name} has type {tensor.dtype}; quantised models are not supported")
    if match := ATTENTION.fullmatch(name):
        parts = PARTS[match[4]]
        heads = int(settings[f"config_{match[2]}.attention_heads"])
        if tensor.dim() != 2 or len(tensor) % (len(parts) * heads):
            raise InputError(f"{path}: {name} of shape {tuple(tensor.shape)} does not divide into {heads} heads")
        weights = list(tensor.chunk(len(parts)))
        if "k" in parts:
            alternating = torch.cat(weights[-2:]).unflatten(0, (heads, 2, -1))
            weights[-2:] = [part.flatten(0, 1) for part in alternating.unbind(1)]
        prefix = f"{match[1]}.{'encoder_attn' if match[3] == 'enc_attention' else 'self_attn'}"
        named = {f"{prefix}.{part}_proj.weight": weight for part, weight in zip(parts, weights, strict=True)}
        return named | {f"{prefix}.{part}_proj.bias": torch.zeros(len(weights[0])) for part in parts}
    for pattern, theirs in NAMES.items():
        if match := re.fullmatch(pattern, name):
            return {theirs.format(*match.groups()): tensor}
    raise unsupported(path, f"the parameter {name}")


def _pack_gates(path: Path, stored: dict[str, Tensor]) -> None:
    """One matrix for W1, whose result is activated, and V1, whose result is not."""
    for linear in [name for name in stored if ".ff.linear." in name]:
        first = linear.replace(".ff.linear.", ".ff.ff1.")
        if first not in stored or stored[first].shape != stored[linear].shape:
            raise InputError(f"{path}: {linear} needs a {first} of the same shape")
        stored[first] = torch.cat([stored[first], stored.pop(linear)])


def _read_positions(foreign: ForeignModel, kind: str) -> None:
    """Learned tables stay; fixed ones are computed."""
    names = [f"{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    encoder, decoder = map(foreign.tensor, names)
    if kind == "learned":
        if len(encoder) != len(decoder):
            made = f"max_seq_len_source = {len(encoder)} and max_seq_len_target = {len(decoder)}"
            raise InputError(f"{foreign.path} has learned positions with {made}; deepnmt needs one length")
        foreign.config.update(positions="learned", max_positions=len(encoder))
        return
    foreign.config["positions"] = "sinusoidal-hf"
    for name in names:
        if not are_sinusoids(foreign.state.pop(name), reaches_last=False, first_position=0):
            raise InputError(f"{foreign.path}: {name} are not the sinusoids of Sockeye 3")
