"""The networks that compute the weights of dynamic mixtures, on a GPU: one kernel a row forward, and one backward.

A row has the weights base + U gelu(V rms(y)) at each position, y the newest output. V and U are narrow, so the kernels
compute their products where y is read, with the norm, the GELU and the sum. The gradients of V and U are sums over all
positions. They are computed for all rows at once after the last has had its backward pass: each program adds up a share
of the positions, and the shares are added in a fixed order.
"""

from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepnmt.model.kernels.mixture import Networks
from deepnmt.model.norms import EPS

PROGRAMS = 1056  # about as many compute the gradients of the matrices
MOST_OUTPUTS = 127  # of a row, whose network has one unit more: beyond, tiles do not fit into a program
ALIGNED = 4  # numbers; a gradient begins at a multiple, so that it is read in vectors


@triton.jit
def _normal(x):
    """P(X <= x)"""
    return 0.5 * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _positions(first, count, dim, stride, R: tl.constexpr, H: tl.constexpr):
    """Positions from `first` on, whether each exists, where its vector begins, and the places of its units."""
    positions = first + tl.arange(0, R)
    exists, positions = positions < count, positions.to(tl.int64)
    return positions, exists, positions[:, None] * dim, positions[:, None] * stride + tl.arange(0, H)[None, :]


