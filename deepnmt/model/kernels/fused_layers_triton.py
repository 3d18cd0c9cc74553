"""The passes around the matrix products of a layer, each once over memory, forward and backward.

Every tensor here is (tokens, width). The pass that reads a tensor also takes its sum over the tokens, the gradient of a
gain or a bias: each program keeps a share, and a last small kernel adds up the shares in a fixed order.
The functions are torch operators, so compiled code passes through them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

PROGRAMS = 1056  # at most; each keeps a share of the sums over all tokens


@triton.jit
def _kept(seed, place, dropout):
    """As in `scattered_dropout`: of the 32 scrambled bits of two neighbours, each has sixteen."""
    bits = (place >> 1).to(tl.uint32) ^ seed.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B
    bits = (bits ^ (bits >> 13)) * 0xC2B2AE35
    bits = bits ^ (bits >> 16)
    half = (bits >> ((place & 1) * 16).to(tl.uint32)) & 0xFFFF
    return half >= tl.cast(dropout * 65536.0 + 0.5, tl.uint32)


@triton.jit
def _norm(X, Gain, Bias, Normed, Mean, Rstd, count, dim, eps, R: tl.constexpr, D: tl.constexpr):
    rows = tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.arange(0, D)
    inside = (rows < count)[:, None] & (columns < dim)[None, :]
    place = rows[:, None].to(tl.int64) * dim + columns[None, :]
    x = tl.load(X + place, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, 1) / dim
    centred = tl.where(inside, x - mean[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 1) / dim + eps)
    gain = tl.load(Gain + columns, mask=columns < dim, other=0.0).to(tl.float32)
    bias = tl.load(Bias + columns, mask=columns < dim, other=0.0).to(tl.float32)
    normed = centred * rstd[:, None] * gain[None, :] + bias[None, :]
    tl.store(Normed + place, normed.to(Normed.dtype.element_ty), mask=inside)
    tl.store(Mean + rows, mean, mask=rows < count)
    tl.store(Rstd + rows, rstd, mask=rows < count)


@triton.jit
def _norm_backward(
    dX, dNormed, X, Gain, Mean, Rstd, dSum, Shares, count, dim,
    BESIDE: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """dSum: the gradient of x, with what reaches it beside the norm; and this program's share of gain's and bias's"""
    program = tl.program_id(0)
    columns = tl.arange(0, D)
    gain = tl.load(Gain + columns, mask=columns < dim, other=0.0).to(tl.float32)
    d_gain = tl.zeros((D,), tl.float32)
    d_bias = tl.zeros((D,), tl.float32)
    for first in tl.range(program * R, count, tl.num_programs(0) * R, num_stages=3):
        rows = first + tl.arange(0, R)
        inside = (rows < count)[:, None] & (columns < dim)[None, :]
        place = rows[:, None].to(tl.int64) * dim + columns[None, :]
        x = tl.load(X + place, mask=inside, other=0.0).to(tl.float32)
        d_normed = tl.load(dNormed + place, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(Mean + rows, mask=rows < count, other=0.0)
        rstd = tl.load(Rstd + rows, mask=rows < count, other=0.0)
        normed = tl.where(inside, (x - mean[:, None]) * rstd[:, None], 0.0)
        d_gain += tl.sum(d_normed * normed, 0)
        d_bias += tl.sum(d_normed, 0)
        d_normed = d_normed * gain[None, :]
        along = tl.sum(d_normed * normed, 1) / dim
        level = tl.sum(d_normed, 1) / dim
        total = (d_normed - normed * along[:, None] - level[:, None]) * rstd[:, None]
        if BESIDE:
            total += tl.load(dX + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(dSum + place, total.to(dSum.dtype.element_ty), mask=inside)
    share = Shares + program * 2 * dim
    tl.store(share + columns, d_gain, mask=columns < dim)
    tl.store(share + dim + columns, d_bias, mask=columns < dim)


@triton.jit
def _relu(H, Seed, Out, Signs, groups, dropout, DROPOUT: tl.constexpr, B: tl.constexpr):
    """Out = dropout(relu(H)) for groups of eight neighbours; a bit of Signs where something passed"""
    group = tl.program_id(0) * B + tl.arange(0, B)
    lanes = tl.arange(0, 8)
    place = group[:, None].to(tl.int64) * 8 + lanes[None, :]
    inside = (group < groups)[:, None] & (lanes < 8)[None, :]
    h = tl.load(H + place, mask=inside, other=0.0).to(tl.float32)
    passed = h > 0
    if DROPOUT:
        passed = passed & _kept(tl.load(Seed), place, dropout)
        h = h * (1 / (1 - dropout))
    tl.store(Out + place, tl.where(passed, h, 0.0).to(Out.dtype.element_ty), mask=inside)
    signs = tl.sum(passed.to(tl.int32) << lanes[None, :], 1)
    tl.store(Signs + group, signs.to(tl.uint8), mask=group < groups)


@triton.jit
def _relu_backward(
    dOut, Signs, dH, Shares, count, groups, rows_each, dropout, R: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    """dH, and this program's share of its sum over the tokens. groups: of eight neighbours, in a row"""
    program = tl.program_id(0)
    group = tl.program_id(1) * B + tl.arange(0, B)
    lanes = tl.arange(0, 8)
    lift = 1 / (1 - dropout)
    d_bias = tl.zeros((R, B, 8), tl.float32)
    last = tl.minimum((program + 1) * rows_each, count)
    for first in range(program * rows_each, last, R):
        rows = first + tl.arange(0, R)
        inside = (rows < last)[:, None] & (group < groups)[None, :]
        at = rows[:, None].to(tl.int64) * groups + group[None, :]
        signs = tl.load(Signs + at, mask=inside, other=0).to(tl.int32)
        place = at[:, :, None] * 8 + lanes[None, None, :]
        real = inside[:, :, None] & (lanes < 8)[None, None, :]
        d_out = tl.load(dOut + place, mask=real, other=0.0).to(tl.float32)
        passed = (signs[:, :, None] >> lanes[None, None, :]) & 1
        d_h = (d_out * lift * passed).to(dH.dtype.element_ty)
        tl.store(dH + place, d_h, mask=real)
        d_bias += d_h.to(tl.float32)
    share = Shares + program * groups * 8 + group[:, None] * 8 + lanes[None, :]
    tl.store(share, tl.sum(d_bias, 0), mask=(group < groups)[:, None] & (lanes < 8)[None, :])


@triton.jit
def _relu_product_backward(
    dY, W, Signs, dH, Shares, count, size, dim, dropout,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """dH = dY W where something passed, and this program's share of its sum over the tokens. W: (dim, size)"""
    program, tiles = tl.program_id(0), size // BN
    group = program // (GROUP * tiles) * GROUP
    members = tl.minimum(count // BM - group, GROUP)
    row = (group + program % (GROUP * tiles) % members) * BM
    column = program % (GROUP * tiles) // members * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, dim, BK):
        total = tl.dot(dY.load([row, k]), W.load([k, column]), total)
    rows, columns = row + tl.arange(0, BM), column // 8 + tl.arange(0, BN // 8)
    signs = tl.load(Signs + rows[:, None].to(tl.int64) * (size // 8) + columns[None, :]).to(tl.int32)
    passed = tl.reshape((signs[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1, (BM, BN))
    total = tl.where(passed == 1, total * (1 / (1 - dropout)), 0.0)
    tl.store(Shares + row // BM * size + column + tl.arange(0, BN), tl.sum(total, 0))
    dH.store([row, column], total.to(dH.dtype))


@triton.jit
def _add_up(Shares, Sums, programs, size, P: tl.constexpr, C: tl.constexpr):
    columns = tl.program_id(0) * C + tl.arange(0, C)
    total = tl.zeros((P, C), tl.float32)
    for first in range(0, programs, P):
        rows = first + tl.arange(0, P)
        inside = (rows < programs)[:, None] & (columns < size)[None, :]
        total += tl.load(Shares + rows[:, None] * size + columns[None, :], mask=inside, other=0.0)
    tl.store(Sums + columns, tl.sum(total, 0), mask=columns < size)


def add_up(shares: Tensor) -> Tensor:
    """(programs, size) in fp32 -> (size,), always in the same order."""
    programs, size = shares.shape
    sums = torch.empty(size, dtype=torch.float32, device=shares.device)
    _add_up[(triton.cdiv(size, 16),)](shares, sums, programs, size, P=128, C=16, num_warps=4)
    return sums


def _programs(count: int, rows: int, most: int) -> tuple[int, int]:
    """How many programs share the rows, and how many rows each has."""
    each = triton.cdiv(triton.cdiv(count, min(most, triton.cdiv(count, rows))), rows) * rows
    return triton.cdiv(count, each), each


def _shape(dim: int, size: int) -> dict[str, int]:
    """The rows and columns of a tile of whole rows, with `size` elements for each warp."""
    width = triton.next_power_of_2(dim)
    return {"R": max(1, size // width), "D": width, "num_warps": max(1, width // size)}


@torch.library.custom_op("deepnmt::layer_norm", mutates_args=())
def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> list[Tensor]:
    """The norm of each row in the type of x, and the mean and 1 / standard deviation of each."""
    count, dim = x.shape
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, rstd = (torch.empty(count, dtype=torch.float32, device=x.device) for _ in range(2))
    shape = _shape(dim, 2048)
    _norm[(triton.cdiv(count, shape["R"]),)](x, gain, bias, normed, mean, rstd, count, dim, eps, **shape)
    return [normed, mean, rstd]


@layer_norm.register_fake
def _(x, gain, bias, eps):
    return [x.new_empty(x.shape), *(x.new_empty(x.shape[:1], dtype=torch.float32) for _ in range(2))]


@torch.library.custom_op("deepnmt::layer_norm_backward", mutates_args=())
def layer_norm_backward(
    beside: Tensor | None, d_normed: Tensor, x: Tensor, gain: Tensor, mean: Tensor, rstd: Tensor
) -> list[Tensor]:
    """The gradients of x and, one after the other, of gain and bias; `beside` is what else reaches x."""
    count, dim = x.shape
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    shape = _shape(dim, 1024)
    programs = min(PROGRAMS, triton.cdiv(count, shape["R"]))
    shares = torch.empty(programs, 2 * dim, device=x.device)
    _norm_backward[(programs,)](
        d_normed if beside is None else beside.contiguous(), d_normed.contiguous(), x, gain, mean, rstd, total, shares,
        count, dim, BESIDE=beside is not None, **shape,
    )  # fmt: skip
    return [total, add_up(shares)]


@layer_norm_backward.register_fake
def _(beside, d_normed, x, gain, mean, rstd):
    return [x.new_empty(x.shape), x.new_empty(2 * x.shape[1], dtype=torch.float32)]


@torch.library.custom_op("deepnmt::relu_dropout", mutates_args=())
def relu_dropout(h: Tensor, seed: Tensor, dropout: float) -> list[Tensor]:
    """dropout(relu(h)), and a bit for each element that passed. h: (tokens, a multiple of 8)"""
    out = torch.empty(h.shape, dtype=h.dtype, device=h.device)
    groups = h.numel() // 8
    signs = torch.empty(groups, dtype=torch.uint8, device=h.device)
    block = 256
    _relu[(triton.cdiv(groups, block),)](
        h, seed, out, signs, groups, dropout, DROPOUT=dropout > 0, B=block, num_warps=4
    )
    return [out, signs]


@relu_dropout.register_fake
def _(h, seed, dropout):
    return [h.new_empty(h.shape), h.new_empty(h.numel() // 8, dtype=torch.uint8)]


PRODUCT = {"BM": 128, "BN": 128, "BK": 64}  # a tile of the product; tried on an H200


@torch.library.custom_op("deepnmt::relu_product_backward", mutates_args=())
def relu_product_backward(d_y: Tensor, weight: Tensor, signs: Tensor, dropout: float) -> list[Tensor]:
    """The gradient of h, which is d_y @ weight where something passed, and its sum over the tokens in fp32.

    One kernel on Hopper, for tensors that consist of whole tiles; else a product, and a pass after it.
    """
    (count, dim), size = d_y.shape, weight.shape[1]
    whole = count % PRODUCT["BM"] == 0 and size % PRODUCT["BN"] == 0 and dim % PRODUCT["BK"] == 0
    if whole and d_y.dtype.itemsize == 2 and torch.cuda.get_device_capability(d_y.device)[0] == 9:
        return _relu_product_backward_by_tiles(d_y.contiguous(), weight.contiguous(), signs, dropout)
    return _relu_backward_after_product(d_y @ weight, signs, dropout)


@relu_product_backward.register_fake
def _(d_y, weight, signs, dropout):
    return [d_y.new_empty(len(d_y), weight.shape[1]), d_y.new_empty(weight.shape[1], dtype=torch.float32)]


def _relu_product_backward_by_tiles(d_y: Tensor, weight: Tensor, signs: Tensor, dropout: float) -> list[Tensor]:
    (count, dim), size = d_y.shape, weight.shape[1]
    d_h = torch.empty(count, size, dtype=d_y.dtype, device=d_y.device)
    height, width, depth = PRODUCT.values()
    shares = torch.empty(count // height, size, device=d_y.device)
    _relu_product_backward[(count // height * (size // width),)](
        TensorDescriptor.from_tensor(d_y, [height, depth]), TensorDescriptor.from_tensor(weight, [depth, width]), signs,
        TensorDescriptor.from_tensor(d_h, [height, width]), shares, count, size, dim, dropout,
        GROUP=8, num_warps=4, num_stages=3, **PRODUCT,
    )  # fmt: skip
    return [d_h, add_up(shares)]


def _relu_backward_after_product(d_out: Tensor, signs: Tensor, dropout: float) -> list[Tensor]:
    count, dim = d_out.shape
    d_h = torch.empty(d_out.shape, dtype=d_out.dtype, device=d_out.device)
    rows, block = 4, 32
    programs, each = _programs(count, rows, PROGRAMS // 4)
    shares = torch.empty(programs, dim, device=d_out.device)
    _relu_backward[(programs, triton.cdiv(dim // 8, block))](
        d_out, signs, d_h, shares, count, dim // 8, each, dropout, R=rows, B=block, num_warps=1
    )
    return [d_h, add_up(shares)]
