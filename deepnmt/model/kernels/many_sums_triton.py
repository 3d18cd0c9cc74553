"""Many tensors of any sizes, each added to another of its size, in one kernel: it looks up their addresses."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
BLOCK = 4096
VECTOR = 16  # bytes


@triton.jit
def _add(
    Chunks, Added, Totals, Sizes, Is_first, TYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """total = added if `Is_first`, else total + added. Chunks: of which tensor, and which block of it."""
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


class ManySums:
    """Of tensors of one type to fp32 totals, which stay where they are; `locate` may be called after recording."""

    def __init__(self, totals: Sequence[Tensor]) -> None:
        chunks = [(i, block) for i, total in enumerate(totals) for block in range(-(-total.numel() // BLOCK))]
        device = totals[0].device
        self.chunks = torch.tensor(chunks, dtype=torch.int32, device=device)
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
            self.chunks, self.added, self.totals, self.sizes, is_first,
            TYPE=self.type, ALIGNED=self.aligned, BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip
