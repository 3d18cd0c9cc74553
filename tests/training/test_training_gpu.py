"""Training on a CUDA device: as on the CPU, and bit-equal after a restart. Skipped where there is none."""

from dataclasses import replace

import pytest
import torch
from small import BATCHING, CONFIG_MODEL, TRAINING, corpus

from deepnmt.data.batching import BatchStream
from deepnmt.data.loader import Loader
from deepnmt.model.transformer import Transformer
from deepnmt.training.checkpoint import Checkpoints
from deepnmt.training.curves import Curves, JsonLines, read_log
from deepnmt.training.diagnosis import Diagnosis
from deepnmt.training.distributed import World
from deepnmt.training.engine import EagerEngine, Objective
from deepnmt.training.interruption import Interruption
from deepnmt.training.run import Run
from deepnmt.training.trainer import Job, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CONFIG = replace(TRAINING, log_every=1)


def run_on(device, folder, config, precision, layout="padded"):
    """A whole run on a device, from the newest checkpoint in the folder on; returns its losses."""
    from deepnmt.training.assembly import go_on
    from deepnmt.training.graph_engine import GraphEngine

    place = torch.device(device)
    world = World(0, 1, place)
    folder.mkdir(exist_ok=True)
    torch.manual_seed(config.seed)
    model = Transformer(replace(CONFIG_MODEL, dropout=0.0)).to(place)
    objective = Objective(model, config.label_smoothing, 1)
    run = Run.start(model, config, precision == "fp16", place)
    checkpoints = Checkpoints(folder / "checkpoints", world, config, lambda aside, step: None)
    data = go_on(run, checkpoints)
    batching = replace(BATCHING, layout=layout, tokens_per_batch=128)
    engine = (GraphEngine if layout == "packed" else EagerEngine)(objective, config, precision, world)
    job = Job(
        config=config,
        world=world,
        engine=engine,
        open_updates=lambda state: Loader(
            BatchStream({"train": corpus()}, batching, seed=1, tokens_per_update=128, state=state),
            pin_memory=device == "cuda",
        ),
        checkpoints=checkpoints,
        curves=Curves([JsonLines(folder, run.step)]),
        diagnosis=Diagnosis(config, 40, None, is_post_norm=False),
        interruption=Interruption(),
    )
    train(run, data, job)
    job.curves.close()
    return [line["loss"] for line in read_log(folder)]


@pytest.mark.parametrize("precision, tolerance", [("fp32", 1e-3), ("bf16", 3e-2), ("fp16", 1e-2)])
def test_losses_are_those_of_the_cpu(tmp_path, precision, tolerance):
    found = run_on("cuda", tmp_path / "gpu", CONFIG, precision)
    assert found == pytest.approx(run_on("cpu", tmp_path / "cpu", CONFIG, "fp32"), rel=tolerance)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_resumed_equals_uninterrupted_to_the_last_bit(tmp_path, layout):
    whole = run_on("cuda", tmp_path / "whole", CONFIG, "bf16", layout)
    run_on("cuda", tmp_path / "parts", replace(CONFIG, max_steps=11), "bf16", layout)
    assert run_on("cuda", tmp_path / "parts", CONFIG, "bf16", layout) == whole


def test_graph_of_packed_batches_learns_like_plain_torch(tmp_path):
    graphed = run_on("cuda", tmp_path / "graph", replace(CONFIG, max_steps=60), "bf16", "packed")
    assert graphed[-1] < graphed[0] - 0.5


def test_memory_plan_fits_and_leaves_no_room_for_twice_as_much(tmp_path):
    from deepnmt.data.batching import BatchingConfig
    from deepnmt.data.dataset import Dataset
    from deepnmt.training.assembly import Settings, plan_memory

    training = replace(TRAINING, tokens_per_update=2**20, precision="bf16")
    settings = Settings(replace(CONFIG_MODEL, dropout=0.0), BatchingConfig(layout="packed"), training)
    dataset = Dataset(tmp_path, {"train": [{"name": "train"}]}, {"train": corpus()}, None, None)
    world = World(0, 1, torch.device("cuda", torch.cuda.current_device()))
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    used = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((used + 2**29) / total)
    try:
        planned = plan_memory(settings, dataset, world)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert 256 <= planned < 2**20
    assert planned % 128 == 0
