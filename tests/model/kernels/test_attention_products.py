"""Attention by products equals torch's fused one, values and gradients."""

import torch
from pytest import mark
from torch import Tensor

from deepnmt.model.attention import KeysValues, attend_padded
from deepnmt.model.kernels.attention_products import attend_by_products

# A softmax row of less than a register, of some and a part, and of whole ones; bf16 has its own way for each.
LENGTHS = [5, 17, 64]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.03}


def random_inputs(queries: int, keys: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """query, keys and values of two heads, and the gradient of the result"""
    query, seen, gradient = (torch.randn(n, 3, length, 2, 8) for n, length in ((1, queries), (2, keys), (1, queries)))
    return [x.to(dtype).requires_grad_() for x in (*query, *seen)], gradient[0].to(dtype)


def gradients(output: Tensor, inputs: list[Tensor], gradient: Tensor) -> list[Tensor]:
    return [x.double() for x in (output, *torch.autograd.grad(output, inputs, gradient.to(output.dtype)))]


@mark.parametrize("dtype", TOLERANCE)
@mark.parametrize("length", LENGTHS)
@mark.parametrize("causal", [True, False])
def test_products_and_fused_attention_agree(causal: bool, length: int, dtype: torch.dtype) -> None:
    inputs, gradient = random_inputs(length if causal else 7, length, dtype)
    visible = torch.rand(3, 1, 1, length) > 0.3
    visible[..., 0] = True
    hidden = ~visible
    if causal:
        hidden = ~torch.ones(1, 1, length, length, dtype=torch.bool).tril()
    exact = [x.detach().double().requires_grad_() for x in inputs]
    fused = attend_padded(exact[0], KeysValues(*exact[1:]), 0.0, None if causal else visible, causal)
    expected = gradients(fused, exact, gradient)
    found = gradients(attend_by_products(*inputs, hidden, 0.0), inputs, gradient)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@mark.parametrize("length", LENGTHS)
@mark.parametrize("mask", ["none", "causal", "padding"])
def test_training_in_bf16_sees_what_others_see(mask: str, length: int) -> None:
    inputs, gradient = random_inputs(length, length, torch.bfloat16)
    visible = torch.arange(length) < torch.tensor([1, length // 2, length])[:, None, None, None]
    arguments = (0.0, visible if mask == "padding" else None, mask == "causal")
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = gradients(attend_padded(exact[0], KeysValues(*exact[1:]), *arguments), exact, gradient)
    found = gradients(attend_padded(inputs[0], KeysValues(*inputs[1:]), *arguments), inputs, gradient)
    torch.testing.assert_close(found, expected, rtol=0.03, atol=0.03)


@mark.parametrize("length", LENGTHS)
def test_who_sees_nothing_disturbs_nobody(length: int) -> None:
    inputs, gradient = random_inputs(length, length, torch.bfloat16)
    hidden = torch.zeros(3, 1, 1, length, dtype=torch.bool)
    hidden[1] = True
    found = gradients(attend_by_products(*inputs, hidden, 0.0), inputs, gradient)
    alone = gradients(attend_by_products(*inputs, torch.zeros_like(hidden), 0.0), inputs, gradient)
    assert all(bool(x.isfinite().all()) for x in found)
    for one, other in zip(found, alone, strict=True):
        assert torch.equal(one[::2], other[::2])


@mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_gradient_has_the_noise_of_the_value(dtype: torch.dtype) -> None:
    """With the identity for values the output is the weights: each dropped one is zero, and has no gradient."""
    torch.manual_seed(1)
    length, dropout = 64, 0.25
    query, keys = (torch.randn(2, length, 1, length, dtype=dtype).requires_grad_() for _ in range(2))
    values = torch.eye(length, dtype=dtype).expand(2, -1, -1).unsqueeze(2).requires_grad_()
    hidden = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    plain = attend_by_products(query, keys, values, hidden, 0.0)
    torch.manual_seed(2)
    found = attend_by_products(query, keys, values, hidden, dropout)
    torch.manual_seed(2)
    assert torch.equal(found, attend_by_products(query, keys, values, hidden, dropout))
    noise = (found != 0).to(dtype) / (1 - dropout)
    assert abs(float((noise == 0).double().mean()) - dropout) < 0.02
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found, plain * noise, rtol=tolerance, atol=tolerance)
    gradient = torch.randn_like(found)
    ours = torch.autograd.grad(found, [query, keys], gradient)
    expected = torch.autograd.grad(plain, [query, keys], gradient * noise)
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)
