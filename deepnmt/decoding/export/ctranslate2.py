"""A model for CTranslate2, the engine of LibreTranslate and Argos Translate. Writing one does not need its package.

`model.bin` is little-endian: the version, the name and revision of the kind of model; the number of variables, and of
each variable its name, rank, sizes, type, bytes and content; the number of aliases, and each alias as two names. A name
is its length with a NUL (16 bits), its bytes and the NUL. The format follows CTranslate2's `specs`.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from deepnmt.data.sentencepiece_rules import SENTENCEPIECE, normalising_model
from deepnmt.data.tokenizer import Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import BOS, EOS, UNK
from deepnmt.decoding.export.comparison import Runtime, Tell, start_symbol
from deepnmt.decoding.export.expressible import mixed_layers, odd_sublayers, other_settings, refuse
from deepnmt.files import write_json
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.embedding import Embedding
from deepnmt.model.folding import folded, folded_config
from deepnmt.model.layers import DecoderLayer, EncoderLayer, FeedForward
from deepnmt.model.norms import RmsNorm
from deepnmt.model.transformer import Stack, Transformer

NAME, RUNS_IN = "CTranslate2", "ctranslate2"
NEEDS: tuple[str, ...] = ()
BINARY_VERSION, KIND, REVISION = 6, "TransformerSpec", 7
TYPES = {np.dtype(np.float32): 0, np.dtype(np.int8): 1, np.dtype(np.int16): 2}
ACTIVATIONS = {"relu": 0, "swish": 2, "swiglu": 2, "gelu": 3}  # swiglu is swish with a gate beside it
MAX_POSITIONS = 2048  # of sinusoids, which are stored because CTranslate2 computes different ones
LAST_LAYER, ONE_HEAD = -1, 1  # whose attention replaces unknown symbols

Variables = dict[str, np.ndarray | str]  # an alias is the name of another variable


def check(config: ModelConfig, tokenizers: TokenizerPair) -> None:
    refuse(NAME, mixed_layers(config), odd_sublayers(folded_config(config)), other_settings(config))


def write(model: Transformer, tokenizers: TokenizerPair, folder: Path, tell: Tell) -> dict[str, Any]:
    plain = folded(model)
    variables = dict(_variables(plain))
    with (folder / "model.bin").open("wb") as file:
        _write_model(file, variables)
    vocabularies = {
        "source": vocabulary(tokenizers.source, model.config.source_vocab_size),
        "target": vocabulary(tokenizers.target, model.config.target_vocab_size),
    }
    if vocabularies["source"] == vocabularies["target"]:
        vocabularies = {"shared": vocabularies["source"]}
    for name, symbols in vocabularies.items():
        write_json(folder / f"{name}_vocabulary.json", symbols)
    special = {"bos": BOS, "eos": EOS, "unk": UNK, "decoder_start": start_symbol(model.config)}
    settings = {
        "add_source_bos": False,
        "add_source_eos": True,
        "layer_norm_epsilon": _epsilon(plain.config),
        "multi_query_attention": False,
    }
    tokens = {f"{name}_token": tokenizers.target.pieces[number] for name, number in special.items()}
    write_json(folder / "config.json", tokens | settings)
    for side, tokenizer in tokenizers.sides.items():
        if isinstance(tokenizer.subwords, SENTENCEPIECE):
            (folder / f"{side}.spm").write_bytes(normalising_model(tokenizer))
    return {}


def _epsilon(config: ModelConfig) -> float | None:
    """One for all norms; that of a folded DeepNorm, which differs between the stacks, hardly matters."""
    usual = 1e-6 if config.norm_kind == "rms" else None
    own = {stack.norm_eps for stack in config.stacks.values()}
    return own.pop() or usual if len(own) == 1 else usual


def vocabulary(tokenizer: Tokenizer, size: int) -> list[str]:
    """The symbol of each id; a model may have more vectors than its tokeniser has symbols."""
    return [*tokenizer.pieces, *(f"<unused {number}>" for number in range(tokenizer.vocab_size, size))]


def _variables(model: Transformer) -> Iterator[tuple[str, np.ndarray | str]]:
    config = model.config
    yield "encoder/embeddings_0/weight", _array(model.source_embedding.tokens.weight)
    yield "encoder/embeddings_merge", np.array(0, np.int8)
    yield "encoder/multi_query_attention", np.array(False, np.int8)
    yield from _stack("encoder", model.encoder, model.source_embedding, config, config.encoder)
    shared = config.share_embeddings
    yield (
        "decoder/embeddings/weight",
        "encoder/embeddings_0/weight" if shared else _array(model.target_embedding.tokens.weight),
    )
    yield "decoder/alignment_layer", np.array(LAST_LAYER, np.int16)
    yield "decoder/alignment_heads", np.array(ONE_HEAD, np.int16)
    yield "decoder/start_from_zero_embedding", np.array(False, np.int8)
    yield from _stack("decoder", model.decoder, model.target_embedding, config, config.decoder)
    tied = "encoder/embeddings_0/weight" if shared else "decoder/embeddings/weight"
    yield "decoder/projection/weight", tied if model.output is None else _array(model.output_weight)
    if model.output_bias is not None:
        yield "decoder/projection/bias", _array(model.output_bias)


def _stack(
    side: str, stack: Stack, embedding: Embedding, config: ModelConfig, settings: StackConfig
) -> Iterator[tuple[str, np.ndarray | str]]:
    yield f"{side}/num_heads", np.array(settings.num_heads, np.int16)
    yield f"{side}/pre_norm", np.array(config.sublayer_of(settings).kind == "pre", np.int8)
    yield f"{side}/activation", np.array(ACTIVATIONS[config.activation], np.int8)
    yield f"{side}/scale_embeddings", np.array(config.scale_embeddings, np.int8)
    assert embedding.positions is not None
    places = torch.arange(config.position_limit or MAX_POSITIONS) + embedding.first_position
    yield f"{side}/position_encodings/encodings", _array(embedding.positions(places))
    if not isinstance(stack.final_norm, nn.Identity):
        yield from _norm(f"{side}/layer_norm", stack.final_norm)
    for number, layer in enumerate(stack.layers):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        scope = f"{side}/layer_{number}"
        yield from _norm(f"{scope}/self_attention/layer_norm", layer.around_attention.norm)
        yield from _linear(f"{scope}/self_attention/linear_0", layer.attention.input)
        yield from _linear(f"{scope}/self_attention/linear_1", layer.attention.output)
        if isinstance(layer, DecoderLayer):
            yield from _norm(f"{scope}/attention/layer_norm", layer.around_cross_attention.norm)
            yield from _linear(f"{scope}/attention/linear_0", layer.cross_attention.query)
            yield from _linear(f"{scope}/attention/linear_1", layer.cross_attention.key_value)
            yield from _linear(f"{scope}/attention/linear_2", layer.cross_attention.output)
        yield from _norm(f"{scope}/ffn/layer_norm", layer.around_feed_forward.norm)
        yield from _feed_forward(f"{scope}/ffn", layer.feed_forward)


def _feed_forward(scope: str, layer: FeedForward) -> Iterator[tuple[str, np.ndarray]]:
    if layer.gated:
        for name, weight, bias in zip(
            ("linear_0", "linear_0_noact"), layer.expand.weight.chunk(2), layer.expand.bias.chunk(2), strict=True
        ):
            yield f"{scope}/{name}/weight", _array(weight)
            yield f"{scope}/{name}/bias", _array(bias)
    else:
        yield from _linear(f"{scope}/linear_0", layer.expand)
    yield from _linear(f"{scope}/linear_1", layer.contract)


def _linear(scope: str, layer: nn.Linear) -> Iterator[tuple[str, np.ndarray]]:
    yield f"{scope}/weight", _array(layer.weight)
    yield f"{scope}/bias", _array(layer.bias)


def _norm(scope: str, norm: Any) -> Iterator[tuple[str, np.ndarray]]:
    yield f"{scope}/gamma", _array(norm.weight)
    if not isinstance(norm, RmsNorm):  # which CTranslate2 takes a norm without bias for
        yield f"{scope}/beta", _array(norm.bias)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().numpy()


def _write_model(file: BinaryIO, variables: Variables) -> None:
    arrays = {name: value for name, value in variables.items() if not isinstance(value, str)}
    aliases = {name: value for name, value in variables.items() if isinstance(value, str)}
    file.write(struct.pack("<I", BINARY_VERSION) + _name(KIND) + struct.pack("<II", REVISION, len(arrays)))
    for name, array in arrays.items():
        sizes = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        file.write(_name(name) + sizes + struct.pack("<BI", TYPES[array.dtype], array.nbytes))
        file.write(array.astype(array.dtype.newbyteorder("<")).tobytes())
    file.write(struct.pack("<I", len(aliases)))
    for alias, name in aliases.items():
        file.write(_name(alias) + _name(name))


def _name(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode("ascii") + b"\0"


def opened(folder: Path, config: ModelConfig, tokenizers: TokenizerPair) -> Runtime:
    import ctranslate2

    engine = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=torch.get_num_threads())
    symbols = vocabulary(tokenizers.source, config.source_vocab_size)
    target_symbols = vocabulary(tokenizers.target, config.target_vocab_size)

    def log_probs(source: Tensor, chosen: Tensor) -> Tensor:
        found = engine.score_batch(
            [[symbols[number] for number in ids if number not in (EOS, config.pad_id)] for ids in source.tolist()],
            [[target_symbols[number] for number in ids] for ids in chosen.tolist()],
        )
        return torch.tensor([score.log_probs for score in found])[:, : chosen.shape[1]]  # without the end's

    return log_probs
