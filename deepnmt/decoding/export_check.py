"""Runs an exported model in onnxruntime and compares it with the model it was exported from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepnmt.data.vocabulary import EOS, UNK
from deepnmt.errors import RunError
from deepnmt.model.config import ModelConfig
from deepnmt.model.transformer import Transformer

ENCODER, DECODER = "encoder.onnx", "decoder_step.onnx"
TOLERANCE = 1e-4  # on a logit
TIE = 1e-5  # two logits of the model this close are the same but for rounding, so either may be the largest
BATCH_SIZES = (1, 2, 5)
MAX_LENGTHS = (1, 4, 24)
EXTRA_STEPS = 8  # a translation may be this much longer than its source

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Agreement:
    """How much was compared, and the largest difference of a logit."""

    sentences: int
    positions: int
    max_difference: float


class ExportedModel:
    """The two graphs of a folder. Keys and values pass through as arrays by name."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self._encoder, self._step = (
            onnxruntime.InferenceSession(folder / name, options, providers=["CPUExecutionProvider"])
            for name in (ENCODER, DECODER)
        )

    def encode(self, source: np.ndarray) -> Arrays:
        """source: (batch, source length) ids, padded at the end -> what every step is given besides its past."""
        names = [output.name for output in self._encoder.get_outputs()]
        return dict(zip(names, self._encoder.run(None, {"source": source}), strict=True))

    def start(self, batch: int) -> Arrays:
        """The past before the first step."""
        inputs = [given for given in self._step.get_inputs() if given.name.startswith("past_")]
        return {given.name: np.zeros((batch, 0, *given.shape[2:]), np.float32) for given in inputs}

    def step(self, tokens: np.ndarray, memory: Arrays, past: Arrays) -> tuple[np.ndarray, Arrays]:
        """tokens: (batch,) -> logits (batch, vocabulary) of the next position, and the grown past."""
        logits, *grown = self._step.run(None, {"tokens": tokens, **memory, **past})
        return logits, dict(zip(past, grown, strict=True))


def random_sources(config: ModelConfig) -> list[list[int]]:
    """Sentences of all kinds of lengths, always the same ones."""
    draw = np.random.default_rng(0)
    lengths = [length for longest in MAX_LENGTHS for length in draw.integers(0, longest, sum(BATCH_SIZES))]
    return [[*draw.integers(UNK, config.source_vocab_size, length).tolist(), EOS] for length in lengths]


@torch.inference_mode()
def compare(model: Transformer, exported: ExportedModel, sources: Sequence[list[int]]) -> Agreement:
    """Decode greedily with both, side by side, each with a past of its own; raise RunError where they part.

    sources: ids with their end. They are decoded in batches of several sizes.
    """
    limit = model.config.max_positions if model.config.positions == "learned" else None
    sentences, positions, max_difference = 0, 0, 0.0
    for batch in _batches([ids[:limit] for ids in sources]):
        sentences += len(batch)
        for difference in _decode_both(model, exported, _padded(batch, model.config.pad_id), limit):
            positions += len(batch)
            max_difference = max(max_difference, difference)
    return Agreement(sentences, positions, max_difference)


def _decode_both(model: Transformer, exported: ExportedModel, source: Tensor, limit: int | None) -> Iterator[float]:
    """The difference of the logits at each step."""
    cache = model.start(model.encode(source))
    memory, past = exported.encode(source.numpy()), exported.start(len(source))
    tokens = torch.full((len(source),), EOS)
    steps = source.shape[1] + EXTRA_STEPS
    for step in range(1, 1 + (steps if limit is None else min(steps, limit))):
        expected, cache = model.step(tokens, cache)
        logits, past = exported.step(tokens.numpy(), memory, past)
        found = torch.from_numpy(logits)
        where = f"at step {step} of a batch of {len(source)} sentences of up to {source.shape[1]} tokens"
        yield _difference(expected, found, where)
        tokens = expected.argmax(1)


def _difference(expected: Tensor, found: Tensor, where: str) -> float:
    if found.shape != expected.shape:
        raise RunError(f"nothing is exported: {where} ONNX has logits {[*found.shape]}, the model {[*expected.shape]}")
    difference = float((found - expected).abs().max())
    if not difference <= TOLERANCE:  # or not a number
        raise RunError(
            f"nothing is exported: {where} a logit of the ONNX graph differs from the model's by {difference:.1e}, "
            f"which is more than {TOLERANCE:.0e}"
        )
    best, chosen = expected.amax(1), expected.gather(1, found.argmax(1, keepdim=True)).squeeze(1)
    if bool((best - chosen > TIE).any()):
        raise RunError(f"nothing is exported: {where} the ONNX graph chooses another token than the model")
    return difference


def _batches(sources: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    start, turn = 0, 0
    while start < len(sources):
        size = BATCH_SIZES[turn % len(BATCH_SIZES)]
        yield list(sources[start : start + size])
        start, turn = start + size, turn + 1


def _padded(sentences: list[list[int]], pad_id: int) -> Tensor:
    width = max(map(len, sentences))
    return torch.tensor([ids + [pad_id] * (width - len(ids)) for ids in sentences])
