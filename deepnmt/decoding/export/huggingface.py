"""A model for transformers: a folder that AutoModelForSeq2SeqLM and AutoTokenizer open. Writing it needs no package.

Plain post-norm is a MarianMTModel, plain pre-norm an M2M100ForConditionalGeneration. Other models, such as
DLCL, use the modelling file `modeling_deepnmt.py`. The tokeniser is a MarianTokenizer in every
case: it has a SentencePiece model for each side and takes ids from a table, so they are ours.
"""

import shutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepnmt.data.sentencepiece_rules import normalising_model
from deepnmt.data.tokenizer import Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import BOS, EOS, PAD, UNK
from deepnmt.decoding.config import DecodingConfig
from deepnmt.decoding.export.comparison import Runtime, Tell, start_symbol
from deepnmt.decoding.export.expressible import odd_sublayers, other_settings, refuse, unlike_sentencepiece
from deepnmt.files import write_json
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.connections.connection import Mixture
from deepnmt.model.folding import folded, folded_config
from deepnmt.model.layers import Layer
from deepnmt.model.storage import write_tensors
from deepnmt.model.transformer import Stack, Transformer

NAME, RUNS_IN = "Hugging Face", "transformers"
NEEDS: tuple[str, ...] = ()
MODELING = Path(__file__).with_name("modeling_deepnmt.py")
MAX_POSITIONS = 1024  # of sinusoids in Marian, which stores a table; longer text is an error there

Tensors = dict[str, Tensor]


def check(config: ModelConfig, tokenizers: TokenizerPair) -> None:
    odd_connections = (
        f"its modelling file does not support {side}.connection = {stack.connection.kind} (export it --to onnx)"
        for side, stack in config.stacks.items()
        if not CONNECTIONS[stack.connection.kind].is_mixture
    )
    odd_settings = (*odd_sublayers(folded_config(config)), *other_settings(config))
    refuse(NAME, odd_connections, odd_settings, unlike_sentencepiece(tokenizers))


def write(model: Transformer, tokenizers: TokenizerPair, folder: Path, tell: Tell) -> dict[str, Any]:
    model = folded(model)
    kind = _kind(model.config)
    settings, tensors = KINDS[kind](model)
    ids = {
        "bos_token_id": BOS,
        "pad_token_id": model.config.pad_id,
        "eos_token_id": EOS,
        "decoder_start_token_id": start_symbol(model.config),
        "forced_eos_token_id": None,
    }
    write_json(folder / "config.json", settings | ids | {"is_encoder_decoder": True, "dtype": "float32"})
    search = {
        "num_beams": DecodingConfig.beam,
        "length_penalty": DecodingConfig.length_penalty,
        "early_stopping": True,
        "max_new_tokens": min(256, model.config.position_limit or 256),
        "suppress_tokens": [BOS, PAD, UNK],
    }
    write_json(folder / "generation_config.json", ids | search)
    # Copies: two names of one tensor, or two parts of one, cannot be stored.
    write_tensors(folder / "model.safetensors", {name: tensor.detach().clone() for name, tensor in tensors.items()})
    if kind == "deepnmt":
        shutil.copyfile(MODELING, folder / MODELING.name)
    _write_tokenizers(tokenizers, folder)
    return {"class": settings["architectures"][0]}


def _kind(config: ModelConfig) -> str:
    """The transformers class, or our modelling file, for the model."""
    sublayers = {config.sublayer_of(stack).kind for stack in config.stacks.values()}
    connections = {stack.connection.kind for stack in config.stacks.values()}
    plain = (
        connections == {"residual"}
        and config.norm_kind == "layer"
        and config.encoder.dim == config.decoder.dim
        and config.activation != "swiglu"
    )
    if plain and sublayers == {"post"}:
        return "marian"
    like_fairseq = config.positions == "sinusoidal" and config.pad_id == 1 and config.position_offset == 2
    one_size = config.source_vocab_size == config.target_vocab_size
    if plain and sublayers == {"pre"} and like_fairseq and one_size and not config.output_bias:
        return "m2m_100"
    return "deepnmt"


