"""A model as two ONNX graphs, the encoder and one step of the decoder, with all that is needed to translate with them.

Whoever runs them needs onnxruntime and a tokeniser, no torch and nothing of ours; docs/export.md shows how.
"""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepnmt import __version__
from deepnmt.data.sentence_pieces import SentencePieces
from deepnmt.data.tokenizer import Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import BOS, EOS, PAD, UNK
from deepnmt.decoding.export_check import DECODER, ENCODER, Agreement, ExportedModel, compare, random_sources
from deepnmt.decoding.translator import check_vocabularies
from deepnmt.errors import InputError, RunError
from deepnmt.files import replacing, sha256, write_json
from deepnmt.model.attention import KeysValues
from deepnmt.model.cache import Cache
from deepnmt.model.layers import DecoderLayer
from deepnmt.model.storage import WEIGHTS, load_model
from deepnmt.model.transformer import Transformer
from deepnmt.settings import to_table

EXPORT_FORMAT = 1
DESCRIPTION = "export.json"
PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def export(
    folder: Path, out: Path, texts: Sequence[str] = (), tell: Callable[[str], None] = lambda text: None
) -> Agreement:
    """Write the MODEL of `folder` to the folder `out`, if it agrees with the MODEL.

    They are compared on random sources and on `texts`. `tell` reports progress.
    """
    check_packages()
    model, tokenizers = load_model(folder), TokenizerPair.load(folder)
    check_vocabularies(folder, model.config, tokenizers)
    given = [[*ids, EOS] for ids in tokenizers.source.encode_batch(texts) if ids]
    with replacing(out) as aside:
        aside.mkdir()
        num_layers = model.config.encoder.num_layers + model.config.decoder.num_layers
        tell(f"tracing {num_layers} layers, some seconds each")
        write_graphs(model, aside)
        tell("comparing what was written with the model")
        agreement = compare(model, ExportedModel(aside), [*random_sources(model.config), *given])
        for side, tokenizer in (("source", tokenizers.source), ("target", tokenizers.target)):
            _write_tokenizer(aside, side, tokenizer)
        origin = {"weights_sha256": sha256(folder / WEIGHTS), "checked": asdict(agreement)}
        write_json(aside / DESCRIPTION, _description(model, tokenizers) | origin)
    return agreement


def check_packages() -> None:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(f"deepnmt export needs {' and '.join(missing)}: pip install 'deepnmt[onnx]'")


class EncoderGraph(nn.Module):
    """Source ids to the keys and values that each decoder layer looks at: they are the same at every step."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        memories = self.model.encode(source).memories
        layers = (layer for layer in self.model.decoder.layers if isinstance(layer, DecoderLayer))
        projected = (layer.cross_attention.project(memory) for layer, memory in zip(layers, memories, strict=True))
        return source == self.model.config.pad_id, *_flat(projected)


class DecoderStepGraph(nn.Module):
    """One token of each sentence, and the keys and values before it, to the scores of the next token."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, padding: Tensor, memory: list[Tensor], past: list[Tensor]) -> tuple[Tensor, ...]:
        batch, length = past[0].shape[:2]
        mask = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)[:, None, None, :]
        lineage = torch.zeros(batch, 1, length)
        cache = Cache(_in_slots(past), lineage, _in_slots(memory), mask, filled=length, length=length)
        logits, grown = self.model.step(tokens, cache)
        return logits, *(part.transpose(1, 2) for part in _flat(grown.past))


