"""Adam and AdamW for many parameters in one kernel, which reads their addresses from a table. The plain twin is torch's
fused Adam: it takes a few dozen tensors at a time, each in a few blocks, which leaves most of a large GPU idle."""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
TINY = 1e-30  # in place of a beta of zero, which has no logarithm


@triton.jit
def _adam(
    Chunks, Addresses, Sizes, Steps, Rate, Divisor, Is_bad, count,
    beta1, beta2, log_beta1, log_beta2, eps, weight_decay,
    DECOUPLED: tl.constexpr, DECAYS: tl.constexpr, IN_FOURS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Chunks: the tensor and the block of it. Addresses: parameters, gradients, means, mean squares."""
    chunk = tl.program_id(0)
    tensor, start = tl.load(Chunks + 2 * chunk), tl.load(Chunks + 2 * chunk + 1) * BLOCK
    # Every tensor starts at a multiple of 16 bytes.
    Parameter = tl.multiple_of(tl.load(Addresses + tensor).to(tl.pointer_type(tl.float32)), 16)
    Gradient = tl.multiple_of(tl.load(Addresses + count + tensor).to(tl.pointer_type(tl.float32)), 16)
    Mean = tl.multiple_of(tl.load(Addresses + 2 * count + tensor).to(tl.pointer_type(tl.float32)), 16)
    Square = tl.multiple_of(tl.load(Addresses + 3 * count + tensor).to(tl.pointer_type(tl.float32)), 16)
    rate, divisor, step = tl.load(Rate), tl.load(Divisor), tl.load(Steps + tensor).to(tl.float64)
    step_size = (rate / (1 - tl.exp(step * log_beta1))).to(tl.float32)
    root = tl.sqrt((1 - tl.exp(step * log_beta2)).to(tl.float32))
    size, place = tl.load(Sizes + tensor), start + tl.arange(0, BLOCK)
    inside = place < (tl.multiple_of(size, 4) if IN_FOURS else size)
    if tl.load(Is_bad) == 0:
        p = tl.load(Parameter + place, mask=inside, other=0.0)
        g = tl.load(Gradient + place, mask=inside, other=0.0) / divisor
        mean = tl.load(Mean + place, mask=inside, other=0.0)
        square = tl.load(Square + place, mask=inside, other=0.0)
        if DECAYS:
            if DECOUPLED:
                p -= rate * weight_decay * p
            else:
                g += weight_decay * p
        mean += (1 - beta1) * (g - mean)
        square = beta2 * square + (1 - beta2) * g * g
        p -= step_size * mean / (tl.sqrt(square) / root + eps)
        tl.store(Parameter + place, p, mask=inside)
        tl.store(Mean + place, mean, mask=inside)
        tl.store(Square + place, square, mask=inside)


class ManyTensors:
    """The parameters of one group, their gradients, means and mean squares, in the same order."""

    def __init__(self, columns: list[list[Tensor]]) -> None:
        device, sizes = columns[0][0].device, [tensor.numel() for tensor in columns[0]]
        chunks = [(i, block) for i, size in enumerate(sizes) for block in range(-(-size // BLOCK))]
        self.chunks = torch.tensor(chunks, dtype=torch.int32, device=device)
        self.addresses = torch.tensor(addresses_of(columns), device=device)
        self.sizes = torch.tensor(sizes, dtype=torch.int32, device=device)
        self.in_fours = not any(size % 4 for size in sizes)

    def launch(self, steps: Tensor, rate: Tensor, divisor: Tensor, is_bad: Tensor, group: dict[str, Any]) -> None:
        """steps: (tensors,), this one included; rate, divisor and is_bad: () in fp32"""
        logs = (math.log(beta or TINY) for beta in group["betas"])
        _adam[(len(self.chunks),)](
            self.chunks, self.addresses, self.sizes, steps, rate, divisor, is_bad, len(self.sizes),
            *group["betas"], *logs, float(group["eps"]), float(group["weight_decay"]),
            DECOUPLED=group["decoupled_weight_decay"], DECAYS=group["weight_decay"] != 0, IN_FOURS=self.in_fours,
            BLOCK=BLOCK,
        )  # fmt: skip


def addresses_of(columns: list[list[Tensor]]) -> list[int]:
    return [tensor.data_ptr() for column in columns for tensor in column]
