"""Every fused kernel agrees with its plain twin. Needs a GPU, or Triton's interpreter (TRITON_INTERPRET=1)."""

import os
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from one_by_one import attend_one_by_one
from torch import Tensor, nn

from deepnmt.model.attention import attend_padded_relatively
from deepnmt.model.connections.dlcl import DlclHistory
from deepnmt.model.kernels.dropout import dealing, scattered_dropout
from deepnmt.model.norms import LayerNorm, RmsNorm
from deepnmt.model.positions import RelativePositions
from deepnmt.model.sequences import PackedSequences, PackedVisibility, plain_bounds
from deepnmt.training.mixed_precision import LossScale
from deepnmt.training.verdict import judge

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (torch.cuda.is_available() or INTERPRETED), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),  # the interpreter's
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
if INTERPRETED:
    del TOLERANCE[torch.bfloat16]  # the interpreter has no product of bf16
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def packed(lengths: list[int], size: int, slots: int) -> PackedSequences:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    offsets = torch.cat([offsets, offsets[-1:].expand(slots - len(lengths))]).int()
    return PackedSequences(torch.ones(size, dtype=torch.long, device=DEVICE), offsets.to(DEVICE))


def reach(queries: PackedSequences, keys: PackedSequences) -> list[torch.Tensor]:
    return [*queries.bounds_in(keys), *keys.bounds_in(queries)]


def distance(left: Tensor, right: Tensor) -> float:
    left, right = left.detach().double(), right.detach().double()
    return float((left - right).norm() / right.norm())


LENGTHS = [5, 17, 30, 1, 64, 9, 100], [7, 12, 33, 2, 70, 3, 90]


@DTYPES
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "head_dim"), [(2, 64), (3, 24), (2, 128)])
def test_self_attention_equals_its_twin(dtype: torch.dtype, causal: bool, heads: int, head_dim: int) -> None:
    from deepnmt.model.kernels.packed_attention_triton import packed_attention

    text = packed(LENGTHS[0], 256, 9)
    ranges = reach(text, text)
    qkv = torch.randn(256, 3, heads, head_dim, device=DEVICE, dtype=dtype, requires_grad=True)
    exact = qkv.detach().double().requires_grad_()
    seed = torch.tensor([3], dtype=torch.int32, device=DEVICE)
    fused, *_ = packed_attention([qkv], None, ranges, seed, causal, 0.0, False)
    plain = attend_one_by_one(*exact.unbind(1), text, text, causal)
    gradient = torch.randn_like(fused)
    fused.backward(gradient)
    plain.backward(gradient.double())
    assert qkv.grad is not None and exact.grad is not None
    assert distance(fused, plain) < TOLERANCE[dtype]
    assert distance(qkv.grad, exact.grad) < TOLERANCE[dtype]
    assert not fused[sum(LENGTHS[0]) :].any()  # the tail attends to nothing


@DTYPES
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("span", "values"), [(3, True), (16, True), (20, False), (200, True)])
def test_relative_attention_equals_its_twin(dtype: torch.dtype, causal: bool, span: int, values: bool) -> None:
    """The twin is that of padded sentences, one at a time."""
    text = packed(LENGTHS[0], 256, 9)
    ranges = reach(text, text)
    torch.manual_seed(1)
    relative = RelativePositions(24, span, values).to(DEVICE)
    for table in relative.parameters():
        nn.init.normal_(table)
    twin = deepcopy(relative).double()
    qkv = torch.randn(256, 3, 3, 24, device=DEVICE, dtype=dtype, requires_grad=True)
    exact = qkv.detach().double().requires_grad_()
    fused = PackedVisibility(ranges, causal).attend_relatively(qkv, relative, 0.0)
    plain = torch.cat(
        [
            attend_padded_relatively(exact[None, start:end], twin, 0.0, causal=causal)[0]
            for start, end in text.offsets.unfold(0, 2, 1).tolist()
        ]
    )
    gradient = torch.randn_like(fused)
    fused.backward(gradient)
    plain.backward(gradient[: len(plain)].double())
    assert qkv.grad is not None and exact.grad is not None
    assert distance(fused[: len(plain)], plain) < TOLERANCE[dtype]
    assert distance(qkv.grad, exact.grad) < TOLERANCE[dtype]
    for table, wanted in zip(relative.parameters(), twin.parameters(), strict=True):
        assert table.grad is not None and wanted.grad is not None
        assert distance(table.grad, wanted.grad) < TOLERANCE[dtype]
    assert not fused[len(plain) :].any()


