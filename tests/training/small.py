"""A tiny corpus, model and job, so that a whole run takes a fraction of a second."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from corpora import corpus_of

from deepnmt.config import Recipe
from deepnmt.data.batching import BatchingConfig
from deepnmt.data.dataset import Corpus, Dataset
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.training.assembly import open_run
from deepnmt.training.config import TrainingConfig
from deepnmt.training.curves import read_log
from deepnmt.training.distributed import World
from deepnmt.training.trainer import train

# Other load on the cores makes threads wait for each other; these models are too small to need any.
torch.set_num_threads(1)

VOCAB = 40
TOKENIZERS = Path(__file__).parent / "tokenizers"  # a word is a letter or a digit, and one symbol
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
    validation_lines=0,
    tensorboard=False,
)


def corpus(pairs: int = 120, seed: int = 0) -> Corpus:
    """Sentences and their reversals."""
    random = np.random.default_rng(seed)
    sources = [random.integers(4, VOCAB, random.integers(2, 9)).tolist() for _ in range(pairs)]
    return corpus_of(sources, [list(reversed(source)) for source in sources])


def dataset(train: Corpus | None = None, valid: Corpus | None = None) -> Dataset:
    """What `Dataset.open` returns, with corpora in memory."""
    corpora = {"train": train or corpus()}
    return Dataset(TOKENIZERS, {"train": [{"name": "train"}], "valid": {}}, corpora, valid or corpus(10, seed=1), None)


@contextmanager
def open_job(
    folder: Path,
    config: TrainingConfig = TRAINING,
    world: World = ALONE,
    model_config: ModelConfig = CONFIG_MODEL,
    batching: BatchingConfig = BATCHING,
    data: Dataset | None = None,
    engine=None,
    metrics=None,
):
    """The state of a run and its job, as users get them: new, or from the newest checkpoint in the folder."""
    recipe = Recipe(model=model_config, training=config, batching=batching)
    with open_run(recipe, data or dataset(), folder, world, resume=True, metrics=metrics) as (state, job):
        if engine is not None:
            job.engine = engine(job.engine.objective, world, state.splitter)
        yield state, job


def run_to_end(folder: Path, config: TrainingConfig = TRAINING, **changes):
    with open_job(folder, config, **changes) as (state, job):
        train(state, job)
    return state


def without_dropout(config: ModelConfig = CONFIG_MODEL) -> ModelConfig:
    return replace(config, dropout=0.0)


def logged(folder: Path, name: str, kind: str = "train") -> list:
    """A value of every line of a kind in the log."""
    return [line[name] for line in read_log(folder) if line["kind"] == kind]


def losses(folder: Path) -> list[float]:
    return logged(folder, "loss")


def curves(folder: Path) -> list[dict]:
    """The log without what depends on the machine."""
    times = ("tokens_per_second", "memory_gib")
    return [{name: value for name, value in line.items() if name not in times} for line in read_log(folder)]


def flat(model) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])
