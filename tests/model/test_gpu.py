"""On a GPU, with its kernels, every variant gives what it gives on a CPU in double precision."""

from copy import deepcopy

import torch
from model_variants import CASE_IDS, CASES, PAD, case_config, padded, scrambled, sentences
from pytest import mark

from deepnmt.model.sequences import PackedSequences

pytestmark = mark.gpu


def packed(lines, device="cpu"):
    lengths = [*map(len, lines), 0]
    offsets = torch.tensor([0, *lengths]).cumsum(0).int()
    ids = torch.cat([*lines, torch.full((3,), PAD)])
    return PackedSequences(ids.to(device), offsets.to(device))


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}


@mark.parametrize(("variant", "norm", "stack"), CASES, ids=CASE_IDS)
@mark.parametrize("layout", ["padded", "packed"])
def test_a_gpu_gives_what_a_cpu_gives(variant, norm, stack, layout):
    exact = scrambled(case_config(variant, norm, stack))
    fast = deepcopy(exact).float().cuda()
    sources, targets = sentences(7, 30, 5), sentences(4, 26, 1, seed=2)
    real = torch.cat([torch.arange(len(line)) + 26 * i for i, line in enumerate(targets)])
    count = len(real)

    expected = exact(padded(sources), padded(targets)).flatten(0, 1)[real]
    if layout == "padded":
        got = fast(padded(sources).cuda(), padded(targets).cuda()).flatten(0, 1)[real.cuda()]
    else:
        got = fast.project(fast.features(packed(sources, "cuda"), packed(targets, "cuda")))[:count]
    expected.tanh().sum().backward()
    got.tanh().sum().backward()

    torch.testing.assert_close(got.double().cpu(), expected, rtol=1e-3, atol=1e-3)
    theirs = gradients(fast)
    for name, gradient in gradients(exact).items():
        error = (theirs[name].double().cpu() - gradient).norm() / (gradient.norm() + 1e-3)
        assert error < 2e-3, (name, error.item())


@mark.parametrize(("variant", "norm", "stack"), CASES, ids=CASE_IDS)
def test_half_precision_on_a_gpu_is_close_and_finite(variant, norm, stack):
    exact = scrambled(case_config(variant, norm, stack)).train()
    fast = deepcopy(exact).float().cuda()
    for model in (exact, fast):
        for module in model.modules():
            if hasattr(module, "dropout") and isinstance(module.dropout, float):
                module.dropout = 0.0
    sources, targets = sentences(7, 30, 5), sentences(4, 26, 1, seed=2)
    count = sum(map(len, targets))
    expected = exact.project(exact.features(packed(sources), packed(targets)))[:count]
    with torch.autocast("cuda", torch.bfloat16):
        got = fast.project(fast.features(packed(sources, "cuda"), packed(targets, "cuda")))[:count]
    assert got.dtype == torch.bfloat16
    got.float().tanh().sum().backward()
    error = (got.double().cpu() - expected).norm() / expected.norm()
    assert error < 0.05, error.item()
    for name, gradient in gradients(fast).items():
        assert gradient is not None and gradient.isfinite().all(), name
