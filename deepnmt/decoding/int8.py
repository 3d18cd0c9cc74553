"""Linear layers in int8 on a CPU: inputs quantised row by row, weights output by output, exact on every processor.

Processors without VNNI add each two neighbouring products of an 8-bit input and an 8-bit weight in 16 bits, where they
saturate. Whether the operator at hand does so is tried out, not guessed from the processor's name.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn

from deepnmt.errors import InputError

LARGEST_WEIGHT = 127
LARGEST_INPUT = 255
LARGEST_PAIR = 128  # LARGEST_INPUT * LARGEST_PAIR still fits into 16 bits
PROBE_ROWS = (1, 4, 128)  # the operator may choose another kernel for few rows
ZERO = 128  # what stands for 0 where inputs have both signs
ROUNDING = 1.5 * 2**23  # a float of this size has no digits after the point, and its lowest byte is 0
TINY = 1e-30

Scales = Callable[[Tensor], Tensor]


def full_scales(weight: Tensor) -> Tensor:
    """The scale (N,) of each output of weight (N, K) that uses all 8 bits."""
    return weight.abs().amax(1).clamp(min=TINY) / LARGEST_WEIGHT


def pair_scales(weight: Tensor) -> Tensor:
    """The finest scales with which no two neighbouring products can exceed 16 bits, whatever the input.

    Inputs are not negative, so what counts is the sum of the positive, and of the negative, weights of a pair. This
    costs less precision than halving all weights: neighbours are seldom both large. Rounding may add one half each.
    """
    padded = nn.functional.pad(weight, (0, weight.shape[1] % 2)).unflatten(1, (-1, 2))
    largest = torch.maximum(padded.clamp(min=0).sum(2), padded.clamp(max=0).sum(2).neg()).amax(1)
    return torch.maximum(full_scales(weight), largest / (LARGEST_PAIR - 1))


def full_extremes(outputs: int, inputs: int) -> Tensor:
    """The weights (outputs, inputs) whose products are the largest there can be, of both signs."""
    weight = torch.full((outputs, inputs), LARGEST_WEIGHT, dtype=torch.int8)
    weight[1::2] = -LARGEST_WEIGHT
    return weight


def pair_extremes(outputs: int, inputs: int) -> Tensor:
    """The same where pairs are limited: in each pair one weight is as large as can be, at random the first or second,
    so that an operator which pairs its products in another way is found out."""
    first = torch.rand(outputs, inputs // 2 + 1, generator=torch.Generator().manual_seed(1)) < 0.5
    large = torch.stack([first, ~first], dim=2).flatten(1)[:, :inputs]
    signs = torch.tensor([1, -1], dtype=torch.int8).repeat(outputs)[:outputs, None]
    return torch.where(large, LARGEST_WEIGHT, LARGEST_PAIR - LARGEST_WEIGHT).to(torch.int8) * signs


@lru_cache
def scales_for(outputs: int, inputs: int) -> Scales:
    """The finest way to choose scales with which the operator of this machine is exact for layers of this size."""
    try:
        for scales, extremes in ((full_scales, full_extremes), (pair_scales, pair_extremes)):
            if _is_exact(extremes(outputs, inputs)):
                return scales
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        raise InputError(
            "precision int8 needs oneDNN's quantised operators, which this build of torch lacks; use fp32 or bf16"
        ) from error
    raise InputError("precision int8 does not compute exactly on this processor; use fp32 or bf16")


def _is_exact(weight: Tensor) -> bool:
    """Does the product of the largest inputs with this weight equal exact integer arithmetic?"""
    scales, zeros = torch.ones(len(weight)), torch.zeros(len(weight), dtype=torch.int32)
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    expected = LARGEST_INPUT * weight.sum(1).double()
    for rows in PROBE_ROWS:
        inputs = torch.full((rows, weight.shape[1]), LARGEST_INPUT, dtype=torch.uint8)
        found = _multiply(inputs, packed, scales, zeros, None).double()
        if not torch.allclose(found, expected.expand_as(found), rtol=1e-6, atol=0.5):
            return False
    return True


def _multiply(inputs: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None) -> Tensor:
    """uint8 inputs (rows, K) times packed int8 weights, in integers; times scales (N,) plus bias, in fp32."""
    output: Tensor = torch.ops.onednn.qlinear_pointwise(
        inputs, 1.0, 0, packed, scales, zeros, bias, 1.0, 0, torch.float32, "none", [], ""
    )
    return output


class Int8Linear(nn.Module):
    """A linear layer with int8 weights, one scale for each output, and inputs in 8 bits, one scale for each row.

    The row's own scale makes its result independent of the other rows. Inputs are shifted by 128 to be positive;
    `offset` takes out what that adds. Inputs that are known to be positive (`after_relu`) need no shift and get one bit
    more.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        relu: bool = False,
        after_relu: bool = False,
        choose_scales: Scales | None = None,
    ) -> None:
        """relu: on the output; choose_scales: those of a layer with more outputs, of which these are some"""
        super().__init__()
        weight = weight.detach().float()
        self.choose_scales = choose_scales or scales_for(*weight.shape)
        scales = self.choose_scales(weight)
        quantised = (weight / scales[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(quantised, None)
        self.relu, self.after_relu = relu, after_relu
        self.steps, zero = (LARGEST_INPUT, 0) if after_relu else (LARGEST_INPUT // 2, ZERO)
        self.rounding = torch.full((weight.shape[1],), ROUNDING + zero)
        self.scales, self.zeros = scales / self.steps, torch.zeros(len(weight), dtype=torch.int32)
        self.offset = -zero * quantised.sum(1) * self.scales if zero else None
        self.bias = None if bias is None else bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        rows = x if x.ndim == 2 else x.flatten(0, -2)
        largest = (rows if self.after_relu else rows.abs()).amax(1, keepdim=True)
        product = _multiply(self._quantise(rows, largest), self.packed, self.scales, self.zeros, self.offset)
        output = product.mul_(largest) if self.bias is None else torch.addcmul(self.bias, product, largest, out=product)
        if self.relu:
            output.relu_()
        return output if x.ndim == 2 else output.view(*x.shape[:-1], -1)

    def _quantise(self, rows: Tensor, largest: Tensor) -> Tensor:
        """rows (N, K) divided by `largest` (N, 1), in steps, as uint8.

        Adding `rounding` rounds, and leaves the integer in the lowest byte: two passes instead of four. A row of zeros
        becomes anything, which `forward` multiplies by zero.
        """
        return torch.addcdiv(self.rounding, rows, largest, value=self.steps).view(torch.int32).to(torch.uint8)
