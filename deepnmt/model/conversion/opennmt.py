"""Checkpoints of OpenNMT-py 2 and 3, whose Transformers are pre-norm: `model`, `generator`, `vocab` and `opt`.

The decoder starts with <s>, and the source has no end symbol. Version 3 may store the weights beside CHECKPOINT.pt, in
CHECKPOINT.safetensors (its trainer) or CHECKPOINT.00.safetensors and so on (its converters); version 2 stores its
vocabularies as objects of torchtext.
"""

import argparse
import glob
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepnmt.errors import InputError
from deepnmt.model.conversion.reading import (
    ForeignModel,
    Placeholder,
    check_settings,
    read_checkpoint,
    tensors_of,
    unsupported,
)
from deepnmt.model.storage import read_tensors

# Classes and functions of version 2 in the pickle of its vocabularies.
CLASSES = (
    "functools.partial",
    "onmt.inputters.inputter.AlignField",
    "onmt.inputters.inputter.make_src",
    "onmt.inputters.inputter.make_tgt",
    "onmt.inputters.inputter.parse_align_idx",
    "onmt.inputters.text_dataset.TextMultiField",
    "onmt.inputters.text_dataset._feature_tokenize",
    "torchtext.data.field.Field",
    "torchtext.data.field.RawField",
    "torchtext.data.utils._split_tokenizer",
    "torchtext.vocab.Vocab",
)
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "swiglu"}  # silu has a gate beside it
# Settings that the names and shapes do not show, with what deepnmt computes.
KNOWN: dict[str, tuple[Any, ...]] = {
    "model_task": ("seq2seq",),
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "copy_attn": (False,),
    "generator_function": ("softmax",),
    "layer_norm": ("standard", "rms"),
    "pos_ffn_activation_fn": tuple(ACTIVATIONS),
    "position_encoding_type": ("SinusoidalInterleaved", "SinusoidalConcat"),
    "relative_positions_buckets": (0,),
    "rotary_theta": (10000,),
    "rotary_dim": (0,),
    "parallel_residual": (False,),
    "sliding_window": (0,),
    "num_experts": (0,),
    "quant_layers": ([],),
}
NAMES = {
    r"\.embeddings\.make_embedding\.emb_luts\.0\.": ".embed_tokens.",
    r"^encoder\.transformer\.": "encoder.layers.",
    r"^decoder\.transformer_layers\.": "decoder.layers.",
    r"\.context_attn\.": ".encoder_attn.",
    r"\.linear_([kvq])\w+\.": r".\1_proj.",
    r"\.final_linear\.": ".out_proj.",
    r"\.feed_forward\.layer_norm\.": ".final_layer_norm.",
    r"\.feed_forward\.w_(\d)\.": r".fc\1.",
    r"(\.\d+)\.layer_norm(?:_1)?\.": r"\1.self_attn_layer_norm.",
    r"\.layer_norm_2\.": ".encoder_attn_layer_norm.",
    r"^generator\.(?:0\.)?weight$": "decoder.output_projection.weight",
    r"^generator\.(?:0\.)?bias$": "decoder.output_bias",
}
SINUSOIDS = ".make_embedding.pe.pe"
LINEAR = re.compile(r"(.+\.(?:[qkv]_proj|out_proj|fc\d))\.weight")
# The vectors between the layers are columns of some weights and rows of others.
READS = re.compile(r".+\.(embed_tokens|[qkv]_proj|fc1|output_projection)\.weight")
WRITES = re.compile(r".+\.(out_proj|fc2|\w*layer_norm)\.(weight|bias)")
OUR_SYMBOLS = {"<blank>": "<pad>", "<pad>": "<blank>"}  # a symbol <pad> is not special there
STARTS = {"<s>": 0, "</s>": None}  # our `start_id`


