"""Training on a CUDA device: as on the CPU, and bit-equal after a restart. Skipped where there is none."""

import gc
import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from small import BATCHING, CONFIG_MODEL, TRAINING, corpus, dataset, run_to_end

from deepnmt.data.batching import BatchStream
from deepnmt.model.transformer import Transformer
from deepnmt.training.curves import read_log
from deepnmt.training.distributed import World
from deepnmt.training.engine import EagerEngine, Noise, Objective

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CONFIG = replace(TRAINING, log_every=1)
PACKED = replace(BATCHING, layout="packed", tokens_per_batch=8192)


def run_on(device, folder, config, precision, layout="padded", model_config=None, tokens=128, data=None):
    """A whole run on a device, from the newest checkpoint in the folder on; returns its losses."""
    config = replace(config, precision=precision, tokens_per_update=tokens)
    run_to_end(
        folder,
        config,
        world=World(0, 1, torch.device(device)),
        model_config=model_config or replace(CONFIG_MODEL, dropout=0.0),
        batching=replace(BATCHING, layout=layout, tokens_per_batch=tokens),
        data=dataset(data or corpus()),
    )
    return [line["loss"] for line in read_log(folder) if line["kind"] == "train"]


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


SKIPPING = replace(
    CONFIG_MODEL,
    encoder=replace(CONFIG_MODEL.encoder, layer_dropout=0.3),
    decoder=replace(CONFIG_MODEL.decoder, sublayer_dropout=0.5),
)
PROCEDURES = {
    "growing": ({"grow": (1, 2), "grow_at": (11,)}, CONFIG_MODEL),
    "skipping": ({}, SKIPPING),
    "r-drop": ({"r_drop": 5.0}, CONFIG_MODEL),
    "relative positions": ({}, replace(CONFIG_MODEL, positions="relative", attention_dropout=0.1)),
    "rotary positions": ({}, replace(CONFIG_MODEL, positions="rotary")),
}


@pytest.mark.parametrize("name", PROCEDURES)
def test_procedures_in_a_graph_learn_and_resume_to_the_last_bit(tmp_path, name):
    """Stopped at the step at which the model grows."""
    settings, model = PROCEDURES[name]
    config = replace(CONFIG, **settings)
    whole = run_on("cuda", tmp_path / "whole", config, "bf16", "packed", model)
    run_on("cuda", tmp_path / "parts", replace(config, max_steps=11), "bf16", "packed", model)
    assert run_on("cuda", tmp_path / "parts", config, "bf16", "packed", model) == whole
    assert whole[-1] < whole[0]


def test_a_replayed_pass_draws_anew_what_it_leaves_out():
    from deepnmt.training.graph_engine import GraphEngine

    device, config = torch.device("cuda"), replace(TRAINING, precision="fp32", compile=False)
    stream = BatchStream({"train": corpus()}, replace(PACKED, tokens_per_batch=512), seed=1, tokens_per_update=512)
    objective = Objective(Transformer(replace(SKIPPING, dropout=0.0)).to(device), config, device)
    engine, update = GraphEngine(objective, World(0, 1, device)), stream.update(0, 0)
    scale = torch.ones((), device=device)
    losses = [engine.accumulate(update, scale, Noise(seed))[0].item() for seed in (1, 2, 3, 4, 5, 6, 1)]
    assert losses[0] == losses[-1] and len(set(losses)) > 2


DEEP = replace(
    CONFIG_MODEL,
    dropout=0.0,
    encoder=replace(CONFIG_MODEL.encoder, num_layers=12, dim=128, ffn_dim=256, num_heads=4),
    decoder=replace(CONFIG_MODEL.decoder, num_layers=2, dim=128, ffn_dim=256, num_heads=4),
)
SIX = replace(CONFIG, max_steps=6, save_every=3, save_epochs=False)


