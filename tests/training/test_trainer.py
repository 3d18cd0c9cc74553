"""The loop's laws: accumulation changes nothing, a bad gradient moves nothing, and a run ends when it should."""

import math
import os
import signal
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from small import (
    ALONE,
    BATCHING,
    CONFIG_MODEL,
    TRAINING,
    VOCAB,
    corpus,
    dataset,
    flat,
    losses,
    open_job,
    run_to_end,
    without_dropout,
)

from deepnmt.analysis.learning_curves import read_points
from deepnmt.data.batching import BatchStream
from deepnmt.data.collate import Batch
from deepnmt.model.connections.residual import ResidualConfig
from deepnmt.model.transformer import Transformer
from deepnmt.training.curves import read_log
from deepnmt.training.diagnosis import TrainingError
from deepnmt.training.engine import Noise, Objective
from deepnmt.training.interruption import heed_signals
from deepnmt.training.mixed_precision import LossScale
from deepnmt.training.trainer import INTERRUPTED, train
from deepnmt.training.validation import Validation


class Quartered:
    """A loader whose batches come in four pieces by rows."""

    def __init__(self, loader):
        self.loader, self.state, self.close = loader, loader.state, loader.close

    def __next__(self):
        update = next(self.loader)
        halves = [half for batch in update.batches for half in batch.split()]
        return replace(update, batches=[quarter for half in halves for quarter in half.split()])


def test_accumulation_over_four_batches_is_like_one(tmp_path):
    config = replace(TRAINING, max_steps=30, log_every=1, validate_every=100, save_every=100)
    settings = {"model_config": without_dropout(), "batching": replace(BATCHING, tokens_per_batch=128)}
    run_to_end(tmp_path / "one", config, **settings)
    with open_job(tmp_path / "four", config, **settings) as (run, job):
        whole = job.open_updates
        job.open_updates = lambda state: Quartered(whole(state))
        train(run, job)
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "four"), abs=1e-5)
    assert losses(tmp_path / "one")[-1] < losses(tmp_path / "one")[0] - 0.5


@pytest.mark.parametrize("ending", [{"max_steps": 7}, {"max_epochs": 1}], ids=str)
def test_the_log_covers_the_whole_run_whatever_its_length(tmp_path, ending):
    config = replace(TRAINING, log_every=5, validate_every=7, **ending)
    state = run_to_end(tmp_path, config)
    lines = [line for line in read_log(tmp_path) if line["kind"] == "train"]
    assert [line["step"] for line in lines] == [*range(5, state.step, 5), state.step]
    assert all(line["tokens_per_second"] > 0 for line in lines)
    assert run_to_end(tmp_path / "short", replace(config, log_every=1000)).step == state.step
    assert read_points(tmp_path / "short")[-1].tokens == sum(line["tokens"] for line in lines)


