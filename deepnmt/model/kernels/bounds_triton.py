"""Where the sentence of each position begins and ends, in this text or another, by one kernel."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _bounds(Own, Other, Position, Start, End, count, sentences, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    low, high = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32) + sentences + 1
    for _ in range(ROUNDS):  # counts the sentences that begin here or before
        middle = (low + high) // 2
        is_before = tl.load(Own + middle, mask=middle <= sentences, other=0x7FFFFFFF) <= place
        low, high = tl.where(is_before, middle + 1, low), tl.where(is_before, high, middle)
    sentence, inside = low - 1, place < count
    used = inside & (sentence < sentences)
    own = tl.load(Own + sentence, mask=used, other=0)
    tl.store(Position + place, tl.where(used, place - own, 0), mask=inside)
    tl.store(Start + place, tl.load(Other + sentence, mask=used, other=0), mask=inside)
    tl.store(End + place, tl.load(Other + sentence + 1, mask=used, other=0), mask=inside)


def bounds(own: Tensor, other: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """own, other: offsets (M + 1,) int32 -> for each of `count` places, all int32: its position in its sentence, and
    the start and end of the sentence of the same number in the other text; zeros in the tail."""
    position, start, end = (torch.empty(count, dtype=torch.int32, device=own.device) for _ in range(3))
    rounds = len(own).bit_length()
    grid = (triton.cdiv(count, 256),)
    _bounds[grid](own, other, position, start, end, count, len(own) - 1, ROUNDS=rounds, BLOCK=256, num_warps=4)
    return position, start, end
