"""Precisions for translation. Weights are packed or quantised once, when the model is loaded."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.decoding.int8 import Int8Linear
from deepnmt.errors import InputError
from deepnmt.model.cache import Cache
from deepnmt.model.folding import folded
from deepnmt.model.kernels.padding import GPU_ROWS, widened
from deepnmt.model.layers import FeedForward
from deepnmt.model.transformer import Transformer

PRECISIONS = ("fp32", "bf16", "fp16", "int8")
TYPICAL_ROWS = 128  # affects the packing, not the result


class PreparedModel:
    """A model as a step function for search, with its output projection, which may be packed or quantised."""

    def __init__(self, model: Transformer, project: Callable[[Tensor], Tensor] | None = None) -> None:
        self.model = model
        self.project = project or model.project

    @torch.inference_mode()
    def restricted(self, symbols: Tensor) -> "PreparedModel":
        """The same model, whose logits are those of these symbols only. For the CPU."""
        weight = self.model.output_weight[symbols]
        bias = None if self.model.output_bias is None else self.model.output_bias[symbols]
        if isinstance(self.project, Int8Linear):
            return PreparedModel(self.model, Int8Linear(weight, bias, choose_scales=self.project.choose_scales))
        return PreparedModel(self.model, PackedLinear(weight, bias))

    @torch.inference_mode()
    def start(self, source: Tensor, beam: int, families: int = 1) -> Cache:
        """source: (B, S) ids, padded at the end"""
        return self.model.start(self.model.encode(source), beam, families)

    def step(self, symbols: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """symbols (B * K,) -> logits (B * K, V) of the next position.

        The first symbol is the same for all hypotheses of a sentence: that step is computed once for them all.
        """
        beam = cache.beam
        if cache.length or beam == 1:
            features, cache = self.model.step_features(symbols, cache)
            return self.project(features), cache
        features, cache = self.model.step_features(symbols[::beam], cache.narrowed())
        return self.project(features).repeat_interleave(beam, 0), cache.widened(beam)


def prepare(model: Transformer, precision: str) -> PreparedModel:
    """`model`, changed in place to use this precision, with its sub-layers folded into plain ones if possible."""
    if precision not in PRECISIONS:
        raise InputError(f"unknown precision {precision!r}; choose from {', '.join(PRECISIONS)}")
    device = model.output_weight.device.type
    if precision == "int8" and device != "cpu":
        raise InputError(f"precision int8 is for the CPU; on {device} use fp16 or bf16")
    if precision == "fp16" and device == "cpu":
        raise InputError("precision fp16 is for the GPU; on the CPU use bf16 or int8")
    model = folded(model)
    if precision in ("bf16", "fp16"):
        model.to({"bf16": torch.bfloat16, "fp16": torch.float16}[precision])
    if device != "cpu":
        return PreparedModel(model, AlignedLinear(model.output_weight, model.output_bias, GPU_ROWS))
    kind = Int8Linear if precision == "int8" else PackedLinear
    project = kind(model.output_weight, model.output_bias)
    _replace_linears(model, kind)
    return PreparedModel(model, project)


class AlignedLinear(nn.Module):
    """A linear layer that computes with a multiple of `multiple` outputs; those that are too many are cut off."""

    def __init__(self, weight: Tensor, bias: Tensor | None, multiple: int) -> None:
        super().__init__()
        self.size, self.weight = len(weight), widened(weight.detach(), multiple)
        self.bias = None if bias is None else widened(bias.detach(), multiple)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)[..., : self.size]


def _replace_linears(model: Transformer, kind: "type[PackedLinear] | type[Int8Linear]") -> None:
    """Replace linear layers by this kind, which also applies the relu of a feed-forward layer."""
    for parent in list(model.modules()):
        has_relu = isinstance(parent, FeedForward) and parent.activation is F.relu
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                relu = has_relu and name == "expand"
                after_relu = has_relu and name == "contract" and isinstance(parent.inner_norm, nn.Identity)
                setattr(parent, name, kind(child.weight, child.bias, relu=relu, after_relu=after_relu))
        if isinstance(parent, FeedForward) and has_relu:
            parent.activation = nn.Identity()


class PackedLinear(nn.Module):
    """A linear layer whose weights are laid out for the CPU once instead of at every call; fp32 or bf16.

    The operators are those that `torch.compile` uses when it freezes a model. Where they are missing the weights stay.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, relu: bool = False, after_relu: bool = False) -> None:
        """relu: on the output; after_relu: the input has no negative entries (of use to int8 only)."""
        super().__init__()
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.activation = "relu" if relu else "none"
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, TYPICAL_ROWS)
            torch.ops.mkldnn._linear_pointwise(self.weight[:1], packed, self.bias, self.activation, [], "")
        except (AttributeError, NotImplementedError, RuntimeError):
            self.is_packed = False
        else:
            self.weight, self.is_packed = packed, True

    def forward(self, x: Tensor) -> Tensor:
        if self.is_packed:
            output: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, self.activation, [], "")
            return output
        output = F.linear(x, self.weight, self.bias)
        return output.relu() if self.activation == "relu" else output
