"""The kernels of dynamic connections agree with their plain twins: mixtures with weights of every position, networks
that compute these weights, Sinkhorn.

Needs a GPU, or Triton's interpreter (TRITON_INTERPRET=1).
"""

import gc
import os
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.connections.connection import StackShape
from deepnmt.model.connections.dynamic_dense import DynamicDenseConfig
from deepnmt.model.connections.manifold_hyper import ROUNDS, sinkhorn
from deepnmt.model.kernels import mixture

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (torch.cuda.is_available() or INTERPRETED), reason="needs a CUDA device"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]  # the interpreter rounds bf16 towards zero

SCHEMES = {kind: CONNECTIONS[kind].Config() for kind in ("dynamic-dense", "dynamic-dlcl", "attention-residual")} | {
    "dynamic-dense-periodic": DynamicDenseConfig(period=3),
    "dynamic-dense-sparse": DynamicDenseConfig(period=3, dilation=3),
    "dynamic-dense-dilated": DynamicDenseConfig(period=2, dilation=4),
}


def distance(left: Tensor, right: Tensor) -> float:
    left, right = left.detach().double(), right.detach().double()
    return float((left - right).norm() / right.norm())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(37, 48), (3, 5, 64)], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_fused_tape_equals_the_plain_one(
    scheme: str, shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole stack of stand-in layers: outputs, and gradients of inputs and weights."""
    torch.manual_seed(1)
    layers, config = 7, SCHEMES[scheme]
    stack = StackShape(num_layers=layers, dim=shape[-1], norm="pre", num_readers=1)
    connection = CONNECTIONS[config.kind](config, stack).to(DEVICE)
    with torch.no_grad():
        for parameter in connection.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    embedding = torch.randn(shape, device=DEVICE)
    direction = torch.randn(shape, device=DEVICE)
    open_tape = mixture.open_position_tape

    def run(fused: bool, dtype: torch.dtype) -> list[Tensor]:
        for module in ("dynamic_dense", "attention_residual"):
            monkeypatch.setattr(
                f"deepnmt.model.connections.{module}.open_position_tape",
                lambda outputs, rows, on_gpu: open_tape(outputs, rows, on_gpu=fused),
            )
        connection.zero_grad()
        start = embedding.to(dtype, copy=True).requires_grad_()
        with torch.autocast(torch.device(DEVICE).type, dtype, enabled=dtype is not torch.float32):
            history = connection.begin()
            connection.write(history, start * 1)
            for _ in range(layers):
                connection.write(history, torch.sin(connection.read(history)))
            result = connection.read(history)
        (result.float() * direction).sum().backward()
        return [result, start.grad, *(p.grad for p in connection.parameters())]

    for exact, plain, found in zip(run(False, torch.float32), run(False, dtype), run(True, dtype), strict=True):
        limit = (2.5 if exact.numel() > 100 else 5) * distance(plain, exact) + 1e-5  # few numbers: their luck differs
        assert distance(found, exact) < limit, "about as near to the truth as its twin"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("outputs", "shape"),
    [(2, (1, 16)), (15, (3, 5, 64)), (16, (70, 48)), (40, (5, 136)), (101, (17, 40)), (130, (2, 16))],
    ids=str,
)
def test_networks_equal_their_twin(outputs: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """A row alone, of outputs that do not depend on each other: deep stacks magnify what rounding does. Run twice, the
    kernels give the same to the last bit."""
    from deepnmt.model.kernels.position_mixture_triton import FusedPositionTape

    torch.manual_seed(4)
    dim = shape[-1]
    sizes = [(1, outputs), (outputs + 1, dim), (outputs, outputs + 1), *[shape] * outputs]
    scales = [1, dim**-0.5, outputs**-0.5, *[1] * outputs]
    given = [scale * torch.randn(size, device=DEVICE) for size, scale in zip(sizes, scales, strict=True)]
    direction = torch.randn(shape, device=DEVICE)

    def run(tape: mixture.PositionTape, dtype: torch.dtype, parameters: torch.dtype = torch.float32) -> list[Tensor]:
        own = [tensor.to(parameters if i < 3 else dtype).requires_grad_() for i, tensor in enumerate(given)]
        base, inner, outer, *history = own
        with torch.autocast(torch.device(DEVICE).type, torch.bfloat16, enabled=dtype is torch.bfloat16):
            networks = mixture.Networks(base, [inner], [outer])
            mixed = tape.mix_by(networks, 0, [tape.enter(output) for output in history])
        (mixed.float() * direction).sum().backward()
        return [mixed.detach(), *(tensor.grad for tensor in own)]

    exact = run(mixture.PositionTape(), torch.float64, torch.float64)
    found, again = (run(FusedPositionTape(outputs, 1), dtype) for _ in range(2))
    for truth, plain, fused, same in zip(exact, run(mixture.PositionTape(), dtype), found, again, strict=True):
        assert distance(fused, truth) < 2.5 * distance(plain, truth) + 2e-6
        assert torch.equal(fused, same)


def test_a_pass_is_freed_without_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its buffers are as large as all outputs together."""
    open_tape = mixture.open_position_tape
    monkeypatch.setattr(
        "deepnmt.model.connections.dynamic_dense.open_position_tape",
        lambda outputs, rows, on_gpu: open_tape(outputs, rows, on_gpu=True),
    )
    stack = StackShape(num_layers=2, dim=16, norm="pre", num_readers=1)
    connection = CONNECTIONS["dynamic-dense"](DynamicDenseConfig(), stack).to(DEVICE)
    history = connection.begin()
    for _ in range(3):
        connection.write(history, torch.randn(4, 16, device=DEVICE))
        result = connection.read(history)
    tape = weakref.ref(history.groups[0][0])
    gc.disable()
    try:
        del history, result
        assert tape() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("positions", "n"), [((70,), 4), ((3, 5), 3), ((1,), 2)], ids=str)
