"""Attention in groups of like length equals its plain twin, values and gradients."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepnmt.model.kernels.packed_attention import Reach, attend_packed
from deepnmt.model.sequences import PackedSequences

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


def packed(lengths: list[int], tail: int) -> PackedSequences:
    offsets = torch.tensor([0, *lengths]).cumsum(0).int()
    return PackedSequences(torch.ones(sum(lengths) + tail, dtype=torch.long), offsets)


def random(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)


def agree(found: Tensor, wanted: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(found, wanted)
    gradient = torch.randn_like(found)
    ours = torch.autograd.grad(found, inputs, gradient)
    plain = torch.autograd.grad(wanted, inputs, gradient)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other)


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 3), st.booleans())
def test_of_a_text_to_itself(lengths: list[int], tail: int, causal: bool) -> None:
    text = packed(lengths, tail)
    projected = random(len(text.ids), 3, 2, 4)
    visibility = text.past() if causal else text.whole()
    found = visibility.attend_itself(projected, 0.0)
    reach = Reach(*text.bounds_in(text) * 2)
    agree(found, attend_packed(*projected.unbind(1), reach, 0.0, causal), [projected])
    assert not found[sum(lengths) :].any()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12), st.integers(0, 3))
def test_of_a_translation_to_its_source(pairs: list[tuple[int, int]], tail: int) -> None:
    source, target = packed([a for a, _ in pairs], tail), packed([b for _, b in pairs], 2 * tail)
    if not any(a and b for a, b in pairs):
        return  # nobody sees anything
    query, keys, values = random(len(target.ids), 2, 4), random(len(source.ids), 2, 4), random(len(source.ids), 2, 4)
    found = target.translated(source).attend(query, (keys, values), 0.0)
    reach = Reach(*target.bounds_in(source), *source.bounds_in(target))
    agree(found, attend_packed(query, keys, values, reach, 0.0), [query, keys, values])
