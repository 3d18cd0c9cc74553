"""Sums of the rows with the same number, in order: after a stable sort each program sums one run of them."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _sum_stretch(Starts, Order, Rows, Sums, dim, padding, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    number = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    if number != padding:
        last = tl.load(Starts + number + 1)
        for first in range(tl.load(Starts + number), last, ROWS):
            places = first + tl.arange(0, ROWS)
            order = tl.load(Order + places, mask=places < last, other=0)
            inside = (places < last)[:, None] & (columns < dim)[None, :]
            rows = tl.load(Rows + order[:, None] * dim + columns[None, :], mask=inside, other=0.0)
            total += tl.sum(rows.to(tl.float32), 0)
    tl.store(Sums + number.to(tl.int64) * dim + columns, total, mask=columns < dim)


@torch.library.custom_op("deepnmt::sum_rows", mutates_args=())
def sum_rows(rows: Tensor, numbers: Tensor, size: int, padding: int) -> Tensor:
    """rows (N, d), numbers (N) below `size` -> (size, d) in fp32; rows with the number `padding` are left out.

    A torch operator, so it works in compiled code.
    """
    dim = rows.shape[1]
    sums = torch.empty(size, dim, dtype=torch.float32, device=rows.device)
    ordered, order = numbers.int().sort(stable=True)
    starts = torch.searchsorted(ordered, torch.arange(size + 1, dtype=torch.int32, device=rows.device))
    columns = min(512, triton.next_power_of_2(dim))
    _sum_stretch[(size, triton.cdiv(dim, columns))](
        starts, order, rows, sums, dim, padding, ROWS=16, COLUMNS=columns, num_warps=max(1, columns // 128)
    )
    return sums


@sum_rows.register_fake
def _(rows, numbers, size, padding):
    return rows.new_empty(size, rows.shape[1], dtype=torch.float32)
