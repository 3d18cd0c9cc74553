"""The mixtures as products equal those of the plain tape, in value and in every gradient."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from deepnmt.model.kernels.mixture import MixtureTape, Tape, open_tape
from deepnmt.model.kernels.mixture_products import ProductsMixtureTape
from deepnmt.model.sublayer import LayerNorm

DIM, COUNT = 24, 7


class Stack:
    """Layers between the rows of a tape, with nothing at a special value."""

    def __init__(self, depth: int, normed: bool, dtype: torch.dtype, window: int | None = None) -> None:
        torch.manual_seed(4)
        self.matrix = torch.randn(depth + 1, depth + 1).tril().triu(1 - (window or depth + 1)).unsqueeze(2)
        self.window = window
        self.start = torch.randn(3, COUNT, DIM).to(dtype)
        exact = torch.promote_types(dtype, torch.float32)
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM).to(dtype) for _ in range(depth))
        self.norms = nn.ModuleList((LayerNorm(DIM) if normed else nn.Identity()).to(exact) for _ in range(depth + 1))
        for parameter in self.norms.parameters():
            nn.init.normal_(parameter)

    def to(self, dtype: torch.dtype) -> "Stack":
        other = deepcopy(self)
        other.start, other.layers, other.norms = self.start.to(dtype), other.layers.to(dtype), other.norms.to(dtype)
        return other

    def rows(self, tape: Tape, start: Tensor) -> list[Tensor]:
        history, rows = [tape.enter(start, self.norms[0])], []
        for row, norm in enumerate(self.norms[1:]):
            rows.append(tape.mix(history, row))
            history.append(tape.enter(torch.tanh(self.layers[row](rows[-1])), norm))
        return [*rows, tape.mix(history, len(rows))]

    def tape(self, products: bool, matrix: Tensor) -> Tape:
        return ProductsMixtureTape(matrix[:, :, 0]) if products else MixtureTape(matrix, self.window)

    def results(self, products: bool) -> list[Tensor]:
        matrix, start = self.matrix.clone().requires_grad_(), self.start.clone().requires_grad_()
        rows = self.rows(self.tape(products, matrix), start)
        leaves = [matrix, start, *self.layers.parameters(), *self.norms.parameters()]
        gradients = torch.autograd.grad(rows[-1], leaves, torch.ones_like(rows[-1]))
        connected = self.matrix != 0
        return [*rows, gradients[0][connected], *gradients[1:]]


def distance(found: Tensor, exact: Tensor) -> float:
    found, exact = found.detach().double(), exact.detach().double()
    return float((found - exact).norm() / (exact.norm() + 1e-9))


@pytest.mark.parametrize(("depth", "window"), [(1, None), (5, None), (14, None), (6, 3), (6, 1)])
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-7), (torch.float32, 2e-5)])
def test_products_equal_their_twin(depth, window, normed, dtype, tolerance):
    stack = Stack(depth, normed, dtype, window)
    for found, plain in zip(stack.results(True), stack.results(False), strict=True):
        assert found.dtype is plain.dtype
        assert distance(found, plain) < tolerance


@pytest.mark.parametrize("normed", [True, False])
def test_in_half_precision_products_are_no_further_from_the_truth_than_their_twin(normed):
    stack = Stack(9, normed, torch.bfloat16)
    exact = stack.to(torch.float64).results(False)
    with torch.autocast("cpu", torch.bfloat16):
        found, plain = stack.results(True), stack.results(False)
    for ours, theirs, truth in zip(found, plain, exact, strict=True):
        assert ours.dtype is theirs.dtype
        assert distance(ours, truth) < 1.5 * distance(theirs, truth) + 1e-5


@pytest.mark.parametrize("products", [True, False])
def test_a_graph_can_be_run_backwards_from_one_row_and_then_from_another(products):
    stack = Stack(5, True, torch.float64)
    matrix = stack.matrix.clone().requires_grad_()
    independent = [torch.randn(COUNT, DIM, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    tape = stack.tape(products, matrix)
    history = []
    rows = []
    for row, output in enumerate(independent):
        history.append(tape.enter(output, nn.Identity()))
        rows.append(tape.mix(history, row))
    for row in (2, 0, 1, 2):
        gradients = torch.autograd.grad(rows[row].sum(), [matrix, *independent[: row + 1]], retain_graph=True)
        for k, gradient in enumerate(gradients[1:]):
            torch.testing.assert_close(gradient, matrix[row, k].double().expand(COUNT, DIM))
        expected = torch.zeros_like(matrix)
        expected[row, : row + 1, 0] = torch.stack([output.sum() for output in independent[: row + 1]]).float()
        torch.testing.assert_close(gradients[0], expected.detach())


@pytest.mark.parametrize("frozen", ["matrix", "start"])
def test_what_is_frozen_gets_no_gradient_and_the_rest_keeps_its_own(frozen):
    stack = Stack(4, True, torch.float64)
    found = []
    for products in (True, False):
        matrix = stack.matrix.clone().requires_grad_(frozen != "matrix")
        start = stack.start.clone().requires_grad_(frozen != "start")
        out = stack.rows(stack.tape(products, matrix), start)[-1]
        leaves = [x for x in (matrix, start, *stack.layers.parameters()) if x.requires_grad]
        found.append(torch.autograd.grad(out.sum(), leaves))
    torch.testing.assert_close(*found)


def test_training_on_a_cpu_multiplies_and_translating_keeps_no_buffer():
    matrix = torch.ones(3, 3, 1)
    assert isinstance(open_tape(matrix), ProductsMixtureTape)
    assert isinstance(open_tape(matrix.expand(3, 3, 2)), MixtureTape)
    with torch.no_grad():
        assert isinstance(open_tape(matrix), MixtureTape)
