"""The chunked loss and its gradients equal a four-line float64 reference, in every precision and chunk size."""

from functools import partial

import pytest
import torch

from deepnmt.training import loss as loss_module
from deepnmt.training.loss import chunked_loss, label_smoothed_loss, sampled_loss

PAD = 1


def reference(features, weight, targets, smoothing):
    log_p = (features.double() @ weight.double().T).log_softmax(-1)
    real = [(i, y) for i, y in enumerate(targets.tolist()) if y != PAD]
    nll = sum(-log_p[i, y] for i, y in real)
    return (1 - smoothing) * nll + smoothing / len(weight) * sum(-log_p[i].sum() for i, _ in real), nll


def problem(n=37, vocab=53, dim=16, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, dim, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocab, dim, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(2, vocab, (n,), generator=generator)
    targets[torch.rand(n, generator=generator) < 0.2] = PAD
    return features, weight, targets


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("chunk", [1, 5, 37, 100])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_chunked_loss_and_gradients_equal_the_reference(smoothing, chunk, dtype, tolerance):
    features, weight, targets = problem(dtype=dtype)
    expected, expected_nll = reference(features, weight, targets, smoothing)
    expected_gradients = torch.autograd.grad(expected / 7, (features, weight))
    loss, nll = chunked_loss(features, weight, targets, smoothing, PAD, chunk)
    gradients = torch.autograd.grad(loss / 7, (features, weight))
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=0)
    torch.testing.assert_close(nll.double(), expected_nll, rtol=tolerance, atol=0)
    for found, wanted in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(found, wanted.to(dtype), rtol=tolerance, atol=tolerance)


def test_plain_twin_equals_the_reference():
    features, weight, targets = problem(dtype=torch.float64)
    found = label_smoothed_loss(features @ weight.T, targets, 0.1, PAD)
    torch.testing.assert_close(found, reference(features, weight, targets, 0.1), rtol=1e-12, atol=0)


def test_plain_twin_without_smoothing_is_cross_entropy():
    features, weight, targets = problem()
    loss, nll = label_smoothed_loss(features @ weight.T, targets, 0.0, PAD)
    expected = torch.nn.functional.cross_entropy(features @ weight.T, targets, ignore_index=PAD, reduction="sum")
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, expected)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_half_precision_stays_near_and_gradients_keep_the_parameters_dtype(dtype, tolerance):
    features, weight, targets = problem(n=200, vocab=4000, dim=32)
    expected, _ = reference(features, weight, targets, 0.1)
    wanted = torch.autograd.grad(expected, (features, weight))
    with torch.autocast("cpu", dtype=dtype):
        loss, _ = chunked_loss(features, weight, targets, 0.1, PAD, 64)
    assert loss.dtype is torch.float32
    gradients = torch.autograd.grad(loss, (features, weight))
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=0)
    for found, exact in zip(gradients, wanted, strict=True):
        assert found.dtype is torch.float32
        assert (found - exact).norm() < tolerance * exact.norm()


@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_blocks_of_rows_give_the_twins_loss_and_gradient(monkeypatch, rows):
    """Also where a target is so unlikely that its probability is zero in fp32."""
    features, weight, targets = problem()
    with torch.no_grad():
        features[:5] *= 60
        assert (features @ weight.T).softmax(-1).gather(-1, targets[:, None]).min() == 0
    monkeypatch.setattr(loss_module, "BLOCK_ELEMENTS", rows * len(weight))
    found = chunked_loss(features, weight, targets, 0.1, PAD)
    expected = label_smoothed_loss((features @ weight.T).double(), targets, 0.1, PAD)
    torch.testing.assert_close(torch.stack(found).double(), torch.stack(expected), rtol=1e-6, atol=0)
    gradients = [torch.autograd.grad(loss, (features, weight)) for loss, _ in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


def test_padding_adds_no_loss_and_no_gradient():
    features, weight, targets = problem()
    loss, nll = chunked_loss(features, weight, torch.full_like(targets, PAD), 0.1, PAD)
    assert loss == 0 and nll == 0
    for gradient in torch.autograd.grad(loss, (features, weight)):
        assert not gradient.any()


def test_padded_rows_get_no_gradient_and_change_none():
    features, weight, targets = problem()
    real = targets != PAD
    loss, _ = chunked_loss(features, weight, targets, 0.1, PAD)
    found = torch.autograd.grad(loss, (features, weight))
    alone, _ = chunked_loss(features[real], weight, targets[real], 0.1, PAD)
    expected = torch.autograd.grad(alone, (features, weight))
    assert not found[0][~real].any()
    assert found[0][real].any(-1).all()
    torch.testing.assert_close((loss, *found), (alone, *expected), rtol=0, atol=0)


def test_shape_of_batch_and_time_does_not_matter():
    features, weight, targets = problem(n=36)
    flat, _ = chunked_loss(features, weight, targets, 0.1, PAD)
    folded, _ = chunked_loss(features.view(4, 9, -1), weight, targets.view(4, 9), 0.1, PAD)
    assert flat == folded


@pytest.mark.parametrize("loss", [chunked_loss, partial(sampled_loss, num_sampled=53)])
def test_a_bias_is_one_more_column_of_the_weight(loss):
    features, weight, targets = problem(dtype=torch.float64)
    bias = torch.linspace(-2, 2, len(weight), dtype=torch.float64).requires_grad_()
    wider = torch.cat([features, torch.ones(len(features), 1)], 1), torch.cat([weight, bias[:, None]], 1)
    expected, found = loss(*wider, targets, 0.1, PAD), loss(features, weight, targets, 0.1, PAD, bias=bias)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    wanted = torch.autograd.grad(expected[0], (features, weight, bias))
    torch.testing.assert_close(torch.autograd.grad(found[0], (features, weight, bias)), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"counts": True}, {"r_drop": 5.0}], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_with_more_columns_give_the_same(has_bias, options):
    features, weight, targets = problem(n=38, dtype=torch.float64)
    targets = targets[:19].repeat_interleave(2)
    bias = torch.linspace(-2, 2, len(weight), dtype=torch.float64).requires_grad_() if has_bias else None
    if "counts" in options:
        options = {"counts": torch.linspace(1, 3, len(weight), dtype=torch.float64)}
    leaves = [leaf for leaf in (features, weight, bias) if leaf is not None]
    results = []
    for multiple in (1, 64):
        loss, nll = chunked_loss(features, weight, targets, 0.1, PAD, 10, bias=bias, multiple=multiple, **options)
        results.append((loss, nll, *torch.autograd.grad(loss, leaves)))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def test_without_gradients_nothing_is_kept():
    features, weight, targets = problem()
    with torch.no_grad():
        loss, _ = chunked_loss(features, weight, targets, 0.1, PAD)
    assert not loss.requires_grad


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_sampled_softmax_over_every_symbol_is_the_whole_softmax(smoothing):
    features, weight, targets = problem(dtype=torch.float64)
    expected = chunked_loss(features, weight, targets, smoothing, PAD)
    found = sampled_loss(features, weight, targets, smoothing, PAD, num_sampled=len(weight))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    wanted = torch.autograd.grad(expected[0], (features, weight))
    torch.testing.assert_close(torch.autograd.grad(found[0], (features, weight)), wanted, rtol=1e-12, atol=1e-12)


