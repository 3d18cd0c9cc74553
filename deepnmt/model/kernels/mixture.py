"""The weighted sum of layer outputs, in plain torch: what autograd keeps grows linearly with depth."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.model.norms import inverse_rms

if TYPE_CHECKING:
    from deepnmt.model.kernels.mixture_triton import FusedMixtureTape


def mix(outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
    """sum_k weights[k] * outputs[k]. weights: (count, groups) in fp32; dimension i of an output has group i % groups.

    The sum is taken in fp32 and returned in the outputs' type, so that a weight is never rounded to half precision.
    """
    return _Mixture.apply(weights, *outputs)


def mix_by_position(outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
    """sum_k weights[..., k] * outputs[k]: each position has its own weights. weights: (..., count) in fp32."""
    return _Mixture.apply(weights.movedim(-1, 0).unsqueeze(-1), *outputs)


def mix_streams(streams: Tensor, branch: Tensor | None, weights: Tensor) -> Tensor:
    """Several mixtures of the same streams: number j is sum_i weights[..., i, j] * streams[i], the branch the last i.

    streams: (n, ..., dim); weights: (..., n, mixtures) in fp32, n + 1 with a branch -> (mixtures, ..., dim)
    """
    if streams.is_cuda:
        from deepnmt.model.kernels.streams_triton import fused_mix_streams

        return fused_mix_streams(streams, branch, weights)
    parts = [*streams.unbind(), *([] if branch is None else [branch])]
    return torch.stack([mix_by_position(parts, column) for column in weights.unbind(-1)])


class _Mixture(torch.autograd.Function):
    """Saves references to the outputs; stacking them would keep a copy of the history at every depth."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, *outputs: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *outputs)
        mixed = torch.zeros_like(outputs[0], dtype=_accumulation_type(outputs[0]))
        for factor, output in zip(_factors(weights, outputs[0]), outputs, strict=True):
            mixed.addcmul_(output.to(mixed.dtype), factor)
        return mixed.to(outputs[0].dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weights, *outputs = ctx.saved_tensors
        gradient = gradients[0].to(_accumulation_type(outputs[0]))
        factors = _factors(weights, outputs[0])
        needs_weights, *needs_outputs = ctx.needs_input_grad
        to_outputs = [
            (gradient * factor).to(output.dtype) if needed else None
            for factor, output, needed in zip(factors, outputs, needs_outputs, strict=True)
        ]
        to_weights = None
        if needs_weights:
            to_weights = torch.stack([_sum_like(weights, gradient * output) for output in outputs]).to(weights.dtype)
        return to_weights, *to_outputs


def fused_tape(matrix: Tensor, norms: Sequence[nn.Module]) -> "FusedMixtureTape | None":
    """On a GPU, for one weight per pair of layers; `DlclHistory` is the plain twin. matrix: (rows, rows, groups)"""
    if not matrix.is_cuda or matrix.shape[2] > 1:
        return None
    from deepnmt.model.kernels.mixture_triton import FusedMixtureTape

    return FusedMixtureTape(matrix[:, :, 0], norms)


@dataclass
class Networks:
    """Those of one pass: row l has the weights base[l] + U_l gelu(V_l rms(y)) at each position, y the newest output."""

    base: Tensor  # (rows, outputs), of which a row uses the first
    inner: Sequence[Tensor]  # V: (outputs of the row + 1, dim)
    outer: Sequence[Tensor]  # U: (outputs of the row, outputs of the row + 1)
    token: Tensor | None = None  # stands for all of these in the graph of the fused tape

    def weights(self, row: int, y: Tensor) -> Tensor:
        inner, outer = self.inner[row], self.outer[row]
        hidden = F.gelu(F.linear(y, inner) * inverse_rms(y))
        return self.base[row, : len(outer)].to(hidden.dtype) + F.linear(hidden.to(outer.dtype), outer)


class PositionTape:
    """One pass of a stack in which every position has its own mixing weights: autograd does the bookkeeping."""

    def enter(self, output: Tensor) -> Tensor:
        """Add an output to the mixtures that follow; return what the history keeps for it."""
        return output

    def mix(self, history: Sequence[Tensor], weights: Tensor) -> Tensor:
        """sum_k weights[..., k] * history[k] over all outputs so far. weights: (..., len(history)) in fp32"""
        return mix_by_position(history, weights)

    def mix_by(self, networks: Networks, row: int, history: Sequence[Tensor]) -> Tensor:
        """The same with the weights that the networks give this row."""
        return self.mix(history, networks.weights(row, history[-1]))


def open_position_tape(num_outputs: int, num_rows: int, *, on_gpu: bool) -> PositionTape:
    """The fused tape on a GPU. It mixes exactly `num_rows` rows; every output is read by a row after it."""
    if on_gpu:
        from deepnmt.model.kernels.position_mixture_triton import FusedPositionTape

        return FusedPositionTape(num_outputs, num_rows)
    return PositionTape()


def _accumulation_type(output: Tensor) -> torch.dtype:
    return torch.promote_types(output.dtype, torch.float32)


def _factors(weights: Tensor, output: Tensor) -> tuple[Tensor, ...]:
    """One factor per output: a scalar, a vector as wide as the output where the weights come in groups, or a number
    for each position."""
    weights = weights.to(_accumulation_type(output))
    if weights.ndim > 2:
        return weights.unbind()
    groups = weights.shape[1]
    if groups == 1:
        return weights[:, 0].unbind()
    return weights.repeat(1, output.shape[-1] // groups).unbind()


def _sum_like(weights: Tensor, product: Tensor) -> Tensor:
    if weights.ndim > 2:
        return product.sum(-1, keepdim=True)
    groups = weights.shape[1]
    return product.reshape(-1, product.shape[-1] // groups, groups).sum((0, 1))