def _marian(model: Transformer) -> tuple[dict[str, Any], Tensors]:
    config = model.config
    shared = config.share_embeddings and config.tie_output
    settings = _bart_settings(config) | {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "decoder_vocab_size": config.target_vocab_size,
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": config.tie_output,
        "max_position_embeddings": config.position_limit or MAX_POSITIONS,
    }
    tensors = dict(_bart_layers(model))
    places = torch.arange(config.position_limit or MAX_POSITIONS)
    for side, embedding in (("encoder", model.source_embedding), ("decoder", model.target_embedding)):
        assert embedding.positions is not None
        tensors[f"model.{side}.embed_positions.weight"] = embedding.positions(places + embedding.first_position)
        if not shared:
            tensors[f"model.{side}.embed_tokens.weight"] = embedding.tokens.weight
    if shared:
        tensors["model.shared.weight"] = model.source_embedding.tokens.weight
    if not config.tie_output:
        tensors["lm_head.weight"] = model.output_weight
    bias = model.output_bias
    tensors["final_logits_bias"] = torch.zeros(1, config.target_vocab_size) if bias is None else bias[None]
    return settings, tensors


def _m2m100(model: Transformer) -> tuple[dict[str, Any], Tensors]:
    config = model.config
    shared = config.share_embeddings and config.tie_output
    settings = _bart_settings(config) | {
        "architectures": ["M2M100ForConditionalGeneration"],
        "model_type": "m2m_100",
        "tie_word_embeddings": shared,
        "max_position_embeddings": MAX_POSITIONS,
    }
    tensors = dict(_bart_layers(model))
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        tensors |= _named(f"model.{side}.layer_norm", stack.final_norm)
    tensors["model.shared.weight"] = model.source_embedding.tokens.weight
    if not shared:
        tensors["model.encoder.embed_tokens.weight"] = model.source_embedding.tokens.weight
        tensors["model.decoder.embed_tokens.weight"] = model.target_embedding.tokens.weight
        tensors["lm_head.weight"] = model.output_weight
    return settings, tensors


def _deepnmt(model: Transformer) -> tuple[dict[str, Any], Tensors]:
    config = model.config
    name = MODELING.stem
    settings = {
        "architectures": ["DeepnmtForConditionalGeneration"],
        "model_type": "deepnmt",
        "auto_map": {
            "AutoConfig": f"{name}.DeepnmtConfig",
            "AutoModelForSeq2SeqLM": f"{name}.DeepnmtForConditionalGeneration",
        },
        "vocab_size": config.source_vocab_size,
        "decoder_vocab_size": config.target_vocab_size,
        "encoder_stack": _stack_settings(config, config.encoder, model.encoder),
        "decoder_stack": _stack_settings(config, config.decoder, model.decoder),
        "first_position": model.source_embedding.first_position,
        "tie_word_embeddings": config.share_embeddings,
    }
    same = ("norm_kind", "activation", "positions", "max_positions", "scale_embeddings", "share_embeddings")
    settings |= {name: getattr(config, name) for name in (*same, "tie_output", "output_bias", "dropout")}
    tensors: Tensors = {
        _renamed(name): tensor for name, tensor in model.named_parameters() if ".connection." not in name
    }
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        mixture = _mixture(stack)
        if mixture.matrix is not None:
            tensors[f"{side}.connection.weight"] = mixture.matrix
        for number, norm in enumerate(mixture.norms):
            tensors |= _named(f"{side}.connection.norms.{number}", norm)
    return settings, tensors


KINDS = {"marian": _marian, "m2m_100": _m2m100, "deepnmt": _deepnmt}


def _bart_settings(config: ModelConfig) -> dict[str, Any]:
    """The settings that the Bart-like classes share."""
    sizes: dict[str, Any] = {}
    for side, stack in config.stacks.items():
        sizes |= {
            f"{side}_layers": stack.num_layers,
            f"{side}_attention_heads": stack.num_heads,
            f"{side}_ffn_dim": stack.ffn_dim,
            f"{side}_layerdrop": 0.0,
        }
    return sizes | {
        "vocab_size": config.source_vocab_size,
        "d_model": config.encoder.dim,
        "activation_function": config.activation,
        "scale_embedding": config.scale_embeddings,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.ffn_dropout,
    }