def test_sinkhorn_equals_its_twin(positions: tuple[int, ...], n: int) -> None:
    """Far apart too: exp of the least is nothing beside the greatest."""
    from deepnmt.model.kernels.sinkhorn_triton import fused_sinkhorn

    torch.manual_seed(2)
    logits = (8 * torch.randn(*positions, n, n, device=DEVICE)).requires_grad_()
    exact = logits.detach().cpu().double().requires_grad_()
    direction = torch.randn_like(logits)
    fused, plain = fused_sinkhorn(logits, ROUNDS), sinkhorn(exact)
    (fused * direction).sum().backward()
    (plain * direction.cpu().double()).sum().backward()
    assert distance(fused.cpu(), plain) < 1e-5
    assert distance(logits.grad.cpu(), exact.grad) < 1e-4


@pytest.mark.parametrize("with_branch", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_mixtures_of_streams_equal_their_twin(with_branch: bool, is_first: bool) -> None:
    from deepnmt.model.kernels.streams_triton import fused_mix_streams

    torch.manual_seed(3)
    n, shape, outputs = 4, (37, 48), 4 if with_branch else 1
    streams = torch.randn(1 if is_first else n, *shape, device=DEVICE, requires_grad=True)
    branch = torch.randn(shape, device=DEVICE, requires_grad=True)
    weights = torch.randn(shape[0], n + with_branch, outputs, device=DEVICE, requires_grad=True)
    direction = torch.randn(outputs, *shape, device=DEVICE)
    given = [streams, weights, *([branch] if with_branch else [])]

    def run(mix: Callable[..., Tensor], place: str) -> list[Tensor]:
        own = [tensor.detach().to(place).requires_grad_() for tensor in given]
        mixed = mix(own[0].expand(n, *shape), own[2] if with_branch else None, own[1])
        (mixed * direction.to(place)).sum().backward()
        return [mixed.cpu(), *(tensor.grad.cpu() for tensor in own)]

    for found, exact in zip(run(fused_mix_streams, DEVICE), run(mixture.mix_streams, "cpu"), strict=True):
        assert distance(found, exact) < 1e-5