def test_update_is_normalised_by_all_its_tokens(tmp_path):
    """The gradient of an update is that of the plain mean over its tokens, however they are spread over batches."""
    with open_job(tmp_path, model_config=without_dropout()) as (run, job):
        pass
    update = next(BatchStream({"train": corpus()}, BATCHING, seed=1, tokens_per_update=128))
    assert len(update.batches) == 2
    job.engine.accumulate(update, torch.tensor(1.0), Noise(0))
    found = [p.grad.clone() for p in run.model.parameters()]
    run.model.zero_grad()
    logits = [run.model(b.source, b.target_input).flatten(0, 1) for b in update.batches]
    targets = torch.cat([b.target_output.flatten() for b in update.batches])
    torch.nn.functional.cross_entropy(torch.cat(logits), targets, ignore_index=1, label_smoothing=0.1).backward()
    for gradient, parameter in zip(found, run.model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


def test_noise_is_that_of_the_step_and_the_batch_alone(tmp_path):
    with open_job(tmp_path) as (_, job):
        pass
    update = next(BatchStream({"train": corpus()}, BATCHING, seed=1, tokens_per_update=128))

    def sums(*key):
        torch.rand(3)
        return job.engine.accumulate(update, torch.tensor(1.0), Noise(*key)).tolist()

    assert sums(1, 2) == sums(1, 2)
    assert sums(1, 2) != sums(1, 3)


class Explodes(torch.nn.Module):
    """The model with a loss that is not a number from its n-th batch on."""

    def __init__(self, objective, after):
        super().__init__()
        self.objective, self.left = objective, after

    def forward(self, batch):
        loss, nll = self.objective(batch)
        self.left -= 1
        return (loss * math.nan if self.left < 0 else loss), nll


@contextmanager
def exploding_job(folder, config, after):
    with open_job(folder, config) as (run, job):
        job.engine.objective = Explodes(job.engine.objective, after)
        yield run, job


def test_non_finite_loss_stops_before_the_optimiser_moves(tmp_path):
    with (
        exploding_job(tmp_path / "run", TRAINING, after=13) as (run, job),
        pytest.raises(TrainingError, match=r"diverged at step 7: .* not finite; try a lower training\.lr than 0\.005"),
    ):
        train(run, job)
    good = run_to_end(tmp_path / "good", replace(TRAINING, max_steps=6))
    assert torch.equal(flat(run.model), flat(good.model))
    assert [path.name for path in job.checkpoints.all()] == ["step-00000005"]


def test_rollback_resumes_from_the_last_checkpoint_with_a_lower_rate(tmp_path):
    config = replace(TRAINING, rollbacks=1, rollback_factor=0.25)
    with exploding_job(tmp_path, config, after=13) as (run, job):
        explodes = job.engine.objective
        rewind = job.curves.rewind

        def cured(*checkpoint):
            explodes.left = 10**9
            rewind(*checkpoint)

        job.curves.rewind = cured
        train(run, job)
    assert (run.step, run.rollbacks, run.rate_factor) == (24, 1, 0.25)
    lines = read_log(tmp_path)
    assert [line["step"] for line in lines if line["kind"] == "rollback"] == [5]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [3, 6, 9, 12, 15, 18, 21, 24]
    assert lines[-2]["lr"] == pytest.approx(0.25 * 0.005 * math.sqrt(4 / 23))


def test_rollbacks_are_used_up(tmp_path):
    config = replace(TRAINING, rollbacks=2)
    with exploding_job(tmp_path, config, after=13) as (run, job), pytest.raises(TrainingError, match="diverged"):
        train(run, job)
    assert run.rollbacks == 2


def test_model_that_does_not_learn_is_named(tmp_path):
    config = replace(TRAINING, lr=1e-12, warmup_start_lr=0.0, log_every=1, max_steps=40)
    with open_job(tmp_path, config) as (run, job):
        job.diagnosis = replace(job.diagnosis, guessing_steps=10)
        with pytest.raises(TrainingError, match=r"not learning at step 14 .*guessing words by frequency"):
            train(run, job)
    with open_job(tmp_path / "unasked", replace(config, diagnose=False)) as (run, job):
        job.diagnosis = replace(job.diagnosis, guessing_steps=10)
        train(run, job)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_stack_too_deep_for_post_norm_is_named_and_pre_norm_is_left_alone(tmp_path, norm):
    """Nothing made up: the gradient vanishes by itself, while the decoder learns what it can without the source."""
    config = replace(
        TRAINING,
        max_steps=44,
        lr=2e-2,
        warmup_steps=20,
        log_every=4,
        save_every=10,
        save_epochs=False,
        validate_every=44,
    )
    stack = replace(CONFIG_MODEL.encoder, num_layers=20, connection=ResidualConfig())
    model_config = replace(without_dropout(), norm=norm, encoder=stack)
    with open_job(tmp_path, config, model_config=model_config) as (run, job):
        job.diagnosis = replace(job.diagnosis, is_post_norm=norm == "post")
        if norm == "pre":
            train(run, job)
        else:
            with pytest.raises(
                TrainingError, match=r"not learning at step \d+ .*of the top's.*; try model.norm = \"pre\""
            ):
                train(run, job)
            assert job.checkpoints.newest().name == f"step-{run.step // 10 * 10:08d}"


def test_failure_half_way_through_a_backward_pass_leaves_no_gradient_twice(tmp_path, monkeypatch):
    with open_job(tmp_path, model_config=without_dropout()) as (run, job):
        pass
    update = next(BatchStream({"train": corpus()}, BATCHING, seed=1, tokens_per_update=128))
    job.engine.accumulate(update, torch.tensor(1.0), Noise(0))
    wanted = [p.grad.clone() for p in run.model.parameters()]
    failures = [1]

    def fails_once(gradient):
        if failures:
            failures.pop()
            raise torch.OutOfMemoryError("in the first encoder layer, the last one that is reached")

    run.model.encoder.layers[0].register_full_backward_hook(lambda *_: fails_once(None))
    job.engine.accumulate(update, torch.tensor(1.0), Noise(0))
    assert not failures
    for gradient, parameter in zip(wanted, run.model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_first_and_then_stops(tmp_path, number):
    config = replace(TRAINING, max_steps=10)
    with open_job(tmp_path, config) as (run, job):
        accumulate = job.engine.accumulate

        def interrupted_at_step_7(*arguments):
            if run.step == 6:
                os.kill(os.getpid(), number)
            return accumulate(*arguments)

        job.engine.accumulate = interrupted_at_step_7
        with heed_signals() as job.interruption:
            assert train(run, job) is INTERRUPTED
    assert (run.step, job.interruption.signal) == (7, number)
    assert (tmp_path / "checkpoints" / "step-00000007" / "manifest.json").exists()
    done = run_to_end(tmp_path, config)
    assert torch.equal(flat(done.model), flat(run_to_end(tmp_path / "whole", config).model))


def test_second_ctrl_c_does_not_wait_and_the_first_says_so(capfd):
    with heed_signals() as interruption:
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.signal is signal.SIGINT
        assert "stopping after this step; press Ctrl-C again to stop at once" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_patience_ends_a_run_that_gets_no_better(tmp_path):
    with open_job(tmp_path, replace(TRAINING, max_steps=100, validate_every=2, patience=3)) as (run, job):
        scores = iter([3.0, 5.0, 4.0, 4.5, 5.0, 9.0])
        job.validate = lambda model: Validation(1.0, 1.0, {"bleu": next(scores)})
        assert "3 validations" in train(run, job)
    assert run.step == 10
    best = [line["is_best"] for line in read_log(tmp_path) if line["kind"] == "validation"]
    assert best == [True, True, False, False, False]


def test_patience_begins_with_the_first_score(tmp_path):
    """A BLEU of 0 is what every model has at first; a model that falls back to it has come to its end."""
    with open_job(tmp_path, replace(TRAINING, max_steps=100, validate_every=2, patience=2)) as (run, job):
        scores = iter([0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0])
        job.validate = lambda model: Validation(1.0, 1.0, {"bleu": next(scores)})
        assert "2 validations" in train(run, job)
    assert run.step == 14


def test_a_validation_loss_that_is_not_a_number_is_the_worst(tmp_path):
    with open_job(tmp_path, replace(TRAINING, max_steps=100, validate_every=2, patience=2)) as (run, job):
        losses = iter([math.nan, 3.0, math.nan, 2.0, math.nan, math.inf])
        job.validate = lambda model: Validation(next(losses), 1.0)
        assert "2 validations" in train(run, job)
    assert (run.step, run.best_scores) == (12, [-2.0])


def test_updates_that_overflow_have_no_loss(tmp_path, monkeypatch, capsys):
    """fp16: the loss scale comes down from where every gradient overflows; the log stays JSON."""
    monkeypatch.setattr(LossScale, "START", 2.0**33)
    run_to_end(tmp_path, replace(TRAINING, max_steps=24, precision="fp16", log_every=1, validate_every=100))
    kinds = {line["step"]: line["kind"] for line in read_log(tmp_path)}
    assert kinds[1] == "overflow" and kinds[23] == "train"
    text = (tmp_path / "log.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text and min(losses(tmp_path)) > 1
    told = capsys.readouterr().err
    assert "step 1/24  overflow: the gradients overflowed, so 1 updates were skipped" in told


def test_max_epochs_ends_at_the_end_of_an_epoch(tmp_path):
    with open_job(tmp_path, replace(TRAINING, max_steps=1000, max_epochs=2)) as (run, job):
        assert "2 epochs" in train(run, job)
    per_epoch = BatchStream({"train": corpus()}, BATCHING, seed=1, tokens_per_update=128).updates_per_epoch()
    assert run.step == 2 * per_epoch


def test_moving_average_is_validated_and_the_parameters_are_not_touched(tmp_path):
    with open_job(tmp_path, replace(TRAINING, ema_decay=0.5, max_steps=8)) as (run, job):
        seen = []
        job.validate = lambda model: seen.append(flat(model)) or Validation(1.0, 1.0)
        train(run, job)
    averaged = torch.cat([tensor.reshape(-1) for tensor in run.ema.shadow.values()])
    assert torch.equal(seen[-1], averaged)
    assert not torch.equal(flat(run.model), averaged)
    plain = run_to_end(tmp_path / "plain", replace(TRAINING, max_steps=8))
    assert torch.equal(flat(run.model), flat(plain.model))


def test_model_is_validated_without_dropout_and_trained_with_it(tmp_path):
    with open_job(tmp_path, replace(TRAINING, max_steps=9)) as (run, job):
        modes, validate = [], job.validate

        def watched(model):
            before = model.training
            found = validate(model)
            modes.append((before, model.training))
            return found

        job.validate = watched
        train(run, job)
    assert modes == [(False, False)] * 2
    assert run.model.training


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_like_full(tmp_path, precision):
    full, half = (
        (tmp_path / name, replace(TRAINING, precision=name, log_every=1, max_steps=12)) for name in ("fp32", precision)
    )
    run_to_end(*full, model_config=without_dropout())
    run_to_end(*half, model_config=without_dropout())
    assert losses(half[0]) == pytest.approx(losses(full[0]), rel=0.02)
    assert losses(half[0]) != losses(full[0])


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_activation_checkpointing_changes_nothing(tmp_path, layout):
    config, batching = replace(TRAINING, max_steps=6), replace(BATCHING, layout=layout)
    plain = run_to_end(tmp_path / "plain", config, batching=batching)
    with open_job(tmp_path / "checkpointed", config, batching=batching) as (run, job):
        run.model.checkpoint_activations()
        train(run, job)
    assert torch.equal(flat(run.model), flat(plain.model))


@pytest.mark.parametrize("tied", [False, True])
def test_loss_at_step_0_is_the_expected_one(tied):
    """Features have |f|^2 = d after the last norm and output rows w ~ N(0, 1/d), so logits are standard normal:

    E[loss] = log(V E[exp z]) - E[z_y] = log V + 1/2, with or without smoothing. A tied output adds one term: the
    previous word's own row, to which the features still point (cosine c), gets the logit sqrt(d) c, so that the
    sum is V exp(1/2) + exp(sqrt(d) c).
    """
    torch.manual_seed(0)
    vocab, dim = 4000, 128
    stack = replace(CONFIG_MODEL.encoder, dim=dim, ffn_dim=256, num_layers=4)
    config = replace(
        without_dropout(),
        source_vocab_size=vocab,
        target_vocab_size=vocab,
        encoder=stack,
        decoder=stack,
        tie_output=tied,
    )
    config = replace(config, share_embeddings=tied)
    model = Transformer(config)
    ids = torch.randint(4, vocab, (16, 33))
    batch = Batch(ids, ids[:, :-1], ids[:, 1:], ids.numel(), 16 * 32, [])
    with torch.no_grad():
        loss, nll = (float(total) / (16 * 32) for total in Objective(model, TRAINING, torch.device("cpu"))(batch))
    features = model.features(batch.source, batch.target_input).detach()
    previous = model.output_weight.detach()[batch.target_input]
    own = (features * previous).sum(-1).exp() if tied else torch.zeros(1)
    expected = float((vocab * math.exp(0.5) + own).log().mean())
    assert tied or expected == pytest.approx(math.log(vocab) + 0.5)
    assert loss == pytest.approx(expected, rel=0.02)
    assert nll == pytest.approx(expected, rel=0.02)


def test_tiny_model_learns_to_reverse(tmp_path):
    config = replace(
        TRAINING, max_steps=160, validate_every=160, save_every=160, lr=1.5e-2, warmup_steps=20, log_every=20
    )
    config = replace(config, save_epochs=False, label_smoothing=0.0)
    run_to_end(tmp_path, config, model_config=without_dropout(), data=dataset(corpus(16)))
    assert losses(tmp_path)[-1] < 0.2 < math.log(VOCAB)


def test_packed_batches_train_like_padded_ones(tmp_path):
    """Not the same batches, so not the same losses; but the same data at the same rate."""
    config = replace(TRAINING, max_steps=40, save_every=40, validate_every=40)
    ends = {}
    for layout in ("padded", "packed"):
        settings = {"model_config": without_dropout(), "batching": replace(BATCHING, layout=layout)}
        run_to_end(tmp_path / layout, config, **settings)
        ends[layout] = next(line["nll"] for line in read_log(tmp_path / layout) if line["kind"] == "validation")
    assert ends["packed"] == pytest.approx(ends["padded"], rel=0.05)
    assert ends["packed"] < math.log(VOCAB)


def test_world_of_one_needs_no_process_group():
    assert ALONE.any_before(True) and not ALONE.any_before(False)
    assert ALONE.max(3) == 3
    assert ALONE.agree("x") == "x"
