"""A model as two ONNX graphs, the encoder and one decoder step, with everything needed to translate.

Running them needs onnxruntime and a tokeniser, but neither torch nor deepnmt; docs/export.md shows how.
"""

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepnmt.data.sentence_pieces import SentencePieces
from deepnmt.data.tokenizer import Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import BOS, EOS, PAD, UNK
from deepnmt.decoding.export.comparison import Runtime, Tell
from deepnmt.errors import RunError
from deepnmt.files import write_json
from deepnmt.model.attention import KeysValues
from deepnmt.model.cache import Cache, joined
from deepnmt.model.config import ModelConfig
from deepnmt.model.transformer import Transformer

NAME, RUNS_IN = "ONNX", "onnxruntime"
NEEDS: tuple[str, ...] = ("onnx", "onnxruntime", "onnxscript")
ENCODER, DECODER = "encoder.onnx", "decoder_step.onnx"


def check(config: ModelConfig, tokenizers: TokenizerPair) -> None:
    """Every model can be written."""


def write(model: Transformer, tokenizers: TokenizerPair, folder: Path, tell: Tell) -> dict[str, Any]:
    num_layers = model.config.encoder.num_layers + model.config.decoder.num_layers
    tell(f"tracing {num_layers} layers, some seconds each")
    write_graphs(model, folder)
    for side, tokenizer in tokenizers.sides.items():
        _write_tokenizer(folder, side, tokenizer)
    return _description(model, tokenizers)


def opened(folder: Path, config: ModelConfig, tokenizers: TokenizerPair) -> Runtime:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    encoder, step = (
        onnxruntime.InferenceSession(folder / name, options, providers=["CPUExecutionProvider"])
        for name in (ENCODER, DECODER)
    )
    memory_names = [output.name for output in encoder.get_outputs()]
    head_shapes = {given.name: given.shape[2:] for given in step.get_inputs() if given.name.startswith("past_")}

    def logits(source: Tensor, chosen: Tensor) -> Tensor:
        memory = dict(zip(memory_names, encoder.run(None, {"source": source.numpy()}), strict=True))
        past = {name: np.zeros((len(source), 0, *shape), np.float32) for name, shape in head_shapes.items()}
        found = []
        for tokens in (torch.full((len(source),), EOS), *chosen.T[:-1]):
            result, *grown = step.run(None, {"tokens": tokens.numpy(), **memory, **past})
            past = dict(zip(past, grown, strict=True))
            found.append(torch.from_numpy(result))
        return torch.stack(found, 1)

    return logits


class EncoderGraph(nn.Module):
    """Source ids to the keys and values for each decoder layer, which are the same at every step."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        memories = self.model.project_memories(self.model.encode(source))
        return source == self.model.config.pad_id, *_flat(memories)


class DecoderStepGraph(nn.Module):
    """One token per sentence, with the keys and values before it, to the logits of the next token."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, padding: Tensor, memory: list[Tensor], past: list[Tensor]) -> tuple[Tensor, ...]:
        batch, length = past[0].shape[:2]
        mask = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)[:, None, None, :]
        lineage = torch.zeros(batch, 1, length)
        places = torch.arange(length).expand(batch, 1, -1) if self.model.is_relative else None
        blocks = [[layer] for layer in _in_slots(past)]
        cache = Cache(blocks, lineage, _in_slots(memory), mask, length=length, places=places)
        logits, grown = self.model.step(tokens, cache)
        return logits, *(part.transpose(1, 2) for part in _flat(map(joined, grown.past)))


def write_graphs(model: Transformer, folder: Path) -> None:
    """Write encoder.onnx and decoder_step.onnx, with dynamic batch size, source length and past length."""
    model = _untied(model)
    stack = model.config.decoder
    memory_names, past_names, grown_names = (_names(prefix, stack.num_layers) for prefix in ("memory", "past", "grown"))
    # The sizes of the example must differ and not be 0 or 1, which the tracer treats as constants.
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
    head_shape = (stack.num_heads, stack.head_dim)
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
                # A weight contains its shape; onnxruntime's quantiser would not update a second copy.
                weight.shape = weight.type = None
            program.save(path)
    except torch.onnx.OnnxExporterError as error:
        raise RunError(f"torch cannot write {path.name}: {str(error.__cause__ or error).splitlines()[0]}") from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the exporter's warnings about itself and about torchvision."""
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
    """A copy with a separate output projection, since onnxruntime cannot quantise one that is also a table."""
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
    """Write the tokeniser for deepnmt, and for others the symbols by id and the SentencePiece model."""
    tokenizer.save(folder / f"tokenizer.{side}.json")
    write_json(folder / f"vocabulary.{side}.json", tokenizer.pieces)
    if isinstance(tokenizer.subwords, SentencePieces):
        (folder / f"{side}.model").write_bytes(tokenizer.subwords.model)


def _description(model: Transformer, tokenizers: TokenizerPair) -> dict[str, Any]:
    config, stack = model.config, model.config.decoder
    return {
        "ids": {"bos": BOS, "pad": config.pad_id, "eos": EOS, "unk": UNK},
        "past": {"layers": stack.num_layers, "heads": stack.num_heads, "head_dim": stack.head_dim},
        "max_positions": config.position_limit,
        "tokenizers": {
            side: {"subwords": tokenizer.subwords.kind, "tags": list(tokenizer.tags)} | asdict(tokenizer.preprocessor)
            for side, tokenizer in tokenizers.sides.items()
        },
    }
