"""On a GPU, with its kernels, every variant gives what it gives on a CPU in double precision.

In Triton's interpreter (TRITON_INTERPRET=1) a CPU stands in for the GPU, for packed sentences in fp32.
"""

from copy import deepcopy

import torch
from model_variants import CASES, PAD, case_config, padded, scrambled, sentences
from pretended_gpu import INTERPRETED, pretended_gpu
from pytest import mark

from deepnmt.model.sequences import PackedSequences

pytestmark = [
    mark.gpu,
    mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),  # the interpreter's
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYOUTS = ["packed"] if INTERPRETED else ["padded", "packed"]
if INTERPRETED:  # every scheme once: a case takes seconds
    CASES = [(variant, norm, stack) for variant, norm, stack in CASES if stack != "decoder" and norm != "post"]
    CASES = [case for case in CASES if "pre" in case or "residual" in case]
VARIANTS = mark.parametrize(("variant", "norm", "stack"), CASES, ids=["-".join(case) for case in CASES])


def packed(lines, device="cpu"):
    lengths = [*map(len, lines), 0]
    offsets = torch.tensor([0, *lengths]).cumsum(0).int()
    ids = torch.cat([*lines, torch.full((3,), PAD)])
    return PackedSequences(ids.to(device), offsets.to(device))


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}


@VARIANTS
@mark.parametrize("layout", LAYOUTS)
def test_a_gpu_gives_what_a_cpu_gives(variant, norm, stack, layout):
    exact = scrambled(case_config(variant, norm, stack))
    fast = deepcopy(exact).float().to(DEVICE)
    sources, targets = sentences(7, 30, 5), sentences(4, 26, 1, seed=2)
    real = torch.cat([torch.arange(len(line)) + 26 * i for i, line in enumerate(targets)])
    count = len(real)

    expected = exact(padded(sources), padded(targets)).flatten(0, 1)[real]
    expected.tanh().sum().backward()
    with pretended_gpu():
        if layout == "padded":
            got = fast(padded(sources).cuda(), padded(targets).cuda()).flatten(0, 1)[real.cuda()]
        else:
            got = fast.project(fast.features(packed(sources, DEVICE), packed(targets, DEVICE)))[:count]
        got.tanh().sum().backward()

    torch.testing.assert_close(got.double().cpu(), expected, rtol=1e-3, atol=1e-3)
    theirs = gradients(fast)
    for name, gradient in gradients(exact).items():
        error = (theirs[name].double().cpu() - gradient).norm() / (gradient.norm() + 1e-3)
        assert error < 2e-3, (name, error.item())


@mark.skipif(INTERPRETED, reason="the interpreter has no product of bf16")
@VARIANTS
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
