"""The sums of rows that have the same number, in their order: after a stable sort each program sums one stretch."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _sum_stretch(Sorted, Order, Rows, Sums, count, dim, padding, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    first = tl.program_id(0)
    number = tl.load(Sorted + first)
    before = tl.load(Sorted + first - 1, mask=first > 0, other=-1)
    if (number != before) & (number != padding):
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        total = tl.zeros((COLUMNS,), tl.float32)
        place, found = first, ROWS
        while found == ROWS:
            places = place + tl.arange(0, ROWS)
            same = tl.load(Sorted + places, mask=places < count, other=-1) == number
            order = tl.load(Order + places, mask=same, other=0)
            mask = same[:, None] & (columns < dim)[None, :]
            rows = tl.load(Rows + order[:, None] * dim + columns[None, :], mask=mask, other=0.0)
            total += tl.sum(rows.to(tl.float32), 0)
            found = tl.sum(same.to(tl.int32), 0)
            place += ROWS
        tl.store(Sums + number * dim + columns, total, mask=columns < dim)


def sum_rows(rows: Tensor, numbers: Tensor, size: int, padding: int) -> Tensor:
    """rows (N, d), numbers (N) below `size` -> (size, d) in fp32; what has the number `padding` is left out."""
    count, dim = rows.shape
    sums = torch.zeros(size, dim, dtype=torch.float32, device=rows.device)
    if count == 0:
        return sums
    ordered, order = numbers.long().sort(stable=True)
    columns = min(128, triton.next_power_of_2(dim))
    grid = (count, triton.cdiv(dim, columns))
    _sum_stretch[grid](ordered, order, rows, sums, count, dim, padding, ROWS=32, COLUMNS=columns)
    return sums
