"""A tiny corpus, model and job, so that a whole run takes a fraction of a second."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from deepnmt.data.batching import BatchingConfig, BatchStream, held_out_batches
from deepnmt.data.dataset import Corpus
from deepnmt.data.loader import Loader
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.transformer import Transformer
from deepnmt.training.assembly import describe_model, go_on
from deepnmt.training.checkpoint import Checkpoints
from deepnmt.training.config import TrainingConfig
from deepnmt.training.curves import Curves, JsonLines
from deepnmt.training.diagnosis import Diagnosis
from deepnmt.training.distributed import World, shard
from deepnmt.training.engine import EagerEngine, Objective
from deepnmt.training.interruption import Interruption
from deepnmt.training.run import Run
from deepnmt.training.trainer import Job, train
from deepnmt.training.validation import Validation, connection_matrices, mean_loss

# Other load on the cores makes threads wait for each other; these models are too small to need any.
torch.set_num_threads(1)

VOCAB = 40
PAD = 1
CPU = torch.device("cpu")
ALONE = World(0, 1, CPU)

CONFIG_MODEL = ModelConfig(
    source_vocab_size=VOCAB,
    target_vocab_size=VOCAB,
    share_embeddings=True,
    dropout=0.1,
    encoder=StackConfig(num_layers=2, dim=16, ffn_dim=32, num_heads=2, connection=DlclConfig()),
    decoder=StackConfig(num_layers=1, dim=16, ffn_dim=32, num_heads=2),
)
BATCHING = BatchingConfig(tokens_per_batch=64)
TRAINING = TrainingConfig(
    max_steps=24,
    tokens_per_update=128,
    lr=5e-3,
    warmup_steps=4,
    log_every=3,
    validate_every=8,
    save_every=5,
    keep_last=2,
    keep_epochs=2,
    tensorboard=False,
)


def corpus(pairs: int = 120, seed: int = 0) -> Corpus:
    """Sentences and their reversals."""
    random = np.random.default_rng(seed)
    sources = [random.integers(4, VOCAB, random.integers(2, 9)).tolist() for _ in range(pairs)]
    return Corpus.of(sources, [list(reversed(source)) for source in sources])


def make_job(
    folder: Path, config: TrainingConfig = TRAINING, world: World = ALONE, model_config=CONFIG_MODEL, **changes
):
    """The run, the state of its data and the job: fresh, or from the newest checkpoint in the folder."""
    torch.manual_seed(config.seed)
    folder.mkdir(parents=True, exist_ok=True)
    model = Transformer(model_config)
    objective = Objective(model, config.label_smoothing, PAD)
    if config.parallel == "fsdp" and world.size > 1:
        shard(objective, "bf16" if config.precision == "bf16" else "fp32")
    run = Run.start(model, config, fp16=config.precision == "fp16", device=CPU)

    checkpoints = Checkpoints(folder / "checkpoints", world, config, partial(describe_model, model_config, folder))
    data = go_on(run, checkpoints)
    held_out = held_out_batches(corpus(10, seed=1), 64)

    def validate(model) -> Validation:
        return Validation(*mean_loss(objective, held_out, "fp32", CPU), matrices=connection_matrices(objective))

    def open_updates(state):
        stream = BatchStream(
            {"train": changes.get("corpus") or corpus()},
            changes.get("batching", BATCHING),
            seed=config.seed,
            tokens_per_update=config.tokens_per_update,
            rank=world.rank,
            world_size=world.size,
            state=state,
        )
        return Loader(stream, depth=2)

    precision = "fp32" if config.precision == "auto" else config.precision
    engine = changes.get("engine", EagerEngine)(objective, config, precision, world)
    engine.splitter = run.splitter
    job = Job(
        config=config,
        world=world,
        engine=engine,
        open_updates=open_updates,
        checkpoints=checkpoints,
        curves=Curves([JsonLines(folder, run.step)] if world.is_main else []),
        diagnosis=Diagnosis(config, VOCAB, None, is_post_norm=False),
        interruption=Interruption(),
        validate=validate,
    )
    return run, data, job


def run_to_end(folder: Path, config: TrainingConfig = TRAINING, **changes):
    run, data, job = make_job(folder, config, **changes)
    try:
        train(run, data, job)
    finally:
        job.curves.close()
    return run


def without_dropout(config: ModelConfig = CONFIG_MODEL) -> ModelConfig:
    return replace(config, dropout=0.0)


def flat(model) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])
