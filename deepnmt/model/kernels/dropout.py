"""Dropout whose noise is a few integer operations: made again in the backward pass, so that no mask is kept."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """As torch has it, except where its random numbers cost more than its memory traffic: in compiled code on a GPU,
    and on a CPU, which draws a number for each element."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type == "cpu":
            return quartered_dropout(x, self.p)
        if torch.compiler.is_compiling():
            return scattered_dropout(x, self.p, fresh_seed(x.device))
        return super().forward(x)


def quartered_dropout(x: Tensor, p: float) -> Tensor:
    """Each 64 random bits decide about four elements; p is rounded to a multiple of 2**-16."""
    threshold = round(p * 2**16)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    lowest = threshold - 2**15
    # 1 from `lowest` on, else 0: comparing and selecting are not vectorised for 16 bits, and take twice the time.
    kept = bits.clamp_(lowest - 1, lowest).sub_(lowest - 1).to(x.dtype) if threshold else 1.0
    return x * kept * (1 / (1 - threshold / 2**16))


def scattered_dropout(x: Tensor, p: float, seed: Tensor) -> Tensor:
    """Two neighbours share the 32 bits that the number of their pair, scrambled with the seed, gives: an element is
    dropped if its sixteen are among the lowest. p is rounded to a multiple of 2**-16.

    seed: (1,) int32. Meant to be compiled: then all of it is one pass with what stands around it.
    """
    place = torch.arange(x.numel(), device=x.device, dtype=torch.int32).view(x.shape)
    half = (scramble((place >> 1) ^ seed) >> ((place & 1) * 16)) & 0xFFFF
    return torch.where(half >= round(p * 2**16), x * (1 / (1 - p)), 0.0)


def scramble(bits: Tensor) -> Tensor:
    """The finaliser of MurmurHash3 on int32 that wraps around: every bit of the input moves every bit of the output."""
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * -2048144789
    bits = (bits ^ ((bits >> 13) & 0x7FFFF)) * -1028477387
    return bits ^ ((bits >> 16) & 0xFFFF)


class _Dealt:
    """Seeds that were drawn before, and how many of them are taken."""

    rows: Tensor | None = None
    taken = 0


_DEALT = _Dealt()
SEEDS_OF_A_LAYER, APART = 16, 4  # seeds lie 16 bytes apart, where kernels read them without a copy


def draw_seeds(num_layers: int, device: torch.device) -> Tensor:
    """For all layers, by one kernel: the rows are for `dealing`."""
    return torch.randint(2**31 - 1, (num_layers, SEEDS_OF_A_LAYER, APART), device=device, dtype=torch.int32)


@contextmanager
def dealing(rows: Tensor | None) -> Iterator[None]:
    """Inside, `fresh_seed` takes one of these rows after the other. They are an input of a compiled layer, so that all
    layers share its code and yet differ in their noise."""
    _DEALT.rows, _DEALT.taken = rows, 0
    try:
        yield
    finally:
        _DEALT.rows = None


def fresh_seed(device: torch.device) -> Tensor:
    """Dealt, or else from the device's own generator: (1,) int32."""
    if _DEALT.rows is None or _DEALT.taken == len(_DEALT.rows):
        return torch.randint(2**31 - 1, (1,), device=device, dtype=torch.int32)
    _DEALT.taken += 1
    return _DEALT.rows[_DEALT.taken - 1, :1]