@contextmanager
def room_for(num_bytes):
    """Let this process use so much memory of the device in all."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, num_bytes / total))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def release():
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_reserved()


def test_packed_batch_that_does_not_fit_is_computed_in_pieces_and_the_run_ends_the_same(tmp_path, capsys):
    """32k tokens a batch through compiled layers and a graph, in a little over half of the memory that takes."""
    torch._dynamo.reset()
    data = corpus(16_000)
    settings = {"model_config": DEEP, "tokens": 32_768, "data": data}
    before = release()
    wanted = run_on("cuda", tmp_path / "roomy", SIX, "bf16", "packed", **settings)
    needed = torch.cuda.max_memory_reserved() - before
    before = release()
    with room_for(before + 0.65 * needed):
        found = run_on("cuda", tmp_path / "tight", SIX, "bf16", "packed", **settings)
    assert found == pytest.approx(wanted, rel=5e-3)
    assert capsys.readouterr().err.count("batching.tokens_per_batch") == 1
    state = json.loads((tmp_path / "tight" / "checkpoints" / "step-00000006" / "state.json").read_text())
    room = state["run"]["split_room"]
    assert room is not None and room[0] % 128 == 0 and room[0] < 32_768
    with room_for(release() + 0.65 * needed):
        run_on("cuda", tmp_path / "tight", replace(SIX, max_steps=8), "bf16", "packed", **settings)
    assert not capsys.readouterr().err.count("out of memory"), "a resumed run knows what fits"


@pytest.mark.parametrize("fails", ["forward", "backward"])
def test_failure_in_the_middle_of_recording_leaves_nothing_behind(monkeypatch, fails):
    """Neither memory nor a state of the generator or the allocator: the smaller recording computes as always."""
    from deepnmt.training.graph_engine import GraphEngine

    update = next(BatchStream({"train": corpus(4000)}, PACKED, seed=1, tokens_per_update=8192))
    world = World(0, 1, torch.device("cuda"))
    forward, failures = Objective.forward, []

    def tight(self, batch):
        loss, nll = forward(self, batch)
        if torch.cuda.is_current_stream_capturing() and batch.source.numel() > 6000:
            failures.append(batch.source.numel())
            if fails == "forward":
                raise torch.OutOfMemoryError("while recording")
            return _Fails.apply(loss), nll
        return loss, nll

    def gradients(limited):
        torch.manual_seed(1)
        model = Transformer(replace(DEEP, dropout=0.1)).cuda().train()
        config = replace(CONFIG, compile=False, precision="bf16")
        engine = GraphEngine(Objective(model, config, world.device), world)
        engine.splitter.room = None if limited else (4352, 4352)
        release()
        sums = engine.accumulate(update, torch.ones((), device="cuda"), Noise(1))
        return sums, [p.grad.clone() for p in model.parameters()], release(), engine.splitter.room

    direct = gradients(limited=False)
    monkeypatch.setattr(Objective, "forward", tight)
    retried = gradients(limited=True)
    assert failures == [8192]
    assert retried[3] == direct[3] == (4352, 4352)
    assert torch.equal(direct[0], retried[0])
    assert all(torch.equal(one, other) for one, other in zip(direct[1], retried[1], strict=True))
    assert retried[2] <= direct[2] * 1.1 + 2**25, "the memory of the failed recording is given back"


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss):
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise torch.OutOfMemoryError("while recording")


@pytest.mark.parametrize("kind", ["GraphEngine", "EagerEngine"])
def test_gradients_repeat_to_the_last_bit(kind):
    """At a size at which torch's own embedding adds up in an order that varies; else a resumed run would drift."""
    from deepnmt.training import engine, graph_engine

    make_engine = getattr(graph_engine if kind == "GraphEngine" else engine, kind)
    update = next(BatchStream({"train": corpus(4000)}, PACKED, seed=1, tokens_per_update=8192))

    def gradients():
        torch.manual_seed(1)
        model = Transformer(replace(DEEP, dropout=0.1)).cuda().train()
        config, device = replace(CONFIG, precision="bf16"), torch.device("cuda")
        made = make_engine(Objective(model, config, device), World(0, 1, device))
        made.accumulate(update, torch.ones((), device="cuda"), Noise(1))
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    once, again = gradients(), gradients()
    assert [name for name in once if not torch.equal(once[name], again[name])] == []


def test_memory_plan_is_an_even_share_that_fits_and_gives_its_memory_back(tmp_path):
    from deepnmt.config import Recipe
    from deepnmt.training.assembly import plan_memory
    from deepnmt.training.graph_engine import GraphEngine

    training = replace(TRAINING, tokens_per_update=2**18, precision="bf16", compile=False)
    recipe = Recipe(model=DEEP, batching=PACKED, training=training)
    data = corpus(40_000)
    world = World(0, 1, torch.device("cuda", torch.cuda.current_device()))
    before, held = release(), torch.cuda.memory_allocated()
    work_spaces = 2**27  # of the matrix library, which it keeps for good once a stream has used it
    with room_for(before + 2**30):
        planned = plan_memory(recipe, dataset(data), world)
        assert torch.cuda.memory_reserved() <= before + work_spaces, "what it tried with is freed"
        assert torch.cuda.max_memory_allocated() <= held + work_spaces, "and not counted as the run's"
        assert 256 <= planned < 2**18 and planned % 128 == 0
        passes = round(training.tokens_per_update / planned)
        assert abs(passes * planned - training.tokens_per_update) <= 128 * passes

        def pieces(kind, tokens):
            model = Transformer(DEEP).cuda().train()
            engine = kind(Objective(model, training, world.device), world)
            stream = BatchStream({"train": data}, replace(PACKED, tokens_per_batch=tokens), seed=1)
            engine.accumulate(next(stream), torch.ones((), device="cuda"), Noise(1))
            return engine.splitter.room

        assert pieces(GraphEngine, planned) is None
        release()
        assert pieces(EagerEngine, 2 * planned + 256) is not None, "no room for twice as much"
    release()
