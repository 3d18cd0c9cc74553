"""Muon: orthogonalised momentum updates the matrices of the layers, and Adam everything else.

Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; its scale as in Liu et al. 2025 (Moonlight,
https://arxiv.org/abs/2502.16982), so that one learning rate fits both.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from deepnmt.training.config import TrainingConfig
from deepnmt.training.distributed import World

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # steep at zero: five rounds bring all but the smallest singular values near 1
ROUNDS = 5
ADAM_RMS = 0.2  # of Adam's usual update


def orthogonalize(matrices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """U V^T of every matrix U S V^T, nearly: its singular values become about one. (N, rows, columns), in `dtype`.

    Newton-Schulz: an odd polynomial of a matrix acts on its singular values and leaves U and V alone.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-30)).to(dtype)
    for _ in range(ROUNDS):
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x


def update_scale(rows: int, columns: int) -> float:
    """An orthogonal matrix has an RMS of 1 / sqrt(max(rows, columns)); this gives it Adam's."""
    return ADAM_RMS * max(rows, columns) ** 0.5


class Muon(torch.optim.Optimizer):
    """`matrices` by M <- m M + (1 - m) G, W <- W - lr scale NS((1 - m) G + m M); all else by `adam`.

    Matrices of one shape are orthogonalised together, and the ranks divide that work. Like torch's fused Adam, `step`
    divides by `grad_scale` and does nothing where `found_inf`, both on the device, so that the host never waits.
    """

    grad_scale: Tensor
    found_inf: Tensor

    def __init__(
        self, matrices: Iterable[nn.Parameter], adam: torch.optim.Adam, config: TrainingConfig, world: World
    ) -> None:
        shapes: dict[torch.Size, list[nn.Parameter]] = {}
        for parameter in matrices:
            shapes.setdefault(parameter.shape, []).append(parameter)
        groups = [{"params": stack} for stack in shapes.values()]
        rate = config.matrix_lr or config.lr
        options = {"momentum": config.momentum, "weight_decay": config.weight_decay}
        super().__init__(groups, {"lr": rate, "rate_factor": rate / config.lr, **options})
        self.stacks, self.adam, self.spread = list(self.param_groups), adam, world.spread_rows
        in_half = world.device.type == "cuda" or config.precision == "bf16"
        self.dtype = torch.bfloat16 if in_half else torch.float32
        self.param_groups += self.adam.param_groups  # the same dictionaries: a rate set here is set there
        self.state = self.adam.state
        for parameter in (parameter for stack in self.stacks for parameter in stack["params"]):
            self.state[parameter]["momentum"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        self.adam.grad_scale, self.adam.found_inf = self.grad_scale, self.found_inf  # type: ignore[attr-defined]
        self.adam.step()
        for stack in self.stacks:
            self._move(stack["params"], stack["lr"], stack["momentum"], stack["weight_decay"])

    def _move(self, stack: list[Tensor], rate: float | Tensor, momentum: float, weight_decay: float) -> None:
        gradients = torch.stack([p.grad for p in stack if p.grad is not None])
        gradients /= self.grad_scale
        good = 1 - self.found_inf
        gradients = gradients.where(good > 0, 0.0)  # not a product: they may be infinite
        states: list[Tensor] = [self.state[p]["momentum"] for p in stack]
        moments = torch.stack(states).lerp_(gradients, (1 - momentum) * good)
        torch._foreach_copy_(states, moments.unbind())
        wanted = gradients.lerp(moments, momentum)
        direction = self.spread(lambda part: orthogonalize(part, self.dtype).to(part.dtype), wanted)
        moved = rate * good
        if weight_decay:
            torch._foreach_mul_(stack, 1 - moved * weight_decay)
        torch._foreach_sub_(stack, (direction * (moved * update_scale(*stack[0].shape))).unbind())
