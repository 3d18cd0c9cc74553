"""Recorded updates are those of plain torch: gradients in pieces, every optimiser, averages, bad gradients."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from pretended_gpu import INTERPRETED, pretended_gpu
from small import CONFIG_MODEL, TRAINING, corpus, flat
from test_out_of_memory import replayed

from deepnmt.data.batching import BatchingConfig, BatchStream
from deepnmt.model.transformer import Transformer
from deepnmt.training.distributed import World
from deepnmt.training.engine import EagerEngine, Objective
from deepnmt.training.graph_engine import GraphEngine
from deepnmt.training.state import TrainingState
from deepnmt.training.trainer import step

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
CONFIG = replace(TRAINING, compile=False, precision="fp32", clip_norm=0.5, weight_decay=0.01, ema_decay=0.9)


def train(engine, config, device, scale=None, updates=5, model=CONFIG_MODEL):
    """The state after a few updates of two batches each, and the norms of the last one's gradients."""
    torch.manual_seed(1)
    world = World(0, 1, torch.device("cuda" if device == "cuda" else "cpu"))
    objective = Objective(Transformer(replace(model, dropout=0.0)).to(world.device).train(), config, world.device)
    state = TrainingState.start(objective, config, world)
    if scale is not None:
        state.loss_scale.factor.fill_(scale)
    batching = BatchingConfig(layout="packed", tokens_per_batch=128)
    stream = BatchStream({"train": corpus()}, batching, seed=1, tokens_per_update=256)
    made, norms = engine(objective, world), None
    with pretended_gpu() if device == "interpreted" and engine is not EagerEngine else nullcontext():
        for _ in range(updates):
            _, norms = step(state, next(stream), made)
    return state, norms


def distance(found, wanted, start):
    """Relative to the way from the start. Adam moves parameters without gradient by noise, so not one by one."""
    return float((found - wanted).norm() / (wanted - start).norm())


def graph_engine(device):
    return GraphEngine if device == "cuda" else partial(GraphEngine, record=replayed)


def check_updates(device, optimizer="adam", updates=5):
    config = replace(CONFIG, optimizer=optimizer)
    recorded, norms = train(graph_engine(device), config, device, updates=updates)
    plain, plain_norms = train(EagerEngine, config, device, updates=updates)
    start = flat(train(EagerEngine, config, device, updates=0)[0].model)
    assert distance(flat(recorded.model), flat(plain.model), start) < 0.01
    torch.testing.assert_close(recorded.window, plain.window, rtol=1e-4, atol=0)
    torch.testing.assert_close(norms.norms, plain_norms.norms, rtol=2e-2, atol=1e-5)
    assert norms.names == plain_norms.names
    averages = (torch.cat([p.flatten() for p in state.ema.shadow.values()]) for state in (recorded, plain))
    assert distance(*averages, start) < 0.01


@DEVICES
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_weights_averages_and_sums_are_those_of_plain_updates(device, optimizer):
    check_updates(device, optimizer)


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # the interpreter's
def test_so_are_those_of_kernels_in_the_interpreter():
    """On a CPU whose tensors say that they are on a GPU. Slow: the first update runs as it is, the next is recorded."""
    check_updates("interpreted", updates=2)


@DEVICES
def test_update_that_is_not_finite_moves_nothing_and_is_noted(device):
    config = replace(CONFIG, ema_decay=None)
    recorded, _ = train(graph_engine(device), config, device, scale=float("nan"))
    plain, _ = train(EagerEngine, config, device, scale=float("nan"), updates=1)
    assert int(recorded.failed_at) == int(plain.failed_at) == 1
    assert torch.equal(flat(recorded.model), flat(plain.model))


@pytest.mark.gpu
@needs_gpu
def test_scale_of_fp16_falls_and_rises_as_in_plain_updates():
    config = replace(CONFIG, precision="fp16")
    start = 2.0**30
    recorded, _ = train(GraphEngine, config, "cuda", scale=start, updates=30)
    plain, _ = train(EagerEngine, config, "cuda", scale=start, updates=30)
    assert float(recorded.loss_scale.factor) == float(plain.loss_scale.factor) < start
    assert 0 < recorded.window[3] == plain.window[3] < 30
    assert not torch.equal(flat(recorded.model), flat(train(GraphEngine, config, "cuda", updates=0)[0].model))