def read(path: Path) -> ForeignModel:
    stored = read_checkpoint(path, CLASSES)
    opt, vocab = stored.get("opt"), stored.get("vocab")
    if not isinstance(opt, argparse.Namespace) or not isinstance(vocab, dict):
        raise InputError(f"{path} is not a checkpoint of OpenNMT-py 2 or 3: it needs opt and vocab")
    settings = vars(opt)
    check_settings(path, settings, KNOWN)
    start = str(vocab.get("decoder_start_token", "<s>"))
    if start not in STARTS:
        raise unsupported(path, f"decoder_start_token = {start}")
    foreign = ForeignModel(path, _renamed(path, _weights(path, stored)), settings)
    if settings.get("layer_norm") == "rms" and "encoder.layer_norm.bias" in foreign.state:
        raise unsupported(path, "RMSNorm in the layers but not after them, as in version 3.1")
    config = _positions(foreign) | {
        "norm_kind": "rms" if settings.get("layer_norm") == "rms" else "layer",
        "activation": ACTIVATIONS[settings.get("pos_ffn_activation_fn") or "relu"],
        "start_id": STARTS[start],
    }
    heads, dim = int(foreign.number("heads")), foreign.tensor("encoder.embed_tokens.weight").shape[1]
    if heads < 1 or dim % heads:
        raise InputError(f"{path}: heads = {heads} does not divide the width {dim}")
    try:
        state = _completed(foreign.state, dim // heads)
        if config["positions"] == "sinusoidal-hf":
            state = _between_layers(state, _halves(dim))
        elif config["positions"] == "rotary" and settings.get("rotary_interleave", True):
            state = _in_heads(state, _halves(dim // heads))
    except (IndexError, KeyError, RuntimeError, TypeError, ZeroDivisionError) as error:
        raise InputError(f"{path}: the shapes of its weights do not match ({error})") from error
    dropout = _first(settings.get("dropout", 0.1))
    shape = {
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "dropout": dropout,
        "activation_dropout": dropout,
        "attention_dropout": _first(settings.get("attention_dropout", dropout)),
        "norm_eps": foreign.number("norm_eps", 1e-6),
    }
    vocabularies = _symbols(path, vocab, "src"), _symbols(path, vocab, "tgt")
    return ForeignModel(path, state, shape, config, vocabularies, source_ends=False)


def _weights(path: Path, stored: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of the checkpoint or of the files beside it, with the output projection as `generator`."""
    if "model" not in stored:
        beside = path.with_suffix(".safetensors")
        parts = [beside] if beside.is_file() else sorted(path.parent.glob(f"{glob.escape(path.stem)}.*.safetensors"))
        if not parts:
            raise InputError(f"{path} has no weights, and there is no {beside.name} beside it")
        return {name: tensor for part in parts for name, tensor in read_tensors(part).items()}
    model, generator = stored["model"], stored.get("generator")
    if not isinstance(model, dict) or not isinstance(generator, dict):
        raise InputError(f"{path} is not a checkpoint of a whole model: it needs model and generator")
    return tensors_of(path, {**model, **{f"generator.{name}": tensor for name, tensor in generator.items()}})


def _renamed(path: Path, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state with the names of fairseq."""
    renamed = {}
    for name, tensor in state.items():
        if ".emb_luts.1." in name:
            raise unsupported(path, "source features")
        if not name.endswith(SINUSOIDS):
            for theirs, ours in NAMES.items():
                name = re.sub(theirs, ours, name)
            renamed[name] = tensor
    return renamed


def _positions(foreign: ForeignModel) -> dict[str, Any]:
    """Embeddings are scaled only where sinusoids are added."""
    distance = int(foreign.number("max_relative_positions", 0))
    if foreign.settings.get("position_encoding"):
        if distance:
            raise unsupported(foreign.path, f"position_encoding with max_relative_positions = {distance}")
        interleaved = foreign.settings.get("position_encoding_type") != "SinusoidalConcat"
        return {"positions": "sinusoidal-hf" if interleaved else "sinusoidal", "first_position": 0}
    if distance < -1 or distance == 0:
        kind = "no positions" if distance == 0 else "ALiBi"
        raise unsupported(foreign.path, f"{kind} (max_relative_positions = {distance} without position_encoding)")
    if distance == -1:
        return {"positions": "rotary", "scale_embeddings": False}
    return {"positions": "relative", "max_distance": distance, "scale_embeddings": False}


def _first(value: Any) -> Any:
    """Dropout is a list of values for the stages of training."""
    return value[0] if isinstance(value, list) and value else value


def _completed(state: Mapping[str, Tensor], head_dim: int) -> dict[str, Tensor]:
    """The state with all biases, with keys and values for every head, and with the gate below the matrix it gates."""
    complete = dict(state)
    for name, weight in state.items():
        if match := LINEAR.fullmatch(name):
            complete.setdefault(f"{match[1]}.bias", weight.new_zeros(len(weight)))
    for name in [name for name in complete if re.search(r"_attn\.[kv]_proj\.(weight|bias)$", name)]:
        rows = len(complete[re.sub(r"[kv]_proj\.\w+$", "q_proj.weight", name)])
        heads = complete[name].unflatten(0, (-1, head_dim))
        complete[name] = heads.repeat_interleave(rows // head_dim // len(heads), 0).flatten(0, 1)
    for name in [name for name in complete if ".fc3." in name]:
        gate = name.replace(".fc3.", ".fc1.")
        complete[gate] = torch.cat([complete[gate], complete.pop(name)])
    for name in [name for name in complete if name.endswith(".relative_positions_embeddings.weight")]:
        table, prefix = complete.pop(name), name.removesuffix("positions_embeddings.weight")
        complete |= {f"{prefix}keys": table, f"{prefix}values": table}
    return complete


def _halves(size: int) -> Tensor:
    """The order that puts the dimensions 0, 2, 4, ... before 1, 3, 5, ...

    Their sinusoids alternate between sine and cosine, and their rotations turn neighbours; ours have two halves.
    """
    return torch.arange(size).unflatten(0, (-1, 2)).T.flatten()


def _between_layers(state: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """The same model with the dimensions of its embeddings, and hence of all vectors between layers, in this order."""
    return {
        name: tensor[..., order] if READS.fullmatch(name) else tensor[order] if WRITES.fullmatch(name) else tensor
        for name, tensor in state.items()
    }


def _in_heads(state: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """The same model with the dimensions of the queries and keys of each head in this order."""
    return {
        name: tensor.unflatten(0, (-1, len(order)))[:, order].flatten(0, 1)
        if re.search(r"self_attn\.[qk]_proj\.", name)
        else tensor
        for name, tensor in state.items()
    }


def _symbols(path: Path, vocab: Mapping[str, Any], side: str) -> list[str]:
    symbols: Any = vocab.get(side)
    if isinstance(symbols, Placeholder):  # of version 2: a field, or a list of fields of which the first has the words
        fields = getattr(symbols, "fields", [(side, symbols)])
        try:
            symbols = fields[0][1].vocab.itos
        except (AttributeError, IndexError, KeyError, TypeError):
            symbols = None
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise InputError(f"{path}: vocab has no list of symbols for {side}")
    if side == "tgt" and not {"<s>", "</s>"} <= set(symbols):
        raise InputError(f"{path}: the target vocabulary has no <s> or </s>")
    return [OUR_SYMBOLS.get(symbol) or str(symbol) for symbol in symbols]
