"""The loop. What happens at every step, and every so many steps, stands here in plain sight."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from deepnmt.data.batching import StreamState, Update
from deepnmt.data.loader import Loader
from deepnmt.training.checkpoint import Checkpoints
from deepnmt.training.config import TrainingConfig
from deepnmt.training.curves import Curves
from deepnmt.training.diagnosis import Diagnosis, TrainingError
from deepnmt.training.distributed import World
from deepnmt.training.engine import Engine, Noise
from deepnmt.training.interruption import Interruption
from deepnmt.training.optimizer import GradientNorms, apply_update, gradient_norms
from deepnmt.training.run import Run
from deepnmt.training.schedule import learning_rate
from deepnmt.training.validation import Validation, perplexity

INTERRUPTED = "interrupted"


@dataclass
class Job:
    """What a run works with. `open_updates` starts the data at a state; `validate` looks at a model."""

    config: TrainingConfig
    world: World
    engine: Engine
    open_updates: Callable[[StreamState | None], Loader]
    checkpoints: Checkpoints
    curves: Curves
    diagnosis: Diagnosis
    interruption: Interruption
    validate: Callable[[nn.Module], Validation] | None = None
    speed: "Speed" = field(default_factory=lambda: Speed())


def train(run: Run, data: StreamState | None, job: Job) -> str:
    """Train until something ends it; returns what. A run that fails goes back to its last checkpoint, if it may."""
    run.model.train()
    while True:
        updates = job.open_updates(data)
        try:
            return _train(run, data, updates, job)
        except TrainingError as error:
            data = _roll_back(run, job, error)
        finally:
            updates.close()


def _train(run: Run, data: StreamState | None, updates: Loader, job: Job) -> str:
    config = job.config
    while (ending := _ending(run, data, job)) is None:
        update, data = next(updates), updates.state()
        norms = step(run, update, job)
        run.step += 1
        if run.step % config.log_every == 0:
            log(run, update, norms, job)
        if run.step % config.validate_every == 0:
            validate(run, job)
        if update.is_last_of_epoch and config.save_epochs and config.keep_epochs:
            save(run, data, job, epoch=update.epoch + 1)
        if run.step % config.save_every == 0 or run.is_best:
            save(run, data, job)
    is_unseen = ending is not INTERRUPTED and run.score is None and job.validate is not None
    if is_unseen:
        validate(run, job)
    if is_unseen or run.saved_step != run.step:
        save(run, data, job)
    job.checkpoints.finish()
    return ending


def step(run: Run, update: Update, job: Job) -> GradientNorms:
    """One optimiser update over all batches of all ranks, as if they had been one. A bad gradient moves nothing."""
    config, scale = job.config, run.loss_scale.factor
    sums = job.engine.accumulate(update, scale, Noise(config.seed, run.step, run.rollbacks))
    job.world.sum(sums)
    job.world.sum_gradients(run.model.parameters())

    norms = gradient_norms(run.model, scale)
    overflow = ~torch.isfinite(norms.total + sums.sum())
    hopeless = run.loss_scale.hopeless(overflow)
    run.failed_at = torch.where(hopeless & (run.failed_at < 0), run.step + 1, run.failed_at)
    bad = overflow | (run.failed_at >= 0)
    rate = learning_rate(run.step, config) * run.rate_factor
    apply_update(run.optimizer, rate, norms.total, config.clip_norm, scale, bad)
    run.loss_scale.update(overflow)
    if run.ema:
        run.ema.update(run.step)

    _count(run, sums, update, overflow)
    run.score, run.is_best = None, False
    job.speed.tokens += update.num_target_tokens
    if job.world.device.type == "cpu":
        _stop_if_diverged(run, job)
    return norms


def log(run: Run, update: Update, norms: GradientNorms, job: Job) -> None:
    _stop_if_diverged(run, job)
    loss, nll, tokens, skipped = run.window.tolist()
    loss, nll = loss / max(tokens, 1), nll / max(tokens, 1)
    run.window.zero_()
    layers = norms.by_layer()
    job.curves.write(
        "train",
        run.step,
        epoch=update.epoch + 1,
        loss=loss,
        nll=nll,
        ppl=perplexity(nll),
        lr=learning_rate(run.step - 1, job.config) * run.rate_factor,
        grad_norm=float(norms.total),
        tokens=int(tokens),
        tokens_per_second=job.speed.read(),
        memory_gib=_peak_memory(job.world.device),
        **({"loss_scale": float(run.loss_scale.factor), "skipped": int(skipped)} if run.loss_scale.dynamic else {}),
        layers=layers,
    )
    if job.config.diagnose:
        run.strikes = job.diagnosis.strikes(run.step, nll, layers, run.strikes)


def validate(run: Run, job: Job) -> None:
    """Look at the model (its moving average, where there is one) and remember whether it is among the best."""
    if job.validate is None:
        return
    _stop_if_diverged(run, job)
    found = job.world.agree(_validation(run, job.validate))
    run.score = found.score(job.config.best_by)
    is_first = not run.best_scores or run.score > run.best_scores[0]
    run.best_scores = sorted([*run.best_scores, run.score], reverse=True)[: max(job.config.keep_best, 1)]
    run.is_best = run.score >= run.best_scores[-1]  # of equal scores the newest counts
    run.stale = 0 if is_first or run.best_scores[0] == 0 else run.stale + 1  # a BLEU of 0 is not yet a score
    job.curves.write(
        "validation",
        run.step,
        loss=found.loss,
        nll=found.nll,
        ppl=found.perplexity,
        **found.scores,
        is_best=is_first,
        signatures=found.signatures,
        samples=found.samples,
    )
    for name, matrix in found.matrices.items():
        job.curves.picture(name, matrix, run.step)
    job.speed.read()


def save(run: Run, data: StreamState | None, job: Job, epoch: int | None = None) -> None:
    _stop_if_diverged(run, job)
    run.splitter.agree(job.world)
    job.checkpoints.save(run, data, epoch)
    run.saved_step = run.step
    job.speed.read()


def _ending(run: Run, data: StreamState | None, job: Job) -> str | None:
    config = job.config
    if run.step >= config.max_steps:
        return f"all {config.max_steps:,} steps are done"
    if config.max_epochs is not None and data is not None and data["epoch"] >= config.max_epochs:
        return f"all {config.max_epochs:,} epochs are done"
    if config.patience is not None and run.stale >= config.patience:
        return f"the last {run.stale} validations brought nothing better"
    if job.world.any(job.interruption.signal is not None):
        return INTERRUPTED
    return None


def _roll_back(run: Run, job: Job, error: TrainingError) -> StreamState | None:
    """Back to the last checkpoint with a lower rate and other noise. A restart repeats this, with the same result."""
    path = job.checkpoints.newest()
    if run.rollbacks >= job.config.rollbacks or path is None:
        raise error
    rollbacks, rate_factor = run.rollbacks + 1, run.rate_factor * job.config.rollback_factor
    data = job.checkpoints.load(path, run)
    run.rollbacks, run.rate_factor = rollbacks, rate_factor
    job.curves.rewind(run.step)
    job.curves.write("rollback", run.step, text=f"{error}; going on from {path.name} with {rate_factor:g} of the rate")
    return data


def _stop_if_diverged(run: Run, job: Job) -> None:
    """On an accelerator this waits for the step, so it is asked only when something else does too."""
    failed_at = int(run.failed_at)
    if failed_at >= 0:
        raise job.diagnosis.diverged(failed_at)


def _count(run: Run, sums: Tensor, update: Update, overflow: Tensor) -> None:
    """Without a tensor made from numbers of the host, which would make it wait for the device."""
    run.window[:2] += torch.where(overflow, 0.0, sums)
    run.window[2] += ~overflow * update.num_target_tokens
    run.window[3] += overflow


def _validation(run: Run, look: Callable[[nn.Module], Validation]) -> Validation:
    if run.ema:
        run.ema.swap()
    run.model.eval()
    try:
        return look(run.model)
    finally:
        run.model.train()
        if run.ema:
            run.ema.swap()


def _peak_memory(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None


@dataclass
class Speed:
    """Target tokens a second since it was last read; reading it after a pause forgets the pause."""

    tokens: int = 0
    since: float = field(default_factory=time.monotonic)

    def read(self) -> float:
        now = time.monotonic()
        rate = self.tokens / max(now - self.since, 1e-9)
        self.tokens, self.since = 0, now
        return rate
