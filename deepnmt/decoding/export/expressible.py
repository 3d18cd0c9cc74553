"""Checks whether a format can express a model, before anything is written."""

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from itertools import chain
from typing import Any

from deepnmt.data.sentencepiece_rules import SENTENCEPIECE
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.errors import InputError
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.norms import EPS

# Settings that every format supports, or that only concern training; any other is refused.
KNOWN: dict[type, set[str]] = {
    ModelConfig: {"source_vocab_size", "target_vocab_size", "norm", "norm_kind", "encoder", "decoder"}
    | {"share_embeddings", "scale_embeddings", "tie_output", "output_bias", "start_id", "pad_id", "activation"}
    | {"positions", "max_positions", "first_position", "dropout", "attention_dropout", "ffn_dropout"},
    StackConfig: {"num_layers", "dim", "ffn_dim", "num_heads", "connection", "sublayer"}
    | {"layer_dropout", "sublayer_dropout", "norm_eps"},
}
LARGEST_EPS = 2.0  # times the usual one: a folded DeepNorm has at most that, which makes no difference but rounding


def refuse(name: str, *obstacles: Iterable[str]) -> None:
    """Raise if there are any."""
    if found := list(chain(*obstacles)):
        raise InputError(f"this model cannot be exported to {name}: {'; '.join(found)}")


def other_settings(config: ModelConfig) -> Iterator[str]:
    """An obstacle for each setting that differs from its default and is not supported."""
    for prefix, part in (("", config), ("encoder.", config.encoder), ("decoder.", config.decoder)):
        for setting in fields(part):
            value = getattr(part, setting.name)
            if setting.name not in KNOWN[type(part)] and value != _default(setting):
                yield f"it does not support {prefix}{setting.name} = {value!r}"
    for side, stack in config.stacks.items():
        if (stack.norm_eps or 0.0) > LARGEST_EPS * EPS[config.norm_kind]:
            yield f"it does not support {side}.norm_eps = {stack.norm_eps}"
    if config.positions in ("relative", "rotary"):
        yield f"it does not support positions = {config.positions!r} (export it --to onnx)"


def mixed_layers(config: ModelConfig) -> Iterator[str]:
    """An obstacle if a stack passes on more than the last layer's output."""
    kinds = {side: stack.connection.kind for side, stack in config.stacks.items()}
    mixed = [f"{side}.connection = {kind}" for side, kind in kinds.items() if kind != "residual"]
    are_mixtures = all(CONNECTIONS[kind].is_mixture for kind in kinds.values())
    others = "--to onnx or --to huggingface" if are_mixtures else "--to onnx"
    if mixed:
        yield (
            f"it supports only residual connections, but this model has {' and '.join(mixed)} (export it {others}, "
            "or train a model with connection = residual)"
        )


def odd_sublayers(config: ModelConfig) -> Iterator[str]:
    """An obstacle for each stack that is neither pre-norm nor post-norm."""
    for side, stack in config.stacks.items():
        kind = config.sublayer_of(stack).kind
        if kind not in ("pre", "post"):
            yield f"it does not support {side}.sublayer = {kind} (export it --to onnx, or train with pre or post)"


def unlike_sentencepiece(tokenizers: TokenizerPair) -> Iterator[str]:
    """An obstacle for each kind of text processing that SentencePiece alone cannot do."""
    for side, tokenizer in tokenizers.sides.items():
        if tokenizer.preprocessor.pretokenizer != "none":
            yield (
                f"it has no pretokenizer, but the {side} has {tokenizer.preprocessor.pretokenizer} (export --to onnx "
                "or --to ctranslate2 and split the words yourself, or prepare the text with --pretokenizer none)"
            )
        if not isinstance(tokenizer.subwords, SENTENCEPIECE):
            yield f"it reads only SentencePiece models, but the {side} has {tokenizer.subwords.kind} codes"
        if tokenizer.languages:
            count, of, others = len(tokenizer.languages.tags), tokenizer.languages.of, "--to onnx or --to ctranslate2"
            yield f"it has no language symbols, but this model has {count} {of} languages (export {others})"


def _default(setting: Any) -> Any:
    return setting.default if setting.default_factory is MISSING else setting.default_factory()
