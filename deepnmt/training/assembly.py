"""From a recipe and a dataset to a run that is ready to train: the one place that puts its parts together."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from deepnmt.config import Recipe, load_recipe
from deepnmt.data.batching import BatchStream, StreamState
from deepnmt.data.collate import AnyBatch, pack, pad
from deepnmt.data.dataset import Dataset, Side
from deepnmt.data.epoch_plan import BatchShape
from deepnmt.data.loader import Loader
from deepnmt.data.vocabulary import UNK
from deepnmt.errors import InputError, RunError
from deepnmt.files import read_json
from deepnmt.model.adapters import add_adapters
from deepnmt.model.config import ModelConfig
from deepnmt.model.growing import with_encoder_depth
from deepnmt.model.initialization import branch_variances, start_from, starts_from_data
from deepnmt.model.kernels.compilers import start_compilers
from deepnmt.model.parts import freeze
from deepnmt.model.storage import WEIGHTS, fill, load_config, load_meta, read_weights, weights
from deepnmt.model.transformer import Transformer
from deepnmt.progress import say
from deepnmt.settings import to_table
from deepnmt.training import folder
from deepnmt.training.announcement import announce
from deepnmt.training.checkpoint import STATE, Checkpoints
from deepnmt.training.curves import Curves, JsonLines, TensorBoard, WeightsAndBiases, require_wandb
from deepnmt.training.diagnosis import diagnosis_for
from deepnmt.training.display import Display
from deepnmt.training.distributed import World, is_sharded, shard
from deepnmt.training.engine import EagerEngine, Noise, Objective, zero_gradients
from deepnmt.training.graph_engine import GraphEngine
from deepnmt.training.interruption import heed_signals
from deepnmt.training.lock import hold_lock
from deepnmt.training.memory import free_memory, largest_share
from deepnmt.training.optimizer import optimizer_tensors
from deepnmt.training.schedule import encoder_depth
from deepnmt.training.state import TrainingState
from deepnmt.training.trainer import Job, is_save_due
from deepnmt.training.validation import TextMetrics, Validator

WORK_SPACES = 2**27  # bytes that the matrix library keeps for a stream
LOCK_WAIT_SECONDS = 60  # for ranks that are started again: the main rank before may still be ending


@contextmanager
def open_run(
    recipe: Recipe,
    dataset: Dataset,
    out: Path,
    world: World,
    *,
    resume: bool = False,
    start: Path | None = None,
    metrics: TextMetrics | None = None,
) -> Iterator[tuple[TrainingState, Job]]:
    """Start a run in `out`, or resume the one that is there; inside the block this process alone may write to it.

    A new run starts with the weights of the MODEL folder `start`, or with random ones. Everything is checked before
    the first byte is written.
    """
    with ExitStack() as held:
        is_resumed = world.agree(world.is_main and folder.check_folder(out, resume))
        if is_resumed and world.is_main:
            held.enter_context(hold_lock(out, LOCK_WAIT_SECONDS if world.size > 1 else 0))
        recipe, start = resolve_settings(recipe, dataset, world, start, out if is_resumed else None)
        checkpoints = Checkpoints(out / folder.CHECKPOINTS, world, recipe)
        newest = checkpoints.newest() if is_resumed else None
        stream = open_stream(recipe, dataset, world, read_json(newest / STATE)["data"] if newest else None)
        if newest is None:
            state, engine = build_training(recipe, world, first_model(recipe), start, stream)
        else:
            state, engine = build_training(recipe, world, load_config(newest))
        validate = Validator(recipe, dataset, engine.objective, world, metrics) if dataset.valid else None
        state.measure = validate.measure if validate else ""
        if newest is not None:
            checkpoints.load(newest, state)

        if world.is_main:  # from here on files are written
            if not is_resumed:
                out.mkdir(parents=True, exist_ok=True)
                held.enter_context(hold_lock(out))
                folder.check_folder(out, resume=False)  # again, now that nobody else can write
            folder.write_folder(out, recipe, dataset, start)
            announce(recipe, dataset, stream, state, engine, newest)
        held.callback(checkpoints.wait)  # a thread may still be writing when the lock would be released
        world.agree(None)
        if newest is not None and newest.name.startswith("epoch") and is_save_due(state, recipe.training):
            checkpoints.save(state)  # the run was killed between the two checkpoints of one step
            checkpoints.finish()
        job = Job(
            config=recipe.training,
            world=world,
            engine=engine,
            open_updates=partial(open_updates, stream, world),
            checkpoints=checkpoints,
            curves=held.enter_context(closing(open_curves(recipe, out, state, world))),
            diagnosis=diagnosis_for(recipe, dataset),
            interruption=held.enter_context(heed_signals(world.is_main)),
            validate=validate,
        )
        yield state, job


def resolve_settings(
    recipe: Recipe, dataset: Dataset, world: World, start: Path | None, run: Path | None
) -> tuple[Recipe, Path | None]:
    """The recipe for this device and the model to start from; refuses what does not fit the `run` that is resumed."""
    stored = load_recipe(run / folder.RECIPE) if run else None
    recipe = fit_to_device(recipe, dataset, world, stored)
    if recipe.training.wandb_project is not None:
        require_wandb()
    if run is not None and stored is not None:
        folder.check_tokenizers(run, dataset)
        folder.check_recipe(run, stored, recipe)
        start = folder.initial_model(run, start)
    else:
        check_start(start, recipe, dataset)
    return recipe, start


def fit_to_device(recipe: Recipe, dataset: Dataset, world: World, stored: Recipe | None) -> Recipe:
    """The recipe with what depends on the device: the layout of batches and the memory plan, made once for a run."""
    if recipe.batching.layout == "auto":
        layout: Literal["packed", "padded"] = "packed" if world.device.type == "cuda" else "padded"
        recipe = replace(recipe, batching=replace(recipe.batching, layout=layout))
    if recipe.training.plan_memory:
        tokens = stored.batching.tokens_per_batch if stored else plan_memory(recipe, dataset, world)
        recipe = replace(recipe, batching=replace(recipe.batching, tokens_per_batch=tokens))
        if world.is_main:
            say(f"training.plan_memory: batching.tokens_per_batch = {tokens:,}")
    return recipe


def first_model(recipe: Recipe) -> ModelConfig:
    """What a new run starts with: the model, or a shallower one that grows to it."""
    depth = encoder_depth(0, recipe.training)
    return recipe.model if depth is None else with_encoder_depth(recipe.model, depth)


def check_start(start: Path | None, recipe: Recipe, dataset: Dataset) -> None:
    """Refuse a model of another shape or with other subwords than the dataset has, and none if weights are frozen."""
    if start is None:
        if recipe.training.freeze or recipe.training.lora:
            setting = "freeze" if recipe.training.freeze else "lora"
            raise InputError(f"training.{setting} is for fine-tuning a trained model; name it with --from MODEL")
        return
    load_meta(start)
    folder.check_tokenizers(start, dataset)
    stored, wanted = (folder.flatten(to_table(model)) for model in (load_config(start), first_model(recipe)))
    for name in [name for name in stored if not name.endswith("dropout")]:
        if stored[name] != wanted.get(name):
            raise InputError(
                f"{start} has model.{name} = {stored[name]}, but the recipe has {wanted.get(name, 'none')}: use the "
                "recipe.toml of the run that made the model, or change the setting"
            )


def build_training(
    recipe: Recipe, world: World, shape: ModelConfig, start: Path | None = None, stream: BatchStream | None = None
) -> tuple[TrainingState, EagerEngine]:
    """A model, initialised by the seed or from `start`, its optimiser, and the engine that computes its gradients.

    Some schemes around sub-layers start from what they find in the first batch of `stream`.
    """
    config = recipe.training
    # A recording has one shape for all batches; in a sampled softmax shapes depend on the batch.
    is_recordable = world.device.type == "cuda" and recipe.batching.layout == "packed" and not config.sampled_softmax
    if is_recordable and config.compile:
        start_compilers()
    torch.manual_seed(config.seed)
    model = Transformer(shape)
    if start is not None:
        fill(weights(model), read_weights(start), start / WEIGHTS)
    model.to(world.device)
    freeze(model, config.freeze)
    if config.lora is not None:
        add_adapters(model, config.lora.parts, config.lora.rank, config.lora.alpha)
    model.checkpoint_activations(config.activation_checkpointing)
    objective = Objective(model, config, world.device)
    if start is None and stream is not None and starts_from_data(model):
        batch = stream.update(0, 0).batches[0].to(world.device)
        Noise(0).seed_for(batch)
        start_from(model, world.agree(branch_variances(model, lambda: objective(batch))))
    if config.parallel == "fsdp" and world.size > 1:
        shard(objective, objective.dtype)
    state = TrainingState.start(objective, config, world)
    optimizer_tensors(state.model, state.optimizer)  # takes its memory before batches are tried for size
    kind = GraphEngine if is_recordable and not is_sharded(objective) else EagerEngine
    return state, kind(objective, world, state.splitter)


def open_stream(recipe: Recipe, dataset: Dataset, world: World, position: StreamState | None) -> BatchStream:
    """The training data from a position on; refuses data that has changed or is too long for the model."""
    stream = BatchStream.of(
        dataset,
        recipe.batching,
        seed=recipe.training.seed,
        tokens_per_update=recipe.training.tokens_per_update,
        rank=world.rank,
        world_size=world.size,
        state=position,
    )
    limit = recipe.model.position_limit
    if limit is not None and max(stream.longest) > limit:
        raise InputError(
            f"{dataset.folder} has training pairs of up to {max(stream.longest):,} tokens, but model.max_positions = "
            f"{limit}; set batching.max_length = {limit - 1} to skip those that are longer"
        )
    return stream


def open_updates(stream: BatchStream, world: World, position: StreamState | None) -> Loader:
    """The updates from a position on, built ahead."""
    stream.seek(position)
    return Loader(stream, pin_memory=world.device.type == "cuda")


def open_curves(recipe: Recipe, out: Path, state: TrainingState, world: World) -> Curves:
    """The curves of the run, continued from its state; only the main rank writes any."""
    if not world.is_main:
        return Curves()
    config, curves = recipe.training, Curves([JsonLines(out, state.log_lines)])
    if config.tensorboard:
        try:
            curves.append(TensorBoard(out, state.step))
        except ImportError:
            say("no TensorBoard curves: pip install 'deepnmt[tensorboard]'")
    if config.wandb_project is not None:
        curves.append(WeightsAndBiases(out, config.wandb_project, to_table(config)))
    return Curves([*curves, Display(state.step, config.max_steps)])


def plan_memory(recipe: Recipe, dataset: Dataset, world: World) -> int:
    """The largest even share of an update that fits on every rank's device with a quarter to spare, found by trying.

    Plain passes are tried: compiled layers use less memory, and a recorded pass more, since its stream has work spaces
    of its own; as much is held while trying.
    """
    if recipe.training.parallel == "fsdp" and world.size > 1:
        raise InputError(
            'training.plan_memory does not work with training.parallel = "fsdp"; set batching.tokens_per_batch instead'
        )
    whole = -(-recipe.training.tokens_per_update // world.size)
    if world.device.type != "cuda":
        return min(recipe.batching.tokens_per_batch, whole)
    try:
        held = torch.empty(WORK_SPACES, dtype=torch.uint8, device=world.device)
        found = largest_share(whole, partial(_fits, *_trial(recipe, dataset, world)))
        del held
    finally:
        free_memory(world.device)
        torch.cuda.reset_peak_memory_stats(world.device)  # so that the log shows the run's own peak
    if found is None:
        raise RunError("not even the smallest batch fits on the device; use a smaller model")
    return found


def _trial(recipe: Recipe, dataset: Dataset, world: World) -> tuple[TrainingState, EagerEngine, str, set[int]]:
    """What `_fits` tries with: the model and its optimiser, and sentences of the mean and the greatest length."""
    state, engine = build_training(recipe, world, recipe.model)
    sizes = [corpus.target.lengths + 1 for corpus in dataset.train.values() if len(corpus)]
    limits = (recipe.batching.max_length or sys.maxsize) + 1, recipe.model.position_limit or sys.maxsize
    longest = min(max(int(size.max()) for size in sizes), *limits)
    plain = EagerEngine(engine.objective, world)
    return state, plain, recipe.batching.layout, {min(int(sizes[0].mean()), longest), longest}


def _fits(state: TrainingState, engine: EagerEngine, layout: str, lengths: set[int], tokens: int) -> bool:
    """Whether forward and backward passes over a quarter more tokens fit in the memory of every rank."""
    device = engine.world.device
    failed = False
    for length in lengths:
        batch = _made_up_batch(tokens * 5 // 4, length, layout, device)
        zero_gradients(engine.parameters)
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        factor = state.loss_scale.factor / batch.num_target_tokens
        failed = failed or engine.add_up([batch], factor, Noise(0), sums) is not None
        free_memory(device)
    return not engine.world.max(int(failed))


def _made_up_batch(tokens: int, length: int, layout: str, device: torch.device) -> AnyBatch:
    """Sentences of one length, as many as there is room for."""
    rows = max(tokens // length, 1)
    side = Side.joined(np.full(rows * (length - 1), UNK), np.full(rows, length - 1))  # without eos
    lay_out, room = (pack, rows * length) if layout == "packed" else (pad, length)
    return lay_out(side, side, BatchShape(rows, room, room), np.arange(rows)).to(device)
