"""From settings and a dataset to a run that is ready to train: what belongs together, put together in one place."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from deepnmt.data.batching import AnyBatch, Batch, BatchingConfig, BatchStream, PackedBatch, StreamState
from deepnmt.data.dataset import Dataset
from deepnmt.data.loader import Loader
from deepnmt.data.vocabulary import UNK
from deepnmt.errors import InputError, RunError
from deepnmt.files import write_json
from deepnmt.model.config import ModelConfig
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.storage import CONFIG, FORMAT, META, take_weights
from deepnmt.model.transformer import Transformer
from deepnmt.settings import to_table
from deepnmt.training.checkpoint import Checkpoints
from deepnmt.training.config import Precision, TrainingConfig
from deepnmt.training.curves import Curves, JsonLines, Sink, TensorBoard, WeightsAndBiases
from deepnmt.training.diagnosis import Diagnosis
from deepnmt.training.display import open_display
from deepnmt.training.distributed import World, shard
from deepnmt.training.engine import EagerEngine, Engine, Noise, Objective, zero_gradients
from deepnmt.training.folder import CHECKPOINTS, copy_tokenizers
from deepnmt.training.graph_engine import GraphEngine
from deepnmt.training.interruption import Interruption
from deepnmt.training.memory import even_share, free_memory, largest_that_fits
from deepnmt.training.optimizer import optimizer_tensors
from deepnmt.training.precision import resolve
from deepnmt.training.run import Run
from deepnmt.training.trainer import Job
from deepnmt.training.validation import Validation

GUESSING_SAMPLE = 5_000_000

MakeValidate = Callable[[Objective, Precision], Callable[[nn.Module], Validation] | None]


@dataclass(frozen=True)
class Settings:
    """The parts of a recipe that training reads."""

    model: ModelConfig
    batching: BatchingConfig
    training: TrainingConfig


def assemble(
    settings: Settings,
    dataset: Dataset,
    out: Path,
    world: World,
    interruption: Interruption,
    make_validate: MakeValidate,
    start: Path | None = None,
) -> tuple[Run, StreamState | None, Job]:
    """The run as its newest checkpoint left it, where its data stands, and all that it works with.

    Without a checkpoint the run is new: with the weights of the MODEL folder `start`, or with drawn ones.
    """
    config = settings.training
    precision = resolve(config.precision, world.device)
    checkpoints = Checkpoints(out / CHECKPOINTS, world, config, partial(describe_model, settings.model, out))
    objective = build_objective(settings, precision, world, None if checkpoints.all() else start)
    run = Run.start(objective.model, config, precision == "fp16", world.device)
    data = go_on(run, checkpoints)

    engine = build_engine(settings, objective, precision, world)
    engine.splitter = run.splitter
    optimizer_tensors(run.model, run.optimizer)  # the optimiser's memory is taken before it is tried what else fits
    job = Job(
        config=config,
        world=world,
        engine=engine,
        open_updates=partial(open_updates, settings, dataset, world),
        checkpoints=checkpoints,
        curves=open_curves(settings, out, run.step, world),
        diagnosis=Diagnosis(
            config,
            settings.model.target_vocab_size,
            guessing_nll(dataset),
            is_post_norm=settings.model.norm == "post",
            has_shortcuts=CONNECTIONS[settings.model.encoder.connection.kind].has_shortcuts,
        ),
        interruption=interruption,
        validate=make_validate(objective, precision),
    )
    return run, data, job


def build_objective(settings: Settings, precision: Precision, world: World, start: Path | None = None) -> Objective:
    """The model, initialised by the seed alone or as `start` is, and its loss; sharded over the ranks where asked."""
    config = settings.training
    torch.manual_seed(config.seed)
    model = Transformer(settings.model)
    if start is not None:
        take_weights(model, start)
    model.to(world.device)
    if config.activation_checkpointing:
        model.checkpoint_activations()
    objective = Objective(model, config.label_smoothing, settings.model.pad_id)
    if config.parallel == "fsdp" and world.size > 1:
        shard(objective, precision)
    return objective


def build_engine(settings: Settings, objective: Objective, precision: Precision, world: World) -> Engine:
    """Packed batches on a GPU are replayed from a graph; all else, and what is sharded, is computed as it comes."""
    config = settings.training
    sharded = config.parallel == "fsdp" and world.size > 1
    if world.device.type == "cuda" and settings.batching.layout == "packed" and not sharded:
        return GraphEngine(objective, config, precision, world)
    return EagerEngine(objective, config, precision, world)


def go_on(run: Run, checkpoints: Checkpoints) -> StreamState | None:
    """Bring a run to its newest checkpoint, if there is one; returns where its data stands."""
    checkpoints.clean()
    newest = checkpoints.newest()
    if newest is None:
        return None
    data = checkpoints.load(newest, run)
    if newest.name.startswith("epoch"):
        checkpoints.save(run, data)  # a kill between the two kinds of checkpoint must not lose the second
        checkpoints.finish()
    return data


def open_updates(settings: Settings, dataset: Dataset, world: World, state: StreamState | None) -> Loader:
    stream = open_stream(settings, dataset, world, state)
    if world.is_main and state is None and stream.report():
        print(f"deepnmt: {stream.report()}", file=sys.stderr)
    return Loader(stream, pin_memory=world.device.type == "cuda")


def open_stream(settings: Settings, dataset: Dataset, world: World, state: StreamState | None) -> BatchStream:
    return BatchStream.of(
        dataset,
        settings.batching,
        seed=settings.training.seed,
        tokens_per_update=settings.training.tokens_per_update,
        rank=world.rank,
        world_size=world.size,
        state=state,
    )


def open_curves(settings: Settings, out: Path, step: int, world: World) -> Curves:
    """Where the numbers of the run go on from `step`; only the main rank writes."""
    if not world.is_main:
        return Curves([])
    config = settings.training
    sinks: list[Sink] = [JsonLines(out, step)]
    if config.tensorboard:
        try:
            sinks.append(TensorBoard(out, step))
        except ImportError:
            print("deepnmt: no TensorBoard curves: pip install 'deepnmt[tensorboard]'", file=sys.stderr)
    if config.wandb_project is not None:
        sinks.append(WeightsAndBiases(out, config.wandb_project, to_table(config)))
    return Curves([*sinks, open_display(step, config.max_steps)])


def describe_model(config: ModelConfig, run_folder: Path, folder: Path, step: int) -> None:
    """What makes a checkpoint a MODEL folder besides its weights."""
    from deepnmt import __version__

    write_json(folder / CONFIG, to_table(config))
    write_json(folder / META, {"format": FORMAT, "deepnmt": __version__, "step": step})
    copy_tokenizers(run_folder, folder)


def guessing_nll(dataset: Dataset) -> float:
    """The entropy of the target's words by frequency, in nats: what a model reaches that knows nothing else."""
    counts = np.zeros(dataset.tokenizers.target.vocab_size, np.int64)
    for corpus in dataset.train.values():
        ids = corpus.sides["target"].ids[:GUESSING_SAMPLE]
        counts += np.bincount(ids, minlength=len(counts))
        counts[dataset.tokenizers.target.eos_id] += len(ids) // max(1, int(corpus.target_lengths.mean()))
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum()) if len(shares) else math.log(len(counts))