def write_graphs(model: Transformer, folder: Path) -> None:
    """encoder.onnx and decoder_step.onnx; batch, source length and past length are free in both."""
    model = _untied(model)
    stack = model.config.decoder
    memory_names, past_names, grown_names = (_names(prefix, stack.num_layers) for prefix in ("memory", "past", "grown"))
    # Sizes of an example must differ and be neither 0 nor 1, which the tracer takes for constants.
    batch, source_length, past_length = 2, 3, 4
    ids = torch.full((batch, source_length), EOS)
    free_source, free_past = {0: "batch", 1: "source_length"}, {0: "batch", 1: "past_length"}
    _write(
        EncoderGraph(model),
        (ids,),
        folder / ENCODER,
        input_names=["source"],
        output_names=["padding", *memory_names],
        dynamic_shapes=(free_source,),
    )
    head_shape = (stack.num_heads, stack.dim // stack.num_heads)
    memory = [torch.zeros(batch, source_length, *head_shape) for _ in memory_names]
    past = [torch.zeros(batch, past_length, *head_shape) for _ in past_names]
    _write(
        DecoderStepGraph(model),
        (ids[:, 0], ids == PAD, memory, past),
        folder / DECODER,
        input_names=["tokens", "padding", *memory_names, *past_names],
        output_names=["logits", *grown_names],
        dynamic_shapes=({0: "batch"}, free_source, [free_source] * len(memory), [free_past] * len(past)),
    )


def _write(graph: nn.Module, example: tuple[Any, ...], path: Path, **names: Any) -> None:
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    try:
        with _quietly(), torch.no_grad():
            program = torch.onnx.export(graph.eval(), example, dynamo=True, verbose=False, **names)
            assert program is not None
            ClearMetadataAndDocStringPass()(program.model)  # stack traces, with the paths of this machine
            for weight in program.model.graph.initializers.values():
                # A weight has its shape in itself. Said twice, onnxruntime's quantiser changes it in one place only.
                weight.shape = weight.type = None
            program.save(path)
    except torch.onnx.OnnxExporterError as error:
        raise RunError(f"torch cannot write {path.name}: {str(error.__cause__ or error).splitlines()[0]}") from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's remarks about itself and about torchvision, which we do not use."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            # A warning about every second axis of one name, although the name is meant to be shared.
            warnings.filterwarnings("ignore", r"# The axis name: (\w+) will not be used, .* another axis: \1\.$")
            yield
    finally:
        registration.setLevel(level)


def _untied(model: Transformer) -> Transformer:
    """A copy whose output projection is a matrix of its own: onnxruntime cannot quantise one that is also a table."""
    copy = deepcopy(model).requires_grad_(False)
    if copy.output is None:
        copy.output = nn.Embedding.from_pretrained(copy.output_weight.clone())
    return copy


def _names(prefix: str, num_layers: int) -> list[str]:
    return [f"{prefix}_{part}_{layer}" for layer in range(num_layers) for part in ("keys", "values")]


def _flat(layers: Iterable[KeysValues]) -> list[Tensor]:
    return [part for layer in layers for part in layer]


def _in_slots(parts: list[Tensor]) -> list[KeysValues]:
    """Keys and values (batch, positions, heads, head_dim) in turn, as a cache has them."""
    heads_first = [part.transpose(1, 2) for part in parts]
    return [KeysValues(*pair) for pair in zip(heads_first[::2], heads_first[1::2], strict=True)]


def _write_tokenizer(folder: Path, side: str, tokenizer: Tokenizer) -> None:
    """As deepnmt reads it; and for everyone else the symbols by id, and the model in SentencePiece's own format."""
    tokenizer.save(folder / f"tokenizer.{side}.json")
    write_json(folder / f"vocabulary.{side}.json", tokenizer.pieces)
    if isinstance(tokenizer.subwords, SentencePieces):
        (folder / f"{side}.model").write_bytes(tokenizer.subwords.model)


def _description(model: Transformer, tokenizers: TokenizerPair) -> dict[str, Any]:
    config, stack = model.config, model.config.decoder
    sides = {side: getattr(tokenizers, side) for side in ("source", "target")}
    return {
        "format": EXPORT_FORMAT,
        "deepnmt": __version__,
        "torch": torch.__version__,
        "ids": {"bos": BOS, "pad": config.pad_id, "eos": EOS, "unk": UNK},
        "past": {"layers": stack.num_layers, "heads": stack.num_heads, "head_dim": stack.dim // stack.num_heads},
        "max_positions": config.max_positions if config.positions == "learned" else None,
        "tokenizers": {
            side: {"subwords": tokenizer.subwords.kind, "tags": list(tokenizer.tags)} | tokenizer.preprocessor.state()
            for side, tokenizer in sides.items()
        },
        "config": to_table(config),
    }
