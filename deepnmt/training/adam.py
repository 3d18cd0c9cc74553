"""Adam on a GPU, in one kernel for all parameters of a group. torch's fused Adam is the plain twin."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class KernelAdam(torch.optim.Adam):
    """Adam or AdamW. Like torch's fused versions, `step` divides the gradients by `grad_scale` and does nothing if
    `found_inf` is 1. Both are tensors on the device; the learning rate may be one too."""

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        super().__init__(groups, **options)
        self.tables: list[tuple[list[int], Any, Tensor]] = []

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        from deepnmt.model.kernels.adam_triton import ManyTensors, addresses_of

        columns = [self._columns(group["params"]) for group in self.param_groups]
        if [addresses for addresses, _, _ in self.tables] != [addresses_of(tensors) for tensors in columns]:
            self.tables = [
                (addresses_of(tensors), ManyTensors(tensors), self._joined_steps(group["params"]))
                for tensors, group in zip(columns, self.param_groups, strict=True)
            ]
        assert self.grad_scale is not None and self.found_inf is not None
        is_good = 1 - self.found_inf
        for group, (_, tensors, steps) in zip(self.param_groups, self.tables, strict=True):
            rate = group["lr"]
            steps += is_good
            if not isinstance(rate, Tensor):
                rate = torch.full_like(is_good, rate)
            tensors.launch(steps, rate, self.grad_scale, self.found_inf, group)

    def _columns(self, parameters: list[Tensor]) -> list[list[Tensor]]:
        """Parameters, gradients, means, mean squares."""
        states = [adam_state(self.state[p], p) for p in parameters]
        kinds = [[state[kind] for state in states] for kind in ("exp_avg", "exp_avg_sq")]
        return [parameters, [p.grad for p in parameters if p.grad is not None], *kinds]

    def _joined_steps(self, parameters: list[Tensor]) -> Tensor:
        """One tensor of all step counts; those in the state become views of it, so that one operation updates them."""
        steps = torch.stack([self.state[p]["step"] for p in parameters])
        for parameter, step in zip(parameters, steps.unbind(), strict=True):
            self.state[parameter]["step"] = step
        return steps


def adam_state(state: dict[str, Tensor], parameter: Tensor) -> dict[str, Tensor]:
    """The state of Adam for a parameter; zeros before the first step."""
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)
    return state
