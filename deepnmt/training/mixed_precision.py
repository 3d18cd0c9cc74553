"""Mixed precision: the type of the products, and the loss scale that keeps fp16 gradients from underflowing."""

import torch
from torch import Tensor

from deepnmt.training.config import Precision

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def product_type(precision: Precision, device: torch.device) -> torch.dtype:
    """The type of matrix products. "auto" is bf16 if the GPU supports it, else fp16, and fp32 on a CPU."""
    if precision != "auto":
        return DTYPES[precision]
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


class LossScale:
    """The factor on the loss: halved when a gradient overflows (that update is skipped), doubled after CALM_STEPS.

    It stays on the device and is updated in place, without waiting for the host. In fp32 and bf16 it is always 1.
    """

    START, SMALLEST, CALM_STEPS = 2.0**13, 2.0**-13, 2000.0

    def __init__(self, dynamic: bool, device: torch.device) -> None:
        self.dynamic = dynamic
        self.factor = torch.tensor(self.START if dynamic else 1.0, device=device)
        self.calm = torch.tensor(0.0, device=device)

    def update(self, overflow: Tensor) -> None:
        """overflow: 0-dim bool, on the device."""
        if self.dynamic:
            calm = torch.where(overflow, 0.0, self.calm + 1)
            grown = torch.where(calm >= self.CALM_STEPS, self.factor * 2, self.factor)
            self.factor.copy_(torch.where(overflow, self.factor / 2, grown))
            self.calm.copy_(torch.where(calm >= self.CALM_STEPS, 0.0, calm))

    def hopeless(self, overflow: Tensor) -> Tensor:
        """An overflow that no smaller scale can fix: the run has diverged."""
        return overflow & (self.factor <= self.SMALLEST) if self.dynamic else overflow

    def state(self) -> dict[str, float]:
        return {"factor": float(self.factor), "calm": float(self.calm)}

    def load(self, state: dict[str, float]) -> None:
        self.factor.fill_(state["factor"])
        self.calm.fill_(state["calm"])
