"""A model for Marian, and in 8 bits for Bergamot. Writing it needs no package.

Marian's decoder starts from a vector of zeros, and ours from that of a symbol. So the vector of that symbol is
subtracted from the whole table, which changes all logits of a step alike, and the first layer adds it back.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepnmt.data.conversion import read_text
from deepnmt.data.sentence_pieces import message_of
from deepnmt.data.sentencepiece_rules import normalising_model
from deepnmt.data.tokenizer import Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES, UNK
from deepnmt.decoding.config import DecodingConfig
from deepnmt.decoding.export.bergamot import BERGAMOT, BINARY, INNER, OUTER, quantised, write_binary
from deepnmt.decoding.export.comparison import Runtime, Tell, start_symbol
from deepnmt.decoding.export.expressible import (
    mixed_layers,
    odd_sublayers,
    other_settings,
    refuse,
    unlike_sentencepiece,
)
from deepnmt.model.config import ModelConfig
from deepnmt.model.conversion import convert_model
from deepnmt.model.conversion.marian import SETTINGS
from deepnmt.model.conversion.rebuild import SILENT
from deepnmt.model.folding import folded, folded_config
from deepnmt.model.transformer import Transformer

NAME, RUNS_IN = "Marian", "torch"  # compared by reading the folder back
NEEDS: tuple[str, ...] = ()
VOCABULARIES = ("source.spm", "target.spm")

# Our modules in a layer: Marian's name, and the suffixes of the matrices packed in it, or none for a norm.
MODULES = {
    "attention.input": ("self", "qkv"),
    "attention.output": ("self", "o"),
    "around_attention.norm": ("self_Wo", ""),
    "cross_attention.query": ("context", "q"),
    "cross_attention.key_value": ("context", "kv"),
    "cross_attention.output": ("context", "o"),
    "around_cross_attention.norm": ("context_Wo", ""),
    "feed_forward.expand": ("ffn", "1"),
    "feed_forward.contract": ("ffn", "2"),
    "around_feed_forward.norm": ("ffn_ffn", ""),
}
NORM = {"weight": "ln_scale", "bias": "ln_bias"}
SEARCH = {
    "beam-size": DecodingConfig.beam,
    "normalize": DecodingConfig.length_penalty,
    "mini-batch": 32,
    "maxi-batch": 100,
    "maxi-batch-sort": "src",
}


def check(config: ModelConfig, tokenizers: TokenizerPair) -> None:
    plain = folded_config(config)
    refuse(
        NAME,
        mixed_layers(config),
        odd_sublayers(plain),
        _obstacles(plain),
        other_settings(config),
        unlike_sentencepiece(tokenizers),
    )


def _obstacles(config: ModelConfig) -> Iterator[str]:
    if "pre" in {config.sublayer_of(stack).kind for stack in config.stacks.values()}:
        yield "its pre-norm does not normalise keys and values when it translates (train with norm = post)"
    if config.positions == "learned":
        yield "it adds the first learned position at every step (train with positions = sinusoidal)"
    elif config.positions == "sinusoidal-hf":
        yield "its sinusoids are not those of Hugging Face (convert the model from Marian's .npz)"
    elif config.position_offset != 0:
        found = config.position_offset
        yield f"it counts positions from 0, but this model counts from {found} (train with first_position = 0)"
    if config.activation not in ("relu", "swish"):
        yield f"it has no {config.activation} that is the same in all versions (train with activation = relu or swish)"
    if config.norm_kind != "layer":
        yield f"it does not support norm_kind = {config.norm_kind} (train with layer)"
    if not config.scale_embeddings:
        yield "it scales embeddings, but this model has scale_embeddings = false"
    for name in ("dim", "ffn_dim", "num_heads"):
        encoder, decoder = (getattr(stack, name) for stack in config.stacks.values())
        if encoder != decoder:
            yield f"it needs one {name}, but this model has {encoder} in the encoder and {decoder} in the decoder"


def write(model: Transformer, tokenizers: TokenizerPair, folder: Path, tell: Tell) -> dict[str, Any]:
    model = folded(model)
    config = model.config
    source, source_rows = _vocabulary(tokenizers.source, config.source_vocab_size)
    target, target_rows = _vocabulary(tokenizers.target, config.target_vocab_size)
    sizes = [-(-len(side.pieces) // OUTER) * OUTER for side in (source, target)]
    sizes = [max(sizes)] * 2 if config.share_embeddings else sizes
    for name, side, size in zip(VOCABULARIES, (source, target), sizes, strict=True):
        for number in range(len(side.pieces), size):
            side.pieces.add(piece=f"<unused {number}>", type=side.SentencePiece.CONTROL)
        (folder / name).write_bytes(side.SerializeToString())
    arrays = _arrays(model, *map(_index, (source_rows, target_rows), sizes))
    arrays["decoder_ff_logit_out_b"][:, len(target_rows) :] = SILENT
    arrays[SETTINGS] = np.frombuffer(_yaml(_settings(config, sizes)).encode() + b"\0", np.int8)
    np.savez(folder / "model.npz", **arrays)
    files = {"relative-paths": True, "vocabs": list(VOCABULARIES)}
    (folder / "decoder.yml").write_text(_yaml(files | {"models": ["model.npz"]} | SEARCH), encoding="utf-8")
    if config.encoder.dim % INNER or config.encoder.ffn_dim % INNER:
        tell(f"{BINARY} is not written, because it needs dim and ffn_dim that are multiples of {INNER}")
    else:
        write_binary(folder / BINARY, {name: quantised(name, array) for name, array in arrays.items()})
        (folder / "bergamot.yml").write_text(_yaml(files | {"models": [BINARY]} | BERGAMOT), encoding="utf-8")
    return {}


def _settings(config: ModelConfig, vocabularies: list[int]) -> dict[str, Any]:
    tied, shared = config.tie_output, config.share_embeddings
    return {
        "type": "transformer",
        "dim-vocabs": vocabularies,
        "dim-emb": config.encoder.dim,
        "enc-depth": config.encoder.num_layers,
        "dec-depth": config.decoder.num_layers,
        "tied-embeddings": tied and not shared,
        "tied-embeddings-src": shared and not tied,
        "tied-embeddings-all": tied and shared,
        "transformer-heads": config.encoder.num_heads,
        "transformer-dim-ffn": config.encoder.ffn_dim,
        "transformer-decoder-dim-ffn": 0,
        "transformer-ffn-depth": 2,
        "transformer-decoder-ffn-depth": 0,
        "transformer-ffn-activation": config.activation,
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": "",
        "transformer-decoder-autoreg": "self-attention",
        "transformer-tied-layers": [],
        "transformer-guided-alignment-layer": "last",
        "transformer-no-projection": False,
        "transformer-no-bias": False,
        "transformer-no-affine": False,
        "transformer-pool": False,
        "transformer-train-position-embeddings": False,
        "transformer-disable-position-embeddings": False,
        "lemma-dim-emb": 0,
        "output-omit-bias": False,
        "input-types": [],
        "layer-normalization": False,
        "right-left": False,
        "skip": False,
        "ulr": False,
    }


def _yaml(table: Mapping[str, Any]) -> str:
    def scalar(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value) or '""'

    def entry(value: Any) -> str:
        if not isinstance(value, list):
            return f" {scalar(value)}\n"
        return "".join(f"\n  - {scalar(item)}" for item in value) + "\n" if value else "\n  []\n"

    return "".join(f"{name}:{entry(value)}" for name, value in table.items())


def _vocabulary(tokenizer: Tokenizer, size: int) -> tuple[Any, list[int]]:
    """A SentencePiece model with Marian's numbers, and our number of each piece that we have.

    </s> and <unk> come first. Behind the pieces is the rest of our table: rows without a symbol, <s> and <pad>. Pieces
    that only the SentencePiece model has come last: they are unknown to us.
    """
    message = message_of(normalising_model(tokenizer))
    new, own = message.SentencePiece, {piece.piece: piece for piece in message.pieces}
    rest = [*range(tokenizer.vocab_size, size), BOS, PAD]
    pieces = [
        new(piece=SPECIAL_PIECES[EOS], type=new.CONTROL),
        new(piece=SPECIAL_PIECES[UNK], type=new.UNKNOWN),
        *(own.pop(symbol, None) or new(piece=symbol, type=new.UNUSED) for symbol in tokenizer.pieces[UNK + 1 :]),
        *(new(piece=_rest(number, tokenizer), type=new.CONTROL) for number in rest),
        *(piece for piece in own.values() if piece.type not in (new.CONTROL, new.UNKNOWN)),
    ]
    del message.pieces[:]
    message.pieces.extend(pieces)
    spec = message.trainer_spec
    spec.eos_id, spec.unk_id, spec.bos_id, spec.pad_id = 0, 1, -1, -1
    spec.eos_piece, spec.unk_piece = SPECIAL_PIECES[EOS], SPECIAL_PIECES[UNK]
    return message, [EOS, *range(UNK, tokenizer.vocab_size), *rest]


def _rest(number: int, tokenizer: Tokenizer) -> str:
    """The size makes the name new: a model that was exported and converted has the names of that time as pieces."""
    return f"<row {number} of {tokenizer.vocab_size}>"


def _index(rows: list[int], size: int) -> Tensor:
    return torch.tensor(rows + [UNK] * (size - len(rows)))


@torch.no_grad()
def _arrays(model: Transformer, source_rows: Tensor, target_rows: Tensor) -> dict[str, Any]:
    """Matrices are [in, out] and biases [1, out]; tables are not transposed."""
    config, source, target = model.config, model.source_embedding.tokens.weight, model.target_embedding.tokens.weight
    arrays = {name: _array(tensor.T if tensor.dim() == 2 else tensor[None]) for name, tensor in _layers(model)}
    start = target[start_symbol(config)]
    arrays["Wemb" if config.share_embeddings else "decoder_Wemb"] = _array((target - start)[target_rows])
    if not config.share_embeddings:
        arrays["encoder_Wemb"] = _array(source[source_rows])
    if not config.tie_output:
        arrays["decoder_ff_logit_out_W"] = _array(model.output_weight[target_rows].T)
    bias = target.new_zeros(len(target)) if model.output_bias is None else model.output_bias
    arrays["decoder_ff_logit_out_b"] = _array(bias[target_rows][None])
    for side in ("encoder", "decoder") if config.share_embeddings else ("decoder",):
        _add_to_input(arrays, f"{side}_l1_self", _array(model.target_embedding.scale * start))
    return arrays


def _add_to_input(arrays: dict[str, Any], attention: str, constant: np.ndarray) -> None:
    """As if the sub-layer's input were larger by a constant: for the projections, and for the sum with the output."""
    for part in "qkv":
        arrays[f"{attention}_b{part}"] += constant @ arrays[f"{attention}_W{part}"]
    arrays[f"{attention}_bo"] += constant


