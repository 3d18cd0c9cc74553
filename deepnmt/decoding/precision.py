"""The number formats a model can translate in. Packing and quantising happen once, when the model is loaded."""

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnmt.decoding.engine import Engine
from deepnmt.errors import InputError
from deepnmt.model.transformer import Transformer

PRECISIONS = ("fp32", "bf16", "fp16", "int8")
TYPICAL_ROWS = 128  # the packing may depend on it, the result does not


def prepare(model: Transformer, precision: str) -> Engine:
    """An engine that computes with `model` in this precision. The model is changed for good."""
    if precision not in PRECISIONS:
        raise InputError(f"precision {precision!r} is not known: one of {', '.join(PRECISIONS)}")
    device = model.output_weight.device.type
    if precision == "int8" and device != "cpu":
        raise InputError(f"precision int8 is for the CPU; on {device} use fp16 or bf16")
    if precision == "fp16" and device == "cpu":
        raise InputError("precision fp16 is for the GPU; on the CPU use bf16 or int8")
    if precision in ("bf16", "fp16"):
        model.to({"bf16": torch.bfloat16, "fp16": torch.float16}[precision])
    if device != "cpu":
        return Engine(model)
    kind = Int8Linear if precision == "int8" else PackedLinear
    project = kind(model.output_weight, None)
    _replace_linears(model, kind)
    # Beside int8 products, bf16 is no loss.
    return Engine(model, project, cache_dtype=torch.bfloat16 if precision == "int8" else None)


def _replace_linears(model: Transformer, kind: Callable[[Tensor, Tensor | None], nn.Module]) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, kind(child.weight, child.bias))


class PackedLinear(nn.Module):
    """A linear layer whose weights are laid out for the CPU once instead of at every call; fp32 or bf16.

    The operators are those that `torch.compile` uses when it freezes a model. Where they are missing the weights stay.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, TYPICAL_ROWS)
            torch.ops.mkldnn._linear_pointwise(self.weight[:1], packed, self.bias, "none", [], "")
        except (AttributeError, NotImplementedError, RuntimeError):
            self.is_packed = False
        else:
            self.weight, self.is_packed = packed, True

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_packed:
            return F.linear(x, self.weight, self.bias)
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return output


class Int8Linear(nn.Module):
    """A linear layer with int8 weights, one scale for each output; inputs are quantised as they come.

    The scale of an output is the largest of its weights over 127; that of the input is chosen by the kernel from the
    range of the whole input.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        torch.backends.quantized.engine = _quantised_engine()
        weight = weight.detach().float()
        scales = (weight.abs().amax(1) / 127).clamp(min=1e-8)
        zeros = torch.zeros(len(scales), dtype=torch.long)
        with warnings.catch_warnings():
            # Deprecated as a type of tensor since torch 2.13, and still the only input that the packing takes.
            warnings.filterwarnings("ignore", message=".*quantized tensor creation functions.*")
            quantised = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(quantised, None if bias is None else bias.detach().float())

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = torch.ops.quantized.linear_dynamic(x, self.packed)
        return output


def _quantised_engine() -> str:
    for engine in ("onednn", "x86", "fbgemm", "qnnpack"):
        if engine in torch.backends.quantized.supported_engines:
            return engine
    raise InputError("precision int8 is not supported by this build of torch on this machine; use bf16 or fp32")