@triton.jit(do_not_specialize=["count", "entered", "base"])
def _weights(
    Y, Base, V, U, Pre, Inverse, Kept, count, dim, entered, base, stride, eps,
    R: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """Kept[k] = Base[base + k] + (U gelu(Pre))[k] for k < entered, with Pre = V rms(Y). Inverse: of the RMS of Y"""
    kind = Y.dtype.element_ty
    units = tl.arange(0, H)
    positions, exists, starts, at_units = _positions(tl.program_id(0) * R, count, dim, stride, R, H)
    is_output, is_unit = units < entered, units <= entered
    pre, squares = tl.zeros((R, H), tl.float32), tl.zeros((R,), tl.float32)
    for first in range(0, dim, C):
        columns = first + tl.arange(0, C)
        y = tl.load(Y + starts + columns[None, :], mask=exists[:, None] & (columns < dim)[None, :], other=0.0)
        of_v = (columns < dim)[:, None] & is_unit[None, :]
        v = tl.load(V + units[None, :] * dim + columns[:, None], mask=of_v, other=0.0)
        pre = tl.dot(y, v.to(kind), pre, input_precision="ieee")
        wide = y.to(tl.float32)
        squares += tl.sum(wide * wide, 1)
    inverse = 1 / tl.sqrt(squares / dim + eps)
    pre = (pre * inverse[:, None]).to(kind)
    tl.store(Inverse + positions, inverse, mask=exists)
    tl.store(Pre + at_units, pre, mask=exists[:, None] & is_unit[None, :])
    wide = pre.to(tl.float32)
    of_u = is_unit[:, None] & is_output[None, :]
    u = tl.load(U + units[None, :] * (entered + 1) + units[:, None], mask=of_u, other=0.0)
    weights = tl.dot((wide * _normal(wide)).to(kind), u.to(kind), input_precision="ieee")
    weights += tl.load(Base + base + units, mask=is_output, other=0.0).to(tl.float32)[None, :]
    kept = Kept + units.to(tl.int64)[None, :] * count + positions[:, None]
    tl.store(kept, weights, mask=exists[:, None] & is_output[None, :])


@triton.jit(do_not_specialize=["count", "row", "entered", "slot", "inner", "outer"])
def _weights_backward(
    dW, Y, V, U, Pre, Inverse, dPre, dY, Places, count, dim, row, entered, stride, slot, inner, outer,
    R: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """dY, and dPre, the gradient of V Y, from that of the weights. What `_sums` needs to know goes to Places."""
    kind = Y.dtype.element_ty
    units = tl.arange(0, H)
    positions, exists, starts, at_units = _positions(tl.program_id(0) * R, count, dim, stride, R, H)
    is_output, is_unit = units < entered, units <= entered
    if tl.program_id(0) == 0:
        tl.store(Places + 4 * row, entered + 1)
        tl.store(Places + 4 * row + 1, slot)
        tl.store(Places + 4 * row + 2, inner)
        tl.store(Places + 4 * row + 3, outer)
    d_weights = tl.load(dW + at_units, mask=exists[:, None] & is_output[None, :], other=0.0)
    of_u = is_output[:, None] & is_unit[None, :]
    u = tl.load(U + units[:, None] * (entered + 1) + units[None, :], mask=of_u, other=0.0)
    d_hidden = tl.dot(d_weights.to(kind), u.to(kind), input_precision="ieee")
    pre = tl.load(Pre + at_units, mask=exists[:, None] & is_unit[None, :], other=0.0).to(tl.float32)
    d_pre = d_hidden * (_normal(pre) + pre * tl.exp(-0.5 * pre * pre) * 0.3989422804014327)
    inverse = tl.load(Inverse + positions, mask=exists, other=0.0)
    along = tl.sum(d_pre * pre, 1) * inverse * inverse / dim
    d_pre = (d_pre * inverse[:, None]).to(kind)
    tl.store(dPre + at_units, d_pre, mask=exists[:, None] & is_unit[None, :])
    for first in range(0, dim, C):
        columns = first + tl.arange(0, C)
        inside = exists[:, None] & (columns < dim)[None, :]
        y = tl.load(Y + starts + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        of_v = is_unit[:, None] & (columns < dim)[None, :]
        v = tl.load(V + units[:, None] * dim + columns[None, :], mask=of_v, other=0.0)
        d_y = tl.dot(d_pre, v.to(kind), input_precision="ieee") - along[:, None] * y
        tl.store(dY + starts + columns[None, :], d_y.to(kind), mask=inside)


@triton.jit(do_not_specialize=["count", "each"])
def _sums(
    Places, History, Pre, dPre, dW, Shares, count, dim, stride, each, base, total,
    OUTER: tl.constexpr, R: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """This program's share of the gradient of V, dPre^T Y; with OUTER of that of U, dW^T gelu(Pre), and of the base.

    Places has of each row how many units its network has, which output is the newest, and where its gradients go."""
    kind = Pre.dtype.element_ty
    row, units = tl.program_id(2), tl.arange(0, H)
    num_units = tl.load(Places + 4 * row)
    columns = tl.program_id(1) * C + tl.arange(0, C)
    to_row = tl.cast(row, tl.int64) * count * stride
    share = Shares + tl.program_id(0).to(tl.int64) * total
    sums, d_base = tl.zeros((H, C), tl.float32), tl.zeros((H,), tl.float32)
    start = tl.program_id(0) * each
    if OUTER:
        is_left, is_right, width = units < num_units - 1, columns < num_units, num_units
        share += tl.load(Places + 4 * row + 3)
    else:
        is_left, is_right, width = units < num_units, columns < dim, dim
        share += tl.load(Places + 4 * row + 2)
        History += tl.load(Places + 4 * row + 1).to(tl.int64) * count * dim
    for first in range(start, tl.minimum(start + each, count), R):
        positions, exists, starts, at_units = _positions(first, count, dim, stride, R, H)
        is_here = exists[:, None] & is_left[None, :]
        if OUTER:
            left = tl.load(dW + to_row + at_units, mask=is_here, other=0.0)
            d_base += tl.sum(left, 0)
            pre = Pre + to_row + positions[:, None] * stride + columns[None, :]
            pre = tl.load(pre, mask=exists[:, None] & is_right[None, :], other=0.0).to(tl.float32)
            right = (pre * _normal(pre)).to(kind)
        else:
            left = tl.load(dPre + to_row + at_units, mask=is_here, other=0.0)
            right = tl.load(History + starts + columns[None, :], mask=exists[:, None] & is_right[None, :], other=0.0)
        sums = tl.dot(tl.trans(left.to(kind)), right, sums, input_precision="ieee")
    tl.store(share + units[:, None] * width + columns[None, :], sums, mask=is_left[:, None] & is_right[None, :])
    if OUTER:
        share = Shares + tl.program_id(0).to(tl.int64) * total + base + row * H
        tl.store(share + units, d_base, mask=tl.program_id(1) == 0)


def networks_fit(networks: Networks, y: Tensor) -> bool:
    return networks.base.shape[1] <= MOST_OUTPUTS and y.dtype is not torch.float64


class FusedNetworks:
    """The networks of one pass, with what the backward pass needs."""

    def __init__(self, networks: Networks, like: Tensor) -> None:
        self.base = networks.base.detach().contiguous()
        self.matrices = [(v.detach(), u.detach()) for v, u in zip(networks.inner, networks.outer, strict=True)]
        self.num_rows, self.num_outputs = self.base.shape
        self.dim, self.count = like.shape[-1], like.numel() // like.shape[-1]
        self.width = _shape(self.num_outputs, like)["H"]
        self.pre = like.new_empty(self.num_rows, self.count, self.width)
        self.inverse = like.new_empty(self.num_rows, self.count, dtype=torch.float32)
        self.parameters = [matrix for column in zip(*self.matrices, strict=True) for matrix in column]
        sizes = (triton.cdiv(p.numel(), ALIGNED) * ALIGNED for p in self.parameters)
        self.starts = [0, *accumulate(sizes)]  # of their gradients, and of the base's
        self.d_weights: Tensor | None = None  # (rows, positions, width) in fp32

    def weigh(self, row: int, y: Tensor, kept: Tensor) -> None:
        """kept: (outputs, positions)"""
        v, u = self.matrices[row]
        shape = _shape(len(u), y)
        _weights[(triton.cdiv(self.count, shape["R"]),)](
            y, self.base, v, u, self.pre[row], self.inverse[row], kept,
            self.count, self.dim, len(u), row * self.num_outputs, self.width, EPS["rms"], **shape,
        )  # fmt: skip

    def gradient_of_weights(self, row: int) -> Tensor:
        """(positions, width), to be filled in before `backward`."""
        if self.d_weights is None:
            self.d_weights, self.d_pre = torch.empty_like(self.pre, dtype=torch.float32), torch.empty_like(self.pre)
            self.places = self.pre.new_zeros(self.num_rows, 4, dtype=torch.int32)
        return self.d_weights[row]

    def backward(self, row: int, slot: int, y: Tensor) -> Tensor:
        """The gradient of y, the output in this slot of the history."""
        v, u = self.matrices[row]
        d_y, shape = torch.empty_like(y), _shape(len(u), y)
        _weights_backward[(triton.cdiv(self.count, shape["R"]),)](
            self.d_weights[row], y, v, u, self.pre[row], self.inverse[row], self.d_pre[row], d_y, self.places,
            self.count, self.dim, row, len(u), self.width, slot,
            self.starts[row], self.starts[self.num_rows + row], **shape,
        )  # fmt: skip
        return d_y

    def gradients(self, history: Tensor) -> list[Tensor]:
        """Of the base, of each V and of each U, when all rows have had their backward passes."""
        shape, columns = _shape(self.num_outputs, history), min(128, triton.next_power_of_2(self.dim))
        programs = PROGRAMS // (self.num_rows * triton.cdiv(self.dim, columns))
        tiles = triton.cdiv(self.count, shape["R"])
        each = triton.cdiv(tiles, max(1, min(programs, tiles))) * shape["R"]
        programs, end = triton.cdiv(self.count, each), self.starts[-1]
        shares = self.inverse.new_zeros(programs, end + self.num_rows * self.width)
        for outer, size, width in ((False, self.dim, columns), (True, self.width, min(64, self.width))):
            _sums[(programs, triton.cdiv(size, width), self.num_rows)](
                self.places, history, self.pre, self.d_pre, self.d_weights, shares,
                self.count, self.dim, self.width, each, end, shares.shape[1], OUTER=outer, **shape | {"C": width},
            )  # fmt: skip
        self.d_weights = self.d_pre = self.places = None
        sums = shares.sum(0)
        parts = zip(self.starts, self.parameters, strict=False)
        d_base = sums[end:].view(self.num_rows, self.width)[:, : self.num_outputs]
        return [d_base, *(sums[start : start + p.numel()].view(p.shape) for start, p in parts)]


def _shape(outputs: int, like: Tensor) -> dict[str, int]:
    """Positions, columns, and units of a tile, as many as the registers of a program can hold."""
    width = max(16, triton.next_power_of_2(outputs + 1))
    positions, columns = (64, 64) if like.itemsize < 4 else (16, 32)
    return {"R": positions, "C": columns, "H": width, "num_warps": 8 if width * like.itemsize > 128 else 4}