def _layers(model: Transformer) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        if match := re.fullmatch(r"(encoder|decoder)\.layers\.(\d+)\.(.+)\.(weight|bias)", name):
            side, number, module, kind = match.groups()
            scope, parts = MODULES[module]
            for part, tensor in zip(parts or [""], parameter.chunk(len(parts) or 1), strict=True):
                last = (f"W{part}" if kind == "weight" else f"b{part}") if parts else NORM[kind]
                yield f"{side}_l{int(number) + 1}_{scope}_{last}", tensor


def _array(tensor: Tensor) -> np.ndarray:
    """A copy in the order of its rows, which Marian requires."""
    return tensor.detach().float().numpy().copy()


def opened(folder: Path, config: ModelConfig, tokenizers: TokenizerPair) -> Runtime:
    text = read_text("marian", folder, tokenizers.source.language, tokenizers.target.language)
    exported = convert_model(folder, "marian", text.numbering)
    source_ids = _ids(tokenizers.source, config.source_vocab_size, text.tokenizers.source)
    source_ids[config.pad_id] = exported.config.pad_id
    target_ids = _ids(tokenizers.target, config.target_vocab_size, text.tokenizers.target)

    def log_probs(source: Tensor, chosen: Tensor) -> Tensor:
        symbols = target_ids[chosen]
        logits = exported(source_ids[source], torch.cat([symbols[:, :1], symbols[:, :-1]], dim=1))
        return logits.log_softmax(2).gather(2, symbols.unsqueeze(2)).squeeze(2)

    return log_probs


def _ids(tokenizer: Tokenizer, size: int, exported: Tokenizer) -> Tensor:
    """The id in the export of each of ours."""
    ids = {symbol: number for number, symbol in enumerate(exported.pieces)}
    listed = dict(enumerate(tokenizer.pieces))
    del listed[BOS], listed[PAD]
    return torch.tensor([ids[listed.get(number, _rest(number, tokenizer))] for number in range(size)])
