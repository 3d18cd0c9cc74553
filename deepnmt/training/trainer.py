"""The training loop: what happens at every step, and at every N steps."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from deepnmt.data.batching import StreamState, Update
from deepnmt.data.loader import Loader
from deepnmt.model.adapters import merged
from deepnmt.model.growing import deepened
from deepnmt.model.storage import load_config
from deepnmt.model.transformer import Transformer
from deepnmt.training.checkpoint import Checkpoints
from deepnmt.training.config import TrainingConfig
from deepnmt.training.curves import Curves
from deepnmt.training.diagnosis import Diagnosis, TrainingError
from deepnmt.training.distributed import World
from deepnmt.training.engine import EagerEngine, Noise
from deepnmt.training.interruption import Interruption
from deepnmt.training.optimizer import GradientNorms, Number, apply_update
from deepnmt.training.schedule import encoder_depth, learning_rate
from deepnmt.training.state import TrainingState
from deepnmt.training.validation import Validation, perplexity
from deepnmt.training.verdict import judge

INTERRUPTED = "interrupted"


@dataclass
class Speed:
    """Target tokens per second since the last `read`; reading it after a pause leaves the pause out."""

    tokens: int = 0
    since: float = field(default_factory=time.monotonic)

    def read(self) -> float:
        now = time.monotonic()
        rate = self.tokens / max(now - self.since, 1e-9)
        self.tokens, self.since = 0, now
        return rate


@dataclass
class Job:
    """What training works with. `open_updates` opens the data at a position; `validate` evaluates a model."""

    config: TrainingConfig
    world: World
    engine: EagerEngine
    open_updates: Callable[[StreamState | None], Loader]
    checkpoints: Checkpoints
    curves: Curves
    diagnosis: Diagnosis
    interruption: Interruption
    validate: Callable[[nn.Module], Validation] | None = None
    speed: Speed = field(default_factory=Speed)


def train(state: TrainingState, job: Job) -> str:
    """Train to the end and return the reason for it. After a failure, return to the last checkpoint if allowed."""
    state.model.train()
    while True:
        updates = job.open_updates(state.data)
        try:
            return _train(state, updates, job)
        except TrainingError as error:
            _roll_back(state, job, error)
        finally:
            updates.close()


def _train(state: TrainingState, updates: Loader, job: Job) -> str:
    config = job.config
    while (ending := _ending(state, job)) is None:
        depth = encoder_depth(state.step, config)
        if depth is not None and depth != len(state.model.encoder.layers):
            grow(state, job, depth)
        update, state.data = next(updates), updates.state()
        _, norms = step(state, update, job.engine)
        job.speed.tokens += update.num_target_tokens
        if job.world.device.type == "cpu":
            _stop_if_diverged(state, job)
        if state.step % config.log_every == 0 or _completed(state, config):
            log(state, update, norms, job)
        for sink in job.curves:
            sink.tick(state.step)
        if state.step % config.validate_every == 0:
            validate(state, job)
        if update.is_last_of_epoch and config.save_epochs and config.keep_epochs:
            save(state, job, epoch=update.epoch + 1)
        if is_save_due(state, config):
            save(state, job)
    needs_validation = ending is not INTERRUPTED and state.score is None and job.validate is not None
    if needs_validation:
        validate(state, job)
    if needs_validation or state.saved_step != state.step:
        save(state, job)
    job.checkpoints.finish()
    return ending


def grow(state: TrainingState, job: Job, depth: int) -> None:
    """Continue with a deeper encoder. It depends on the weights alone, so a resumed run repeats this exactly."""
    before = len(state.model.encoder.layers)
    _take(deepened(state.model, depth), state, job)
    job.curves.write("growth", state.step, text=f"the encoder grows from {before} to {depth} layers", depth=depth)
    job.speed.read()


def step(state: TrainingState, update: Update, engine: EagerEngine) -> tuple[Tensor, GradientNorms]:
    """One optimiser update over all batches of all ranks, as if they were one; a bad gradient changes nothing.

    Returns the summed loss and nll, and the norms of the gradients.
    """
    config, world = engine.config, engine.world
    sums = engine.accumulate(update, state.loss_scale.factor, Noise(config.seed, state.step, state.rollbacks))
    world.sum(sums)
    engine.gradient_sum.finish()
    rate = learning_rate(state.step, config) * state.rate_factor
    share = state.ema.share_at(state.step) if state.ema else 0.0
    move = partial(_move, state, engine, sums)
    norms = engine.finish(move, rate, share, state.step + 1, update.num_target_tokens)
    state.score = None
    state.step += 1
    return sums, norms


def _move(
    state: TrainingState,
    engine: EagerEngine,
    sums: Tensor,
    rate: Number,
    share: Number,
    step: Number,
    tokens: Number,
) -> GradientNorms:
    """Update the weights from their gradients: on the device and in place, so that it can be recorded."""
    norms = engine.norms(state.loss_scale.factor)
    divisor, is_bad = judge(state, norms.total, sums, engine.config.clip_norm, step, tokens)
    apply_update(state.optimizer, rate, divisor, is_bad)
    if state.ema:
        state.ema.update(share)
    return norms


def log(state: TrainingState, update: Update, norms: GradientNorms, job: Job) -> None:
    _stop_if_diverged(state, job)
    loss, nll, tokens, skipped = state.window.tolist()
    scale = {"loss_scale": float(state.loss_scale.factor), "skipped": int(skipped)} if state.loss_scale.dynamic else {}
    state.window.zero_()
    if not tokens:
        text = f"the gradients overflowed, so {int(skipped):,} updates were skipped and the loss scale was halved"
        job.curves.write("overflow", state.step, text=text, **scale)
        return
    loss, nll = loss / tokens, nll / tokens
    is_finite, device = math.isfinite(norms.total), job.world.device  # that of a skipped update is not
    layers = norms.by_layer() if is_finite else {}
    job.curves.write(
        "train",
        state.step,
        epoch=update.epoch + 1,
        loss=loss,
        nll=nll,
        ppl=perplexity(nll),
        lr=learning_rate(state.step - 1, job.config) * state.rate_factor,
        grad_norm=float(norms.total) if is_finite else None,
        tokens=int(tokens),
        tokens_per_second=job.speed.read(),
        memory_gib=torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
        **scale,
        layers=layers,
    )
    if job.config.diagnose and state.step % job.config.log_every == 0:
        state.strikes = job.diagnosis.strikes(state.step, nll, layers, state.strikes)


def validate(state: TrainingState, job: Job) -> None:
    """Validate the model (its moving average, if there is one) and note whether it is among the best."""
    if job.validate is None:
        return
    _stop_if_diverged(state, job)
    if state.ema:
        state.ema.swap()
    state.model.eval()
    with merged(state.model):
        found = job.world.agree(job.validate(state.model))
    state.model.train()
    if state.ema:
        state.ema.swap()
    state.score = found.score(job.config.best_by)
    is_first = not state.best_scores or state.score > state.best_scores[0]
    state.best_scores = sorted([*state.best_scores, state.score], reverse=True)[: max(job.config.keep_best, 1)]
    state.stale = 0 if is_first or state.best_scores[0] == 0 else state.stale + 1  # a BLEU of 0 is not yet a score
    job.curves.write(
        "validation",
        state.step,
        loss=found.loss,
        nll=found.nll,
        ppl=perplexity(found.nll),
        **found.scores,
        is_best=is_first,
        signatures=found.signatures,
        samples=found.samples,
    )
    for sink in job.curves:
        for name, matrix in found.matrices.items():
            sink.picture(name, matrix, state.step)
    job.speed.read()


def save(state: TrainingState, job: Job, epoch: int | None = None) -> None:
    _stop_if_diverged(state, job)
    state.splitter.agree(job.world)
    state.log_lines = sum(sink.lines for sink in job.curves)
    job.checkpoints.save(state, epoch)
    state.saved_step = state.step
    job.speed.read()


def is_save_due(state: TrainingState, config: TrainingConfig) -> bool:
    """Whether this step gets a checkpoint, apart from that of an epoch."""
    return state.step % config.save_every == 0 or (state.is_best and config.keep_best > 0)


def _ending(state: TrainingState, job: Job) -> str | None:
    config = job.config
    if completed := _completed(state, config):
        return completed
    if config.patience is not None and state.stale >= config.patience:
        return f"no improvement in {state.stale} validations"
    if job.world.any_before(job.interruption.signal is not None):
        return INTERRUPTED
    return None


def _completed(state: TrainingState, config: TrainingConfig) -> str | None:
    if state.step >= config.max_steps:
        return f"all {state.step:,} steps are done"
    if config.max_epochs is not None and state.data is not None and state.data["epoch"] >= config.max_epochs:
        return f"all {config.max_epochs:,} epochs are done"
    return None


def _roll_back(state: TrainingState, job: Job, error: TrainingError) -> None:
    """Return to the last checkpoint, with a lower learning rate and other noise. A restart repeats this exactly."""
    path = job.checkpoints.newest()
    if state.rollbacks >= job.config.rollbacks or path is None:
        raise error
    rollbacks, rate_factor = state.rollbacks + 1, state.rate_factor * job.config.rollback_factor
    if (before := load_config(path)) != state.model.config:
        _take(Transformer(before).to(job.world.device).train(), state, job)
    job.checkpoints.load(path, state)
    state.rollbacks, state.rate_factor = rollbacks, rate_factor
    job.curves.rewind(state.step, state.log_lines)
    text = f"{error}; resuming from {path.name} with {rate_factor:g} of the learning rate"
    job.curves.write("rollback", state.step, text=text)


def _take(model: Transformer, state: TrainingState, job: Job) -> None:
    """Train another model from now on."""
    model.checkpoint_activations(job.config.activation_checkpointing)
    state.take(model, job.config, job.world)
    job.engine.take(model)


def _stop_if_diverged(state: TrainingState, job: Job) -> None:
    """On an accelerator this waits for the step, so it is called only where something else waits too."""
    failed_at = int(state.failed_at)
    if failed_at >= 0:
        raise job.diagnosis.diverged(failed_at)
