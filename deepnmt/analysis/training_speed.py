"""Training speed: whole optimiser steps over batches with realistic sentence lengths."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from deepnmt.analysis.config import TrainingTrial
from deepnmt.analysis.size import measure
from deepnmt.config import Recipe
from deepnmt.data.batching import BatchingConfig, BatchStream
from deepnmt.data.dataset import Corpus, Side
from deepnmt.data.loader import Loader
from deepnmt.model.config import ModelConfig
from deepnmt.training.assembly import build_training
from deepnmt.training.config import TrainingConfig
from deepnmt.training.distributed import World
from deepnmt.training.memory import free_memory
from deepnmt.training.trainer import step as take_step

Lengths = tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]  # of source and target sentences, eos not counted


@dataclass(frozen=True, kw_only=True)
class TrainingSpeed:
    engine: str
    parameters: int
    tokens_per_batch: int
    tokens_per_second: float  # real target tokens, eos counted
    source_tokens_per_second: float
    milliseconds_per_step: float
    tflops: float  # of the model's matrix products, padding not counted
    memory_gib: float  # on a GPU
    padding: float  # of both sides
    first_step_seconds: float  # compilation and recording


def measure_training(
    model: ModelConfig,
    training: TrainingConfig,
    lengths: Lengths,
    trial: TrainingTrial,
    *,
    device: str,
    when_warm: Callable[[], None] = lambda: None,
) -> TrainingSpeed:
    """Use CUDA graphs on packed batches on a GPU, unless `trial.eager`; else plain torch on padded batches.

    `when_warm` is called before the timed steps; it may wait, for example until the device is idle.
    """
    on_gpu = torch.device(device).type == "cuda"
    graphed = on_gpu and not trial.eager
    free_memory(torch.device(device))
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    batching = BatchingConfig(tokens_per_batch=trial.tokens, layout="packed" if graphed else "padded")
    recipe = Recipe(model=model, training=training, batching=batching)
    world = World(0, 1, torch.device(device))
    state, engine = build_training(recipe, world, recipe.model)

    corpora = {"random": random_corpus(lengths, model)}
    stream = BatchStream(corpora, batching, seed=training.seed, tokens_per_update=trial.tokens)
    padding = sum(stream.padding()) / 2
    targets = sources = 0
    begun = started = time.perf_counter()
    first_step_seconds = 0.0
    with Loader(stream, pin_memory=on_gpu) as updates:
        for step in range(trial.warm_ups + trial.steps):
            if step == trial.warm_ups:
                wait_for(device)
                when_warm()
                targets = sources = 0
                started = time.perf_counter()
            update = next(updates)
            take_step(state, update, engine)
            targets += update.num_target_tokens
            sources += update.num_source_tokens
            if step == 0:
                wait_for(device)
                first_step_seconds = time.perf_counter() - begun
        wait_for(device)
        seconds = time.perf_counter() - started
    return TrainingSpeed(
        engine=type(engine).__name__,
        parameters=sum(p.numel() for p in state.model.parameters()),
        tokens_per_batch=trial.tokens,
        tokens_per_second=targets / seconds,
        source_tokens_per_second=sources / seconds,
        milliseconds_per_step=1000 * seconds / trial.steps,
        tflops=training_flops(model, sources, targets) / seconds / 1e12,
        memory_gib=torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0,
        padding=padding,
        first_step_seconds=first_step_seconds,
    )


def training_flops(model: ModelConfig, sources: int, targets: int) -> float:
    """FLOPs of the matrix products, forward and backward (twice as many); without attention scores."""
    whole = 0.0
    for part in measure(model):
        of_source = float(part.stack == "encoder")
        if part.name == "cross-attention":  # its keys and values are of source tokens
            of_source = model.encoder.dim / (model.encoder.dim + model.decoder.dim)
        whole += part.flops * (of_source * sources + (1 - of_source) * targets)
    return 3 * whole


def random_corpus(lengths: Lengths, model: ModelConfig) -> Corpus:
    """Random ids in sentences of these lengths."""
    sizes, random = (model.source_vocab_size, model.target_vocab_size), np.random.default_rng(1)
    ids = (random.integers(4, size, int(side.sum())) for side, size in zip(lengths, sizes, strict=True))
    return Corpus(*map(Side.joined, ids, lengths))


def typical_lengths(count: int = 50_000) -> Lengths:
    """Lengths in subwords like those of Europarl: log-normal, with the target close to the source."""
    random = np.random.default_rng(1)
    source = np.clip(random.lognormal(3.15, 0.6, count), 3, 100).astype(np.int64)
    target = np.clip(source * random.lognormal(0.0, 0.2, count), 3, 100).astype(np.int64)
    return source, target


def wait_for(device: str) -> None:
    """Wait until the device is idle."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
