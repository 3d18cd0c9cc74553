"""Many tensors of any sizes, each added to another of its size, in one kernel that reads their addresses from a table;
and the norms of the sums, from the squares that this kernel sums up in each block."""

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
BLOCK = 4096
VECTOR = 16  # bytes


@triton.jit
def _add(
    Chunks, Added, Totals, Sizes, Squares, Is_first, TYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """total = added if `Is_first`, else total + added. Chunks: the tensor and the block of it."""
    chunk = tl.program_id(0)
    tensor, start = tl.load(Chunks + 2 * chunk), tl.load(Chunks + 2 * chunk + 1) * BLOCK
    added = tl.load(Added + tensor).to(tl.pointer_type(TYPE))
    total = tl.load(Totals + tensor).to(tl.pointer_type(tl.float32))
    if ALIGNED:
        added, total = tl.multiple_of(added, 16), tl.multiple_of(total, 16)
    size, is_first = tl.load(Sizes + tensor), tl.load(Is_first) > 0
    place = start + tl.arange(0, BLOCK)
    if start + BLOCK <= size:  # without a mask, so that it is read and written in vectors
        value = tl.load(added + place).to(tl.float32)
        if not is_first:
            value += tl.load(total + place)
        tl.store(total + place, value)
    else:
        value = tl.load(added + place, mask=place < size, other=0.0).to(tl.float32)
        if not is_first:
            value += tl.load(total + place, mask=place < size, other=0.0)
        tl.store(total + place, value, mask=place < size)
    tl.store(Squares + chunk, tl.sum(value * value, 0))


@triton.jit
def _root(Squares, Firsts, Places, Norms, BLOCK: tl.constexpr):
    """Firsts: the number of the first block of each tensor, and one more."""
    tensor = tl.program_id(0)
    last, total = tl.load(Firsts + tensor + 1), tl.zeros((BLOCK,), tl.float32)
    for first in range(tl.load(Firsts + tensor), last, BLOCK):
        place = first + tl.arange(0, BLOCK)
        total += tl.load(Squares + place, mask=place < last, other=0.0)
    tl.store(Norms + tl.load(Places + tensor), tl.sqrt(tl.sum(total, 0)))


class ManySums:
    """Adds tensors of one type to fp32 totals with fixed addresses; `locate` may be called after recording."""

    def __init__(self, totals: Sequence[Tensor]) -> None:
        device, blocks = totals[0].device, [-(-total.numel() // BLOCK) for total in totals]
        chunks = [(i, block) for i, count in enumerate(blocks) for block in range(count)]
        self.chunks = torch.tensor(chunks, dtype=torch.int32, device=device)
        self.firsts = torch.tensor([0, *accumulate(blocks)], dtype=torch.int32, device=device)
        self.squares = torch.zeros(len(chunks), device=device)
        self.sizes = torch.tensor([total.numel() for total in totals], device=device)
        self.totals = torch.tensor([total.data_ptr() for total in totals], device=device)
        self.added = torch.zeros_like(self.totals)

    def locate(self, added: Sequence[Tensor]) -> None:
        addresses = [tensor.data_ptr() for tensor in added]
        self.type = TYPES[added[0].dtype]
        self.aligned = not any(address % VECTOR for address in addresses)
        self.added.copy_(torch.tensor(addresses))

    def launch(self, is_first: Tensor) -> None:
        _add[(len(self.chunks),)](
            self.chunks, self.added, self.totals, self.sizes, self.squares, is_first,
            TYPE=self.type, ALIGNED=self.aligned, BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip

    def norms(self, norms: Tensor, places: Tensor) -> None:
        """Write the norm of total i to norms[places[i]]."""
        _root[(len(places),)](self.squares, self.firsts, places, norms, BLOCK=1024)
