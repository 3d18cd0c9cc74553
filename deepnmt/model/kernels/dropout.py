"""Dropout whose noise takes a few integer operations: the backward pass computes it again, so no mask is stored."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """torch's dropout, except where its random numbers cost more than its memory traffic: in compiled code on a GPU,
    and on a CPU, where torch draws a number for each element."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type == "cpu":
            return quartered_dropout(x, self.p)
        if torch.compiler.is_compiling():
            return scattered_dropout(x, self.p, fresh_seed(x.device))
        return super().forward(x)


def quartered_dropout(x: Tensor, p: float) -> Tensor:
    """64 random bits serve four elements; p is rounded to a multiple of 2**-16."""
    threshold = round(p * 2**16)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    lowest = threshold - 2**15
    # 1 from `lowest` on, else 0: comparing and selecting are not vectorised for 16 bits, and take twice the time.
    kept = bits.clamp_(lowest - 1, lowest).sub_(lowest - 1).to(x.dtype) if threshold else 1.0
    return x * kept * (1 / (1 - threshold / 2**16))


def scattered_dropout(x: Tensor, p: float, seed: Tensor) -> Tensor:
    """Two neighbours share 32 bits: the number of their pair, scrambled with the seed. An element is dropped if its
    sixteen bits are below p * 2**16; p is rounded to a multiple of 2**-16.

    seed: (1,) int32. Meant to be compiled, so that it fuses with the operations around it.
    """
    place = torch.arange(x.numel(), device=x.device, dtype=torch.int32).view(x.shape)
    half = (scramble((place >> 1) ^ seed) >> ((place & 1) * 16)) & 0xFFFF
    return torch.where(half >= round(p * 2**16), x * (1 / (1 - p)), 0.0)


def scramble(bits: Tensor) -> Tensor:
    """The finaliser of MurmurHash3 on int32 that wraps around: every input bit affects every output bit."""
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * -2048144789
    bits = (bits ^ ((bits >> 13) & 0x7FFFF)) * -1028477387
    return bits ^ ((bits >> 16) & 0xFFFF)


class _Dealt:
    """Seeds drawn in advance, and the number already used."""

    rows: Tensor | None = None
    taken = 0


_DEALT = _Dealt()
SEEDS_OF_A_LAYER, APART = 16, 4  # seeds lie 16 bytes apart, where kernels read them without a copy


def draw_seeds(num_layers: int, device: torch.device) -> Tensor:
    """Seeds of all layers, drawn by one kernel: a row for each layer, for `dealing`."""
    return torch.randint(2**31 - 1, (num_layers, SEEDS_OF_A_LAYER, APART), device=device, dtype=torch.int32)


@contextmanager
def dealing(rows: Tensor | None) -> Iterator[None]:
    """Inside, `fresh_seed` returns these rows one after the other. They are an input of the compiled layer, so that all
    layers share its code and still differ in their noise."""
    _DEALT.rows, _DEALT.taken = rows, 0
    try:
        yield
    finally:
        _DEALT.rows = None


def fresh_seed(device: torch.device) -> Tensor:
    """The next seed of `dealing`, or one from the device's own generator: (1,) int32."""
    if _DEALT.rows is None or _DEALT.taken == len(_DEALT.rows):
        return torch.randint(2**31 - 1, (1,), device=device, dtype=torch.int32)
    _DEALT.taken += 1
    return _DEALT.rows[_DEALT.taken - 1, :1]
