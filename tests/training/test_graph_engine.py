"""The engine of a GPU computes what plain torch does, and its noise follows the seed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from small import CONFIG_MODEL, TRAINING, corpus

from deepnmt.data.batching import BatchingConfig, BatchStream, Update
from deepnmt.model.connections import CONNECTIONS, ConnectionConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.connections.residual import ResidualConfig
from deepnmt.model.kernels.dropout import draw_seeds
from deepnmt.model.sequences import PackedSequences
from deepnmt.model.sublayers import SUBLAYERS, SublayerConfig
from deepnmt.model.transformer import Transformer
from deepnmt.training import distributed
from deepnmt.training.distributed import World
from deepnmt.training.engine import EagerEngine, Noise, Objective

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def updates(count: int) -> list[Update]:
    config = BatchingConfig(layout="packed", tokens_per_batch=256)
    stream = BatchStream({"train": corpus()}, config, seed=1, tokens_per_update=512)
    return [next(stream) for _ in range(count)]


def engine(
    graphed: bool,
    dropout: float,
    precision: Any,
    compiled: bool = True,
    connection: ConnectionConfig | None = None,
    sublayer: SublayerConfig | None = None,
    ranks: int = 1,
) -> tuple[Any, Transformer]:
    from deepnmt.training.graph_engine import GraphEngine

    torch.manual_seed(1)
    connected = {
        side: replace(
            getattr(CONFIG_MODEL, side), connection=connection or DlclConfig(), sublayer=sublayer, num_layers=6
        )
        for side in ("encoder", "decoder")
    }
    config = replace(CONFIG_MODEL, dropout=dropout, attention_dropout=dropout, ffn_dropout=dropout, **connected)
    model = Transformer(config).cuda().train()
    kind = GraphEngine if graphed else EagerEngine
    world = World(0, ranks, torch.device("cuda"))
    training = replace(TRAINING, compile=compiled, precision=precision)
    return kind(Objective(model, training, world.device), world), model


def run(made: tuple[Any, Transformer], update: Update, seed: int = 1) -> tuple[torch.Tensor, list[torch.Tensor]]:
    sums = made[0].accumulate(update, torch.ones((), device="cuda"), Noise(seed))
    return sums.clone(), [p.grad.clone() for p in made[1].parameters() if p.grad is not None]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 0.12)])
def test_gradients_are_those_of_plain_torch(precision: str, tolerance: float, compiled: bool) -> None:
    torch._dynamo.reset()
    graphed, plain = engine(True, 0.0, precision, compiled), engine(False, 0.0, "fp32")
    for update in updates(3):
        (sums, gradients), (plain_sums, plain_gradients) = run(graphed, update), run(plain, update)
        torch.testing.assert_close(sums, plain_sums, rtol=tolerance / 10, atol=0)
        for gradient, expected in zip(gradients, plain_gradients, strict=True):
            assert (gradient - expected).norm() <= tolerance * expected.norm() + 1e-6


def check_recorded(compiled: bool, **scheme: Any) -> None:
    torch._dynamo.reset()
    graphed, plain = engine(True, 0.0, "fp32", compiled, **scheme), engine(False, 0.0, "fp32", **scheme)
    for update in updates(2):
        (sums, gradients), (plain_sums, plain_gradients) = run(graphed, update), run(plain, update)
        torch.testing.assert_close(sums, plain_sums, rtol=1e-4, atol=0)
        for gradient, expected in zip(gradients, plain_gradients, strict=True):
            assert (gradient - expected).norm() <= 2e-3 * expected.norm() + 1e-6


@pytest.mark.parametrize("kind", CONNECTIONS)
def test_every_connection_is_recorded(kind: str) -> None:
    check_recorded(compiled=False, connection=CONNECTIONS[kind].Config())  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", SUBLAYERS)
def test_every_scheme_around_sublayers_is_compiled_and_recorded(kind: str) -> None:
    check_recorded(compiled=True, connection=ResidualConfig(), sublayer=SUBLAYERS[kind].Config())  # type: ignore[call-arg]


def test_the_same_seed_gives_the_same_noise_and_another_seed_another() -> None:
    torch._dynamo.reset()
    made = engine(True, 0.3, "bf16")
    update = updates(1)[0]
    (first, gradients), (again, same), (other, _) = run(made, update), run(made, update), run(made, update, seed=2)
    assert torch.equal(first, again)
    assert all(torch.equal(left, right) for left, right in zip(gradients, same, strict=True))
    assert not torch.equal(first, other)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_noise_of_a_compiled_layer_is_that_of_the_seeds_dealt_to_it(checkpointing: bool) -> None:
    """Two layers of the same weights: equal with the same seeds, and also when a backward pass computes them again."""
    from deepnmt.training.graph_engine import compiled_layers

    torch._dynamo.reset()
    (_, model), seeds = engine(True, 0.3, "fp32"), draw_seeds(2, torch.device("cuda"))
    first, second = model.encoder.layers[:2]
    second.load_state_dict(first.state_dict())
    text = PackedSequences(torch.ones(64, dtype=torch.long).cuda(), torch.arange(0, 65, 8, dtype=torch.int32).cuda())
    inputs = torch.randn(64, 16, device="cuda")  # not all the same, of which a norm would leave nothing

    def compute(layer: torch.nn.Module, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = inputs.clone().requires_grad_()
        result = model.encoder._run(layer, x, (text.whole(),), rows)
        model.encoder._run(layer, x, (text.whole(),), seeds[1].flip(0))
        result.square().sum().backward()
        assert x.grad is not None
        return result.detach(), x.grad

    with compiled_layers(model):
        wanted, gradient = compute(first, seeds[0])
        model.checkpoint_activations(checkpointing)
        for layer, rows, is_equal in ((second, seeds[0], True), (second, seeds[1], False), (first, seeds[0], True)):
            found = compute(layer, rows)
            assert torch.equal(found[0], wanted) is is_equal
            assert torch.allclose(found[1], gradient, rtol=1e-4, atol=1e-5) is is_equal


def test_evaluation_is_not_compiled_after_training() -> None:
    torch._dynamo.reset()
    made = engine(True, 0.1, "bf16")
    run(made, updates(1)[0])
    assert all(layer._compiled_call_impl is None for layer in made[1].encoder.layers)


@pytest.fixture
def nccl() -> Iterator[None]:
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Doubled:
    """NCCL's sum of one rank, twice: as if two ranks had the same gradients."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.begun, self.done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.begun.record()
        ALL_REDUCE(tensor)
        tensor *= 2
        self.done.record()

    def wait(self) -> None:
        self.done.wait()


