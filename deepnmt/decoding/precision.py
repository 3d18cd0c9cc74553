"""The number formats a model can translate in. Packing and quantising happen once, when the model is loaded."""

import warnings

import torch
from torch import Tensor, nn

from deepnmt.decoding.engine import Engine
from deepnmt.errors import InputError
from deepnmt.model.transformer import Transformer

PRECISIONS = ("fp32", "bf16", "fp16", "int8")


def prepare(model: Transformer, precision: str) -> Engine:
    """An engine that computes with `model` in this precision. The model is changed."""
    if precision not in PRECISIONS:
        raise InputError(f"precision {precision!r} is not known: one of {', '.join(PRECISIONS)}")
    device = model.output_weight.device.type
    if precision == "int8":
        if device != "cpu":
            raise InputError(f"precision int8 is for the CPU; on {device} use fp16 or bf16")
        return Engine(_quantised(model), _Int8Linear(model.output_weight, None))
    if precision == "fp16" and device == "cpu":
        raise InputError("precision fp16 is for the GPU; on the CPU use bf16 or int8")
    if precision != "fp32":
        model.to({"bf16": torch.bfloat16, "fp16": torch.float16}[precision])
    return Engine(model)


class _Int8Linear(nn.Module):
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
    for engine in ("x86", "onednn", "fbgemm", "qnnpack"):
        if engine in torch.backends.quantized.supported_engines:
            return engine
    raise InputError("precision int8 is not supported by this build of torch on this machine; use bf16 or fp32")


def _quantised(module: Transformer) -> Transformer:
    """Replace every linear layer inside."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, _Int8Linear(child.weight, child.bias))
    return module