def plan_memory(settings: Settings, dataset: Dataset, world: World) -> int:
    """The largest even share of an update that fits on every rank's device, found by trying, with a fifth to spare.

    A recorded pass needs more than a plain one, by which it is tried: it has a stream with work spaces of its own.
    """
    if settings.training.parallel == "fsdp" and world.size > 1:
        raise InputError(
            'training.plan_memory tries what fits, which ranks with training.parallel = "fsdp" cannot do alone; '
            "set batching.tokens_per_batch instead"
        )
    most = -(-settings.training.tokens_per_update // world.size)
    if world.device.type != "cuda":
        return min(settings.batching.tokens_per_batch, most)
    try:
        found = _largest_batch(settings, dataset, world, most * 5 // 4 + 256)
    finally:
        free_memory(world.device)
        torch.cuda.reset_peak_memory_stats(world.device)  # what is logged is the run's own
    if found is None:
        raise RunError("not even a batch of 256 tokens fits on the device; take a smaller model")
    return even_share(most, found * 4 // 5)


def _largest_batch(settings: Settings, dataset: Dataset, world: World, most: int) -> int | None:
    """As plain torch computes it: compiled layers keep less, but to try each size with them would take minutes."""
    precision = resolve(settings.training.precision, world.device)
    objective = build_objective(settings, precision, world)
    run = Run.start(objective.model, settings.training, precision == "fp16", world.device)
    optimizer_tensors(run.model, run.optimizer)
    engine = EagerEngine(objective, settings.training, precision, world)
    layout = settings.batching.layout
    sizes = [corpus.target_lengths + 1 for corpus in dataset.train.values() if len(corpus)]
    longest = max(int(size.max()) for size in sizes)
    lengths = {int(sizes[0].mean()), min(longest, (settings.batching.max_length or longest) + 1)}

    def fits(tokens: int) -> bool:
        fitting = all(_try(engine, run, _made_up_batch(tokens, length, layout, world.device)) for length in lengths)
        return not world.any(not fitting)

    return largest_that_fits(fits, start=4096, most=most)


def _try(engine: EagerEngine, run: Run, batch: AnyBatch) -> bool:
    """Whether a batch goes through forward and backward; asks for the memory, and gives it back."""
    zero_gradients(engine.parameters)
    sums = torch.zeros(2, dtype=torch.float64, device=batch.source.device)
    fits = engine.add_up([batch], run.loss_scale.factor / batch.num_target_tokens, Noise(0), sums) is None
    free_memory(engine.world.device)
    return fits


def _made_up_batch(tokens: int, length: int, layout: str, device: torch.device) -> AnyBatch:
    """Sentences of one length, as many as there is room for."""
    rows = max(tokens // length, 1)
    ids = torch.full((rows, length), UNK, device=device)
    if layout != "packed":
        return Batch(ids, ids, ids, ids.numel(), ids.numel(), np.arange(rows))
    flat, offsets = ids.flatten(), torch.arange(rows + 1, device=device, dtype=torch.int32) * length
    return PackedBatch(flat, offsets, flat, flat, offsets, ids.numel(), ids.numel(), np.arange(rows))