ALL_REDUCE = dist.all_reduce


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ranks_exchange_complete_gradients_before_the_pass_ends(
    monkeypatch: pytest.MonkeyPatch, nccl: None, precision: str
) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(distributed, "BUCKET_BYTES", 20_000)
    alone, one_of_two = engine(True, 0.1, precision), engine(True, 0.1, precision, ranks=2)
    begun: list[Doubled] = []

    def all_reduce(tensor: torch.Tensor, async_op: bool) -> Doubled:
        begun.append(Doubled(tensor))
        return begun[-1]

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    for update in updates(3):
        begun.clear()
        sums, wanted = run(alone, update)
        found = one_of_two[0].accumulate(update, torch.ones((), device="cuda"), Noise(1))
        end = torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True))
        one_of_two[0].gradient_sum.finish()
        assert torch.equal(sums, found)
        gradients = [p.grad for p in one_of_two[1].parameters() if p.grad is not None]
        for gradient, expected in zip(gradients, wanted, strict=True):
            assert torch.equal(gradient, 2 * expected)
    torch.cuda.synchronize()
    buckets = one_of_two[0].gradient_sum.buckets
    assert len(begun) == len(buckets) > 5
    assert sum(bucket.mark is not None for bucket in buckets) > 4
    ahead = [one.begun.elapsed_time(end) for one in begun]
    print(f"{precision}: buckets begin {[round(1000 * time) for time in ahead]} us before the end of the last pass")
    assert ahead[0] > 0.02 and ahead == sorted(ahead, reverse=True)