def test_relative_attention_drops_the_same_pairs_forward_and_backward() -> None:
    text = packed([5, 9], 16, 3)
    relative = RelativePositions(16, 2, True).to(DEVICE)
    for table in relative.parameters():
        nn.init.normal_(table)
    qkv = torch.randn(16, 3, 2, 16, device=DEVICE, requires_grad=True)
    visibility, gradient = PackedVisibility(reach(text, text), False), torch.randn(16, 2, 16, device=DEVICE)

    def attended(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return visibility.attend_relatively(x, relative, 0.4)

    inputs = [qkv, *relative.parameters()]
    found = torch.autograd.grad(attended(qkv), inputs, gradient)
    for tensor, slope in zip(inputs, found, strict=True):
        direction = torch.randn_like(tensor)
        with torch.no_grad():
            tensor += 1e-2 * direction
            above = attended(qkv)
            tensor -= 2e-2 * direction
            below = attended(qkv)
            tensor += 1e-2 * direction
        change = ((above - below) * gradient).sum() / 2e-2
        torch.testing.assert_close((slope * direction).sum(), change, rtol=2e-2, atol=2e-2)


@DTYPES
def test_cross_attention_equals_its_twin(dtype: torch.dtype) -> None:
    from deepnmt.model.kernels.packed_attention_triton import packed_attention

    target, source = packed(LENGTHS[0], 256, 9), packed(LENGTHS[1], 230, 9)
    ranges = reach(target, source)
    q = torch.randn(256, 2, 64, device=DEVICE, dtype=dtype, requires_grad=True)
    kv = torch.randn(230, 2, 2, 64, device=DEVICE, dtype=dtype, requires_grad=True)
    exact_q, exact_kv = (tensor.detach().double().requires_grad_() for tensor in (q, kv))
    seed = torch.tensor([3], dtype=torch.int32, device=DEVICE)
    fused, *_ = packed_attention([q, *kv.unbind(1)], None, ranges, seed, False, 0.0, False)
    plain = attend_one_by_one(exact_q, *exact_kv.unbind(1), target, source)
    gradient = torch.randn_like(fused)
    fused.backward(gradient)
    plain.backward(gradient.double())
    pairs = (fused, plain), (q.grad, exact_q.grad), (kv.grad, exact_kv.grad)
    for left, right in pairs:
        assert left is not None and right is not None
        assert distance(left, right) < TOLERANCE[dtype]


def test_dropout_keeps_its_share_and_its_gradient_follows_it() -> None:
    from deepnmt.model.kernels.packed_attention_triton import packed_attention

    text = packed([40, 60, 28], 128, 3)
    ranges = reach(text, text)
    qkv = torch.randn(128, 3, 2, 64, device=DEVICE)
    qkv[:, 2] = 1.0  # every value is one, so the output is the sum of the weights that were kept

    def attend(qkv: Tensor, seed: int) -> Tensor:
        seeds = torch.tensor([seed], dtype=torch.int32, device=DEVICE)
        return packed_attention([qkv], None, ranges, seeds, False, 0.3, False)[0]

    kept = attend(qkv, 1)
    assert abs(float(kept.mean()) - 1) < 0.05
    assert kept.std() > 0.01
    assert torch.equal(kept, attend(qkv, 1))
    assert not torch.equal(kept, attend(qkv, 2))

    qkv = torch.randn(128, 3, 2, 64, device=DEVICE, requires_grad=True)
    weights, direction = torch.randn(128, 2, 64, device=DEVICE), torch.randn_like(qkv)
    (attend(qkv, 1) * weights).sum().backward()
    assert qkv.grad is not None
    with torch.no_grad():
        step = 1e-2
        slope = ((attend(qkv + step * direction, 1) - attend(qkv - step * direction, 1)) * weights).sum() / (2 * step)
    torch.testing.assert_close(float((qkv.grad * direction).sum()), float(slope), rtol=1e-2, atol=0.1)


# In half precision, which the interpreter has for fp16, the weights of products are sums of two numbers.
@pytest.mark.parametrize("dtype", [*TOLERANCE, torch.float16], ids=str)
@pytest.mark.parametrize("new_norm", [LayerNorm, RmsNorm, nn.Identity])
@pytest.mark.parametrize(("dim", "depth"), [(48, 5), (48, 2), (20, 14), (20, 37), (16, 70), (512, 9)])
def test_mixture_equals_its_twin(
    dtype: torch.dtype, new_norm: Callable[[int], nn.Module], dim: int, depth: int
) -> None:
    from deepnmt.model.kernels.mixture_triton import FusedMixtureTape

    count = 37
    start = torch.randn(count, dim, device=DEVICE, dtype=dtype)
    matrix = torch.randn(depth + 1, depth + 1, device=DEVICE).tril()
    layers = [nn.Linear(dim, dim).to(DEVICE) for _ in range(depth)]
    plain_norms = [new_norm(dim).to(DEVICE) for _ in range(depth + 1)]
    for parameter in (p for norm in plain_norms for p in norm.parameters()):
        nn.init.normal_(parameter)

    def run(fused: bool, dtype: torch.dtype) -> list[Tensor]:
        weights = matrix.clone().requires_grad_()
        x = start.to(dtype).requires_grad_()
        moved = [deepcopy(layer).to(dtype) for layer in layers]
        norms = [deepcopy(norm).to(torch.promote_types(dtype, torch.float32)) for norm in plain_norms]
        history = DlclHistory(weights.unsqueeze(2), norms)
        history.tape = FusedMixtureTape(weights, norms) if fused else None
        history.enter(x)
        for layer in moved:
            history.enter(torch.tanh(layer(history.mixed())))
        out = history.mixed()
        leaves = [weights, x, *(p for module in (*moved, *norms) for p in module.parameters())]
        return [out, *torch.autograd.grad(out, leaves, torch.ones_like(out))]

    exact, fused = run(False, torch.float64), run(True, dtype)
    for found, plain, truth in zip(fused, run(False, dtype), exact, strict=True):
        rounding = torch.finfo(dtype).eps / 4  # of one number: a small matrix does not average it away
        assert distance(found, truth) < 4 * distance(plain, truth) + max(rounding, 1e-5)
    assert all(torch.equal(found, again) for found, again in zip(fused, run(True, dtype), strict=True))


@pytest.mark.parametrize("rows", [3, 11])
def test_mixture_of_fewer_rows_than_the_matrix_has_and_of_a_row_read_twice(rows: int) -> None:
    from deepnmt.model.kernels.mixture_triton import FusedMixtureTape

    start, matrix = torch.randn(5, 16, device=DEVICE), torch.randn(rows + 2, rows + 2, device=DEVICE).tril()
    norms = [LayerNorm(16).to(DEVICE) for _ in matrix]

    def run(fused: bool) -> tuple[Tensor, ...]:
        weights, x = matrix.clone().requires_grad_(), start.clone().requires_grad_()
        history, results = DlclHistory(weights.unsqueeze(2), norms), []
        history.tape = FusedMixtureTape(weights, norms) if fused else None
        output = torch.cat([x.flatten()[:1], x.flatten()])[1:].view_as(x)  # not aligned for vectors
        for _ in range(rows):
            history.enter(output)
            output = torch.tanh(history.mixed()) - history.mixed()
            results.append(output.sum())
        leaves = [weights, x, *(p for norm in norms[:rows] for p in norm.parameters())]
        return torch.autograd.grad(torch.stack(results).sum(), leaves)

    for fused, plain in zip(run(True), run(False), strict=True):
        assert distance(fused, plain) < 1e-4


# More tokens than programs, fewer, and a width that is no power of two.
SIZES = pytest.mark.parametrize(("count", "dim"), [(3000, 40), (37, 512), (1030, 96)])


@DTYPES
@SIZES
@pytest.mark.parametrize("alone", [False, True])
def test_layer_norm_equals_its_twin(dtype: torch.dtype, count: int, dim: int, alone: bool) -> None:
    from deepnmt.model.kernels.fused_layers import layer_norm, layer_norm_beside

    norm = LayerNorm(dim).to(DEVICE)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    twin = nn.LayerNorm(dim).to(DEVICE).double()
    twin.load_state_dict(norm.state_dict())
    x = torch.randn(count, dim, device=DEVICE, dtype=dtype, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    gradients = [torch.randn(count, dim, device=DEVICE, dtype=dtype) for _ in range(2)]
    if alone:
        found, wanted, gradients = [layer_norm(x, norm)], [twin(exact)], gradients[:1]
    else:
        found, wanted = list(layer_norm_beside(x, norm)), [exact, twin(exact)]
    assert all(result.dtype is dtype for result in found)
    assert distance(found[-1], wanted[-1]) < TOLERANCE[dtype]
    torch.autograd.backward(found, gradients)
    torch.autograd.backward(wanted, [gradient.double() for gradient in gradients])
    pairs = [(x, exact), (norm.weight, twin.weight), (norm.bias, twin.bias)]
    for mine, theirs in pairs:
        assert mine.grad is not None and theirs.grad is not None
        assert distance(mine.grad, theirs.grad) < TOLERANCE[dtype]


# A product by tiles, and one of a shape that they do not fit.
@DTYPES
@pytest.mark.parametrize(("count", "dim", "ffn_dim"), [(384, 64, 256), (300, 40, 96)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_feed_forward_equals_its_twin(dtype: torch.dtype, count: int, dim: int, ffn_dim: int, dropout: float) -> None:
    from deepnmt.model.kernels.fused_layers import feed_forward

    expand, contract = nn.Linear(dim, ffn_dim).to(DEVICE, dtype), nn.Linear(ffn_dim, dim).to(DEVICE, dtype)
    twins = [deepcopy(linear).double() for linear in (expand, contract)]
    x = torch.randn(count, dim, device=DEVICE, dtype=dtype, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    seeds, gradient = torch.full((1, 4), 7, dtype=torch.int32, device=DEVICE), torch.randn_like(x)
    with dealing(seeds):
        found = feed_forward(x, expand, contract, dropout)
    wanted = twins[1](scattered_dropout(twins[0](exact).relu(), dropout, seeds[0, :1]))
    found.backward(gradient)
    wanted.backward(gradient.double())
    assert found.dtype is dtype and distance(found, wanted) < TOLERANCE[dtype]
    mine = [x, *expand.parameters(), *contract.parameters()]
    theirs = [exact, *twins[0].parameters(), *twins[1].parameters()]
    for one, other in zip(mine, theirs, strict=True):
        assert one.grad is not None and other.grad is not None
        assert distance(one.grad, other.grad) < TOLERANCE[dtype]


@DTYPES
@pytest.mark.parametrize(
    ("size", "width"), [(50, 50), (50, 64), (8192, 8192), (8100, 8192), (9000, 9000), (9000, 9024)]
)
def test_cross_entropy_equals_its_twin(dtype: torch.dtype, size: int, width: int) -> None:
    """Also in the first columns of wider rows, of which the others become zero."""
    from deepnmt.model.kernels.cross_entropy_triton import cross_entropy_

    whole = (3 * torch.randn(12, width, device=DEVICE)).to(dtype)
    logits = whole[:, :size]
    targets = torch.randint(4, size, (12,), device=DEVICE)
    targets[5] = 1
    exact = logits.double().requires_grad_()
    losses = torch.nn.functional.cross_entropy(exact, targets, label_smoothing=0.1, ignore_index=1, reduction="sum")
    nlls = torch.nn.functional.cross_entropy(exact.detach(), targets, ignore_index=1, reduction="sum")
    losses.backward()
    loss, nll = cross_entropy_(logits, targets, 0.1, 1, 1.0)
    assert exact.grad is not None
    torch.testing.assert_close(float(loss), float(losses.detach()), rtol=1e-5, atol=0)
    torch.testing.assert_close(float(nll), float(nlls), rtol=1e-5, atol=0)
    assert distance(logits, exact.grad) < TOLERANCE[dtype]
    assert not whole[:, size:].any()


@pytest.mark.parametrize("dim", [24, 128, 200])
def test_the_gradient_of_a_table_equals_torchs_and_repeats(dim: int) -> None:
    """With numbers that come once, often, very often and never, and padding, which gets none."""
    from deepnmt.model.kernels.lookup_triton import sum_rows

    size, padding = 50, 1
    numbers = torch.cat([torch.full((150,), 2), torch.full((33,), padding), torch.randint(3, 40, (300,))])
    numbers = numbers[torch.randperm(len(numbers))].to(DEVICE)
    rows = torch.randn(len(numbers), dim, device=DEVICE)
    found = sum_rows(rows, numbers, size, padding)
    wanted = torch.zeros(size, dim, dtype=torch.float64, device=DEVICE).index_add_(0, numbers, rows.double())
    wanted[padding] = 0
    assert distance(found, wanted) < 1e-6
    assert not found[[0, padding, 45]].any()
    assert torch.equal(found, sum_rows(rows, numbers, size, padding))
    assert not sum_rows(rows[:0], numbers[:0], size, padding).any()


@pytest.mark.skipif(INTERPRETED, reason="needs a GPU and 30 GiB of its memory")
@pytest.mark.parametrize("rows", [5, 36])
def test_mixtures_of_a_history_beyond_32_bits(rows: int) -> None:
    """Without and with the look ahead. The last tokens are compared: their offsets would wrap around first."""
    from deepnmt.model.kernels.mixture_triton import FusedMixtureTape

    dim, last = 512, 1000
    count = 2**31 // (dim * (rows - 2)) + last
    matrix = torch.rand(rows, rows, device=DEVICE).tril().requires_grad_()
    tape = FusedMixtureTape(matrix, [nn.Identity()] * rows)
    output = torch.randn(count, dim, device=DEVICE, dtype=torch.bfloat16)
    kept = []  # of every layer's output, the last tokens
    history = []
    for row in range(rows):
        kept.append(output[-last:].detach().float().requires_grad_())
        history.append(tape.enter(output.requires_grad_()))
        mixed = tape.mix(history, row)
        plain = sum(matrix[row, k] * kept[k] for k in range(row + 1))
        assert distance(mixed[-last:], plain) < 1e-2, row
        output = mixed.detach().roll(1, -1) / mixed.detach().float().std()
        output = output.to(torch.bfloat16)
    assert history[0].numel() * (rows - 1) > 2**31


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shift", [0, 1])
def test_many_sums_are_the_sums_one_by_one(dtype: torch.dtype, shift: int) -> None:
    """Of all sizes, also where tensors do not begin at a multiple of 16 bytes."""
    from deepnmt.model.kernels.many_sums_triton import BLOCK, ManySums

    sizes = [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]
    totals = [torch.full((size,), float("nan"), device=DEVICE) for size in sizes]
    first, second = ([torch.randn(size + shift, device=DEVICE).to(dtype)[shift:] for size in sizes] for _ in range(2))
    sums = ManySums(totals)
    for added, is_first in ((first, 1), (second, 0)):
        sums.locate(added)
        sums.launch(torch.tensor(is_first, dtype=torch.int32, device=DEVICE))
    for total, one, other in zip(totals, first, second, strict=True):
        assert torch.equal(total, one.float() + other.float())
    norms, places = torch.zeros(len(sizes) + 1, device=DEVICE), torch.arange(len(sizes), 0, -1, device=DEVICE)
    sums.norms(norms, places.int())
    torch.testing.assert_close(norms[1:].flip(0), torch.stack([total.norm() for total in totals]))


@pytest.mark.parametrize(("weight_decay", "betas"), [(0.0, (0.9, 0.997)), (0.1, (0.9, 0.997)), (0.1, (0.0, 0.997))])
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("sizes", [(4, 2048, 5000, 8192), (1, 7, 2049)])
def test_adam_equals_torchs(
    weight_decay: float, betas: tuple[float, float], decoupled: bool, sizes: tuple[int, ...]
) -> None:
    """Also over a step that is skipped, and with gradients that carry a scale."""
    from deepnmt.training.adam import KernelAdam

    torch.manual_seed(1)
    mine = [nn.Parameter(torch.randn(size, device=DEVICE)) for size in sizes]
    theirs = [nn.Parameter(p.detach().double()) for p in mine]
    options = {"lr": 0.01, "weight_decay": weight_decay, "decoupled_weight_decay": decoupled, "betas": betas}
    fused, plain = KernelAdam([{"params": mine}], **options), torch.optim.Adam(theirs, **options)
    fused.grad_scale = torch.tensor(8.0, device=DEVICE)
    for number in range(4):
        fused.found_inf = torch.tensor(float(number == 2), device=DEVICE)
        for p, q in zip(mine, theirs, strict=True):
            q.grad = torch.randn(p.shape, device=DEVICE).double()
            if p.grad is None:
                p.grad = torch.empty_like(p)
            p.grad.copy_(q.grad * 8)
        fused.step()
        if number != 2:
            plain.step()
    for p, q in zip(mine, theirs, strict=True):
        torch.testing.assert_close(p.double(), q, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            fused.state[p]["exp_avg_sq"].double(), plain.state[q]["exp_avg_sq"], rtol=1e-5, atol=1e-7
        )
        assert fused.state[p]["step"] == 3


@pytest.mark.parametrize("lengths", [LENGTHS[0], [256], [], [1] * 9])
def test_bounds_of_sentences_equal_their_twin(lengths: list[int]) -> None:
    from deepnmt.model.kernels.bounds_triton import bounds

    text, other = packed(lengths, 256, 9), packed(LENGTHS[1][: len(lengths)], 256, 9)
    for found, wanted in zip(
        bounds(text.offsets, other.offsets, 256), plain_bounds(text.offsets, other.offsets, 256), strict=True
    ):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize(("norm", "scale", "failed_at"), [
    (0.3, 1.0, -1), (2.0, 8.0, -1), (float("nan"), 4.0, -1), (float("inf"), 2.0**-13, -1), (0.3, 1.0, 7)
])  # fmt: skip
def test_verdict_equals_its_twin(
    dynamic: bool, clip_norm: float | None, norm: float, scale: float, failed_at: int
) -> None:
    """Of gradients that are small, large, and not finite with and without hope, and after a failure."""
    from deepnmt.model.kernels.verdict_triton import judge as by_kernel

    verdicts = []
    for kernel in (True, False):
        loss_scale = LossScale(dynamic, torch.device(DEVICE))
        loss_scale.load({"factor": scale, "calm": LossScale.CALM_STEPS - 1})
        state = SimpleNamespace(
            loss_scale=loss_scale,
            failed_at=torch.tensor(failed_at, device=DEVICE),
            window=torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64, device=DEVICE),
        )
        sums, total = torch.tensor([5.0, 6.0], dtype=torch.float64, device=DEVICE), torch.tensor(norm, device=DEVICE)
        if kernel:
            step, tokens = (torch.tensor(number, dtype=torch.float64, device=DEVICE) for number in (11.0, 100.0))
            found = by_kernel(
                total, sums, loss_scale.factor, loss_scale.calm, state.failed_at, state.window, step, tokens, clip_norm,
                LossScale.CALM_STEPS, LossScale.SMALLEST, dynamic,
            )  # fmt: skip
        else:
            found = judge(state, total, sums, clip_norm, 11, 100)  # type: ignore[arg-type]
        verdicts.append((*found, loss_scale.factor, loss_scale.calm, state.failed_at, state.window))
    for mine, wanted in zip(*verdicts, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-6, atol=0)
