"""What a run says before it begins."""

import math
from collections.abc import Iterator
from pathlib import Path

import torch

from deepnmt.config import Recipe
from deepnmt.data.batching import BatchStream
from deepnmt.data.dataset import Dataset
from deepnmt.devices import device_name, multiplies_bf16
from deepnmt.progress import say
from deepnmt.training.checkpoint import read_state
from deepnmt.training.config import TrainingConfig
from deepnmt.training.engine import EagerEngine
from deepnmt.training.schedule import encoder_depth
from deepnmt.training.state import TrainingState

MANY_EPOCHS = 500
CPU_FLOPS = 1e12  # a second, which few CPUs reach


def announce(
    recipe: Recipe,
    dataset: Dataset,
    stream: BatchStream,
    state: TrainingState,
    engine: EagerEngine,
    newest: Path | None,
) -> None:
    """Say what is trained, on what and for how long, and whatever is unusual about it."""
    config, device = recipe.training, engine.world.device
    size, trained = (sum(p.numel() for p in group) for group in (state.model.parameters(), engine.parameters))
    start = f"resuming from step {state.step:,}" if state.step else "training"
    ranks = f"{engine.world.size} x " if engine.world.size > 1 else ""
    length = f"{config.max_steps:,} steps of {config.tokens_per_update:,} target tokens"
    of = f"{trained:,} of {size:,}" if trained < size else f"{size:,}"
    say(f"{start}: {of} parameters, {length}, on {ranks}{device_name(str(device))}")
    if not dataset.valid:
        best = "the last checkpoint will count as the best (`deepnmt prepare --hold-out N` makes a validation set)"
        say(f"{dataset.folder} has no validation set: {best}")
    if newest is not None:
        if (before := read_state(newest)["measure"]) != state.measure:
            say(f"validation has changed from {before} to {state.measure}: earlier scores no longer count")
        return
    if config.grow_at and config.grow_at[-1] >= config.max_steps:
        depth = encoder_depth(config.max_steps - 1, config)
        say(f"training.max_steps = {config.max_steps:,} ends before training.grow_at, with {depth} encoder layers")
    kept = config.keep_epochs if config.save_epochs else 0
    if config.export == "average" and kept < config.average_last:
        limits = "training.keep_epochs, training.save_epochs"
        say(f"training.average_last = {config.average_last}, but only {kept} epoch checkpoints are kept ({limits})")
    if (batch := recipe.batching.tokens_per_batch) > 1.5 * config.tokens_per_update:
        length = f"one batch of up to {batch:,} target tokens (batching.tokens_per_batch)"
        say(f"training.tokens_per_update = {config.tokens_per_update:,}, but an update is at least {length}")
    if device.type == "cpu" and config.precision == "bf16" and not multiplies_bf16():
        say("this CPU has no bf16 instructions: training.precision=fp32 is faster")
    for warning in excesses(config, stream, size, device):
        say(warning)
    if report := stream.pairs.report():
        say(report)


def excesses(config: TrainingConfig, stream: BatchStream, size: int, device: torch.device) -> Iterator[str]:
    """What makes a run far too long: little text read very often, or a large model on a CPU."""
    text = int(stream.pairs.lengths[1][stream.pairs.usable].sum())
    epochs = min(config.max_steps * min(config.tokens_per_update / text, 1), config.max_epochs or math.inf)
    if epochs > MANY_EPOCHS:
        remedy = "set training.max_epochs, or choose a smaller recipe"
        yield f"the text has only {text:,} target tokens, which training would read {epochs:,.0f} times; {remedy}"
    days = 6 * size * epochs * text / CPU_FLOPS / 86400
    if device.type == "cpu" and days > 1:
        yield f"a CPU with 1 TFLOP/s needs {days:,.0f} days for this run; `demo` is a preset for CPUs"