def _bart_layers(model: Transformer) -> Iterator[tuple[str, Tensor]]:
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, layer in enumerate(stack.layers):
            assert isinstance(layer, Layer)
            scope = f"model.{side}.layers.{number}"
            yield from _attention(f"{scope}.self_attn", [layer.attention.input], layer.attention.output)
            yield from _named(f"{scope}.self_attn_layer_norm", layer.around_attention.norm).items()
            if side == "decoder":
                cross = layer.cross_attention
                yield from _attention(f"{scope}.encoder_attn", [cross.query, cross.key_value], cross.output)
                yield from _named(f"{scope}.encoder_attn_layer_norm", layer.around_cross_attention.norm).items()
            yield from _named(f"{scope}.fc1", layer.feed_forward.expand).items()
            yield from _named(f"{scope}.fc2", layer.feed_forward.contract).items()
            yield from _named(f"{scope}.final_layer_norm", layer.around_feed_forward.norm).items()


def _attention(scope: str, packed: list[nn.Linear], output: nn.Linear) -> Iterator[tuple[str, Tensor]]:
    """Split packed projections into queries, keys and values."""
    dim = output.out_features
    for kind in ("weight", "bias"):
        parts = [part for layer in packed for part in getattr(layer, kind).split(dim)]
        for name, part in zip("qkv", parts, strict=True):
            yield f"{scope}.{name}_proj.{kind}", part
    yield from _named(f"{scope}.out_proj", output).items()


def _named(scope: str, module: nn.Module) -> Tensors:
    return {f"{scope}.{name}": parameter for name, parameter in module.named_parameters()}


def _stack_settings(config: ModelConfig, settings: StackConfig, stack: Stack) -> dict[str, Any]:
    connection: dict[str, Any] | None = None
    mixture = _mixture(stack)
    if mixture.matrix is not None:
        norms = [not isinstance(norm, nn.Identity) for norm in mixture.norms]
        connection = {"groups": mixture.matrix.shape[2], "norms": norms}
    return {
        "layers": settings.num_layers,
        "dim": settings.dim,
        "ffn_dim": settings.ffn_dim,
        "heads": settings.num_heads,
        "norm": config.sublayer_of(settings).kind,
        "connection": connection,
    }


def _mixture(stack: Stack) -> Mixture:
    mixture = stack.connection.mixture()
    assert mixture is not None, "refused by `check`"
    return mixture


def _renamed(name: str) -> str:
    """A parameter of ours in the modelling file."""
    for ours, theirs in (
        ("source_embedding.", "encoder.embedding."),
        ("target_embedding.", "decoder.embedding."),
        (".feed_forward.", "."),
        (".around_attention.norm.", ".attention_norm."),
        (".around_cross_attention.norm.", ".cross_attention_norm."),
        (".around_feed_forward.norm.", ".feed_forward_norm."),
    ):
        name = name.replace(ours, theirs)
    return name


def _write_tokenizers(tokenizers: TokenizerPair, folder: Path) -> None:
    for side, tokenizer in tokenizers.sides.items():
        (folder / f"{side}.spm").write_bytes(normalising_model(tokenizer))
    write_json(folder / "vocab.json", _ids(tokenizers.source))
    if not tokenizers.shared:
        write_json(folder / "target_vocab.json", _ids(tokenizers.target))
    special = {f"{name}_token": tokenizers.source.pieces[number] for name, number in (("unk", UNK), ("eos", EOS))}
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "pad_token": tokenizers.source.pieces[PAD],
        "source_lang": tokenizers.source.language,
        "target_lang": tokenizers.target.language,
        "separate_vocabs": not tokenizers.shared,
        "split_special_tokens": True,  # "</s>" in a text is text
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    write_json(folder / "tokenizer_config.json", special | settings)


def _ids(tokenizer: Tokenizer) -> Mapping[str, int]:
    return {piece: number for number, piece in enumerate(tokenizer.pieces)}


def opened(folder: Path, config: ModelConfig, tokenizers: TokenizerPair) -> Runtime:
    from transformers import AutoModelForSeq2SeqLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    opener: Any = AutoModelForSeq2SeqLM
    if (folder / MODELING.name).exists():  # use our file; transformers would copy it to its cache
        opener = import_module("deepnmt.decoding.export.modeling_deepnmt").DeepnmtForConditionalGeneration
    exported = opener.from_pretrained(folder).eval()

    def logits(source: Tensor, chosen: Tensor) -> Tensor:
        target = torch.cat([torch.full((len(source), 1), start_symbol(config)), chosen[:, :-1]], dim=1)
        found: Tensor = exported(source, attention_mask=source != config.pad_id, decoder_input_ids=target).logits
        return found

    return logits