def test_columns_that_count_several_times_equal_repeated_columns():
    features, weight, targets = problem(dtype=torch.float64)
    counts = torch.ones(len(weight), dtype=torch.float64)
    counts[40:] = 3
    repeated = torch.cat([weight, weight[40:], weight[40:]])
    targets = torch.where(targets >= 40, 7, targets)
    expected = chunked_loss(features, repeated, targets, 0.1, PAD)
    found = chunked_loss(features, weight, targets, 0.1, PAD, counts=counts)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    wanted = torch.autograd.grad(expected[0], (features, weight))
    torch.testing.assert_close(torch.autograd.grad(found[0], (features, weight)), wanted, rtol=1e-12, atol=1e-12)


def test_the_normaliser_of_a_sampled_softmax_is_unbiased():
    """Without smoothing, exp(-nll) of one target is e^x_y / Z: the mean of its inverse over many draws is that of the
    whole softmax."""
    features, weight, _ = problem(n=1, dtype=torch.float64)
    target = torch.tensor([5])
    features = features.detach() / 4
    torch.manual_seed(0)
    draws = [sampled_loss(features, weight, target, 0.0, PAD, num_sampled=13)[1].exp() for _ in range(4000)]
    whole = chunked_loss(features, weight, target, 0.0, PAD)[1].exp()
    error = torch.stack(draws).std() / len(draws) ** 0.5
    assert abs(torch.stack(draws).mean() - whole) < 4 * error
    assert error < 0.02 * whole


@pytest.mark.parametrize("chunk", [1, 6, 100])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-11), (torch.float32, 2e-5)])
def test_r_drop_is_its_equation(chunk, dtype, tolerance):
    """Half of L(p) + L(q) + alpha / 2 * (KL(p, q) + KL(q, p)), p and q of rows 2i and 2i + 1 (Liang et al. 2021)."""
    features, weight, targets = problem(n=38, dtype=dtype)
    targets = targets[:19].repeat_interleave(2)
    smooth, nll = reference(features, weight, targets, 0.1)
    log = (features.double() @ weight.double().T).log_softmax(-1)
    divergence = sum(
        (log[a].exp() * (log[a] - log[b])).sum()
        for i in range(0, 38, 2)
        for a, b in ((i, i + 1), (i + 1, i))
        if targets[i] != PAD
    )
    expected = (smooth + 5 / 2 * divergence) / 2
    found, found_nll = chunked_loss(features, weight, targets, 0.1, PAD, chunk, r_drop=5.0)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=0)
    torch.testing.assert_close(found_nll.double(), nll / 2, rtol=tolerance, atol=0)
    wanted = torch.autograd.grad(expected, (features, weight))
    for one, other in zip(torch.autograd.grad(found, (features, weight)), wanted, strict=True):
        torch.testing.assert_close(one, other.to(dtype), rtol=tolerance, atol=tolerance)


def test_r_drop_of_equal_passes_is_the_plain_loss():
    features, weight, targets = problem(dtype=torch.float64)
    twice = features.repeat_interleave(2, dim=0)
    found = chunked_loss(twice, weight, targets.repeat_interleave(2), 0.1, PAD, r_drop=5.0)
    torch.testing.assert_close(found, chunked_loss(features, weight, targets, 0.1, PAD), rtol=1e-12, atol=0)
