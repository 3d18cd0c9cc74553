"""Attention in shared rows equals its plain twin, values and gradients."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from one_by_one import attend_one_by_one
from pytest import mark
from torch import Tensor

from deepnmt.model.attention import KeysValues
from deepnmt.model.kernels.packed_rows import SHORTEST_ROW, Rows
from deepnmt.model.sequences import PackedSequences

# Most are short, as in text; some fill a row, or need a longer one.
LENGTH = st.one_of(st.integers(0, 9), st.integers(0, 9), st.integers(50, SHORTEST_ROW + 1), st.just(150))
LENGTHS = st.lists(LENGTH, min_size=1, max_size=12)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.04}
DTYPES = st.sampled_from(list(TOLERANCE))


def packed(lengths: list[int], tail: int) -> PackedSequences:
    offsets = torch.tensor([0, *lengths]).cumsum(0).int()
    return PackedSequences(torch.ones(sum(lengths) + tail, dtype=torch.long), offsets)


def random(*sizes: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*sizes).to(dtype).requires_grad_()


def exactly(x: Tensor) -> Tensor:
    return x.detach().double().requires_grad_()


def agree(found: Tensor, wanted: Tensor, inputs: list[Tensor], exact: list[Tensor]) -> None:
    """The gradients too, of which those of the twin are from its own, exact inputs."""
    assert found.dtype == inputs[0].dtype
    gradient = torch.randn_like(found)
    ours = [found, *torch.autograd.grad(found, inputs, gradient)]
    plain = [wanted, *torch.autograd.grad(wanted, exact, gradient.double())]
    tolerance = TOLERANCE[found.dtype]
    for one, other in zip(ours, plain, strict=True):
        largest = max([1.0, *other.abs().flatten().tolist()])  # of a sum, terms that cancel out leave their rounding
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance * largest)


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 3), st.booleans(), DTYPES)
def test_of_a_text_to_itself(lengths: list[int], tail: int, causal: bool, dtype: torch.dtype) -> None:
    text = packed(lengths, tail)
    projected = random(len(text.ids), 3, 2, 4, dtype=dtype)
    visibility = text.past() if causal else text.whole()
    found = visibility.attend_itself(projected, 0.0)
    exact = exactly(projected)
    agree(found, attend_one_by_one(*exact.unbind(1), text, text, causal), [projected], [exact])
    assert not found[sum(lengths) :].any()


@settings(deadline=None)
@given(st.lists(st.tuples(LENGTH, LENGTH), min_size=1, max_size=12), st.integers(0, 3), DTYPES)
def test_of_a_translation_to_its_source(pairs: list[tuple[int, int]], tail: int, dtype: torch.dtype) -> None:
    source, target = packed([a for a, _ in pairs], tail), packed([b for _, b in pairs], 2 * tail)
    inputs = [random(len(text.ids), 2, 4, dtype=dtype) for text in (target, source, source)]
    found = target.translated(source).attend(inputs[0], KeysValues(*inputs[1:]), 0.0)
    exact = [exactly(x) for x in inputs]
    if not any(a and b for a, b in pairs):
        assert not found.any()
        assert not any(x.any() for x in torch.autograd.grad(found, inputs, torch.ones_like(found)))
        return
    agree(found, attend_one_by_one(*exact, target, source), inputs, exact)


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 3))
def test_every_token_of_a_sentence_has_a_slot_of_its_own_in_one_row(lengths: list[int], tail: int) -> None:
    text = packed(lengths, tail)
    rows = Rows(text.offsets, text.offsets, len(text.ids), len(text.ids), causal=False)
    slots = np.flatnonzero(rows.queries.token >= 0)
    place = slots[np.argsort(rows.queries.token[slots])]
    assert (rows.queries.token[place] == range(sum(lengths))).all()
    row_of_slot = [row for block in rows.blocks for row in _rows(block.rows, block.width, block.slots.start)]
    for start, end in text.offsets.unfold(0, 2, 1).tolist():
        assert len({row_of_slot[slot] for slot in place[start:end]}) <= 1


def _rows(number: int, width: int, first: int) -> list[tuple[int, int]]:
    return [(first, row) for row in range(number) for _ in range(width)]


def test_short_sentences_share_rows() -> None:
    text = packed([8] * 16 + [100], 0)
    rows = Rows(text.offsets, text.offsets, len(text.ids), len(text.ids), causal=False)
    assert sum(block.rows * block.width for block in rows.blocks) < 1.2 * len(text.ids)


@mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dropout_leaves_the_mean_and_follows_the_seed(dtype: torch.dtype) -> None:
    text = packed([4, 7, 1], 1)
    projected = random(len(text.ids), 3, 2, 4, dtype=dtype)
    visibility = text.whole()
    plain = visibility.attend_itself(projected, 0.0)
    torch.manual_seed(1)
    first = visibility.attend_itself(projected, 0.5)
    torch.manual_seed(1)
    again = visibility.attend_itself(projected, 0.5)
    assert torch.equal(first, again)
    assert not torch.equal(first, visibility.attend_itself(projected, 0.5))
    drawn = torch.stack([visibility.attend_itself(projected, 0.5).double() for _ in range(2000)])
    standard_error = drawn.std(0) / len(drawn) ** 0.5
    assert ((drawn.mean(0) - plain.double()).abs() <= 6 * standard_error + 0.01).all()


def test_the_gradient_under_dropout_is_that_of_the_value() -> None:
    text = packed([3, 70, 2], 1)
    projected = random(len(text.ids), 3, 1, 2)
    visibility = text.past()

    def attended(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return visibility.attend_itself(x, 0.3)

    direction, gradient = torch.randn_like(projected), torch.randn(len(text.ids), 1, 2, dtype=torch.float64)
    (found,) = torch.autograd.grad(attended(projected), projected, gradient)
    step = 1e-6 * direction
    with torch.no_grad():
        change = ((attended(projected + step) - attended(projected - step)) * gradient).sum() / 2e-6
    torch.testing.assert_close((found * direction).sum(), change, rtol=1e-6, atol=1e-6)


def test_the_layers_type_is_kept_under_autocast() -> None:
    text = packed([3, 70, 2], 1)
    projected = random(len(text.ids), 3, 2, 4, dtype=torch.float32)
    plain = text.whole().attend_itself(projected, 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(text.whole().attend_itself(projected, 0.0), plain)
