"""Appendix A of the paper: the gradient through a stack of residual units, against matrices made by hand."""

import torch
from pytest import mark
from torch import Tensor

from deepnmt.model.layers import FeedForward
from deepnmt.model.norms import LayerNorm
from deepnmt.model.sublayers import SUBLAYERS, Place

DIM, FFN_DIM, DEPTH = 6, 10, 7


def plain(norm, dropout=0.0):
    return SUBLAYERS[norm](SUBLAYERS[norm].Config(), Place(dim=DIM, dropout=dropout))


def units(norm):
    torch.manual_seed(2)
    stack = [(plain(norm), FeedForward(DIM, FFN_DIM, 0.0, "relu")) for _ in range(DEPTH)]
    for unit, function in stack:
        for module in (unit, function):
            module.double()
            for parameter in module.parameters():
                torch.nn.init.normal_(parameter, std=0.7)
    return stack


def trace(stack, x):
    """x_0, x_1, ... x_L"""
    states = [x]
    for unit, function in stack:
        states.append(unit(states[-1], function, states[-1]))
    return states


def feed_forward_jacobian(function: FeedForward, x: Tensor) -> Tensor:
    """d W2 relu(W1 x + b1) / dx = W2 diag(W1 x + b1 > 0) W1"""
    active = (function.expand.weight @ x + function.expand.bias > 0).double()
    return function.contract.weight @ (active[:, None] * function.expand.weight)


def norm_jacobian(norm: LayerNorm, x: Tensor) -> Tensor:
    """d LN(x) / dx = diag(gain) (I - 1/d - n n^T / d) / sigma, with n the normalised x"""
    sigma = (x.var(correction=0) + norm.eps).sqrt()
    n = (x - x.mean()) / sigma
    inner = torch.eye(DIM, dtype=x.dtype) - 1 / DIM - torch.outer(n, n) / DIM
    return norm.weight[:, None] * inner / sigma


def pre_norm_sum(stack, states, start):
    """dx_L/dx_l = 1 + sum_{k=l}^{L-1} dF(LN(x_k))/dx_l, the paper's equation for pre-norm."""
    total = torch.eye(DIM, dtype=torch.float64)
    for (unit, function), x in zip(stack[start:], states[start:], strict=False):
        x_k_by_x_l = total  # the sum up to here is dx_k/dx_l
        total = total + feed_forward_jacobian(function, unit.norm(x)) @ norm_jacobian(unit.norm, x) @ x_k_by_x_l
    return total


def post_norm_product(stack, states, start):
    """dx_L/dx_l = prod_k dLN(y_k)/dy_k (1 + dF(x_k)/dx_k), with y_k = x_k + F(x_k)."""
    total = torch.eye(DIM, dtype=torch.float64)
    for (unit, function), x in zip(stack[start:], states[start:], strict=False):
        inner = torch.eye(DIM, dtype=torch.float64) + feed_forward_jacobian(function, x)
        total = norm_jacobian(unit.norm, x + function(x)) @ inner @ total
    return total


IDENTITIES = {"pre": pre_norm_sum, "post": post_norm_product}


@mark.parametrize("start", [0, 3, DEPTH - 1])
@mark.parametrize("norm", list(IDENTITIES))
def test_gradient_of_the_top_is_the_sum_or_the_product_of_appendix_a(norm, start):
    stack = units(norm)
    torch.manual_seed(3)
    states = trace(stack, torch.randn(DIM, dtype=torch.float64, requires_grad=True))
    error = torch.randn(DIM, dtype=torch.float64)  # dE/dx_L
    (by_autograd,) = torch.autograd.grad(states[-1], states[start], error, retain_graph=True)
    with torch.no_grad():
        by_hand = error @ IDENTITIES[norm](stack, states, start)
        other = error @ IDENTITIES["post" if norm == "pre" else "pre"](stack, states, start)
    torch.testing.assert_close(by_autograd, by_hand, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(by_autograd, other, rtol=1e-2)


@mark.parametrize("norm", list(IDENTITIES))
def test_dropout_is_on_the_function_and_not_on_the_way_past_it(norm):
    unit = plain(norm, dropout=0.5)
    x = torch.randn(50, DIM)
    torch.manual_seed(0)
    got = unit(x, lambda inner: torch.ones_like(inner), x)
    torch.manual_seed(0)
    dropped = unit.dropout(torch.ones_like(x))
    assert dropped.unique().tolist() == [0.0, 2.0]
    expected = x + dropped if norm == "pre" else unit.norm(x + dropped)
    torch.testing.assert_close(got, expected)


def test_layer_norm_computes_in_fp32_and_returns_its_input_type():
    norm = LayerNorm(DIM)
    x = (torch.randn(4, DIM) + 100).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        normed = norm(x)
    assert normed.dtype == torch.bfloat16
    exact = torch.nn.functional.layer_norm(x.double(), (DIM,))
    torch.testing.assert_close(normed.double(), exact, rtol=2**-7, atol=2**-7)
