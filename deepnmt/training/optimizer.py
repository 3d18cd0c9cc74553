"""One step of the optimiser: norms, clipping, unscaling and skipping of bad gradients, without waiting for the host.

Clipping, unscaling and skipping are done inside the fused Adam kernel, through the two attributes it has for that.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from deepnmt.errors import InputError
from deepnmt.training.adam import KernelAdam, adam_state
from deepnmt.training.config import TrainingConfig
from deepnmt.training.distributed import World
from deepnmt.training.muon import Muon

Number = float | Tensor  # on the host, or on the device if the step is recorded


def build_optimizer(model: nn.Module, config: TrainingConfig, world: World) -> torch.optim.Optimizer:
    """Adam, AdamW or Muon; weight decay is for matrices, not for biases, norms or connection weights."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    # Inside a layer: not embeddings, output or relative positions, whose rows are vectors, nor connection weights.
    inside = re.compile(r"\blayers\.\d+\.(?!attention\.relative)")
    hidden = [name for name, p in trained.items() if p.ndim == 2 and inside.search(name)]
    matrices = {name: trained[name] for name in hidden if config.optimizer == "muon"}
    rest = {name: p for name, p in trained.items() if name not in matrices}
    decayed = {name for name, p in rest.items() if p.ndim == 2 and ".connection." not in f".{name}"}
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in rest.items() if name in decayed], "weight_decay": config.weight_decay},
        {"params": [p for name, p in rest.items() if name not in decayed], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise InputError(
            f'training.freeze = {list(config.freeze)} leaves only matrices to train; use optimizer = "adamw"'
        )
    is_sharded = any(hasattr(p, "full_tensor") for p in trained.values())
    kind = KernelAdam if world.device.type == "cuda" and not is_sharded else torch.optim.Adam
    decoupled = config.optimizer != "adam"
    adam = kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, decoupled_weight_decay=decoupled, fused=True)
    return Muon(matrices.values(), adam, config, world) if matrices else adam


@dataclass(frozen=True)
class GradientNorms:
    """The norm of each parameter's gradient, still on the device."""

    names: list[str]
    norms: Tensor

    @cached_property
    def total(self) -> Tensor:
        return torch.linalg.vector_norm(self.norms)

    def by_layer(self) -> dict[str, float]:
        """Norms of whole layers (`encoder.layers.3`) and of parameters outside them (`target_embedding`)."""
        squares: dict[str, float] = {}
        for name, norm in zip(self.names, self.norms.tolist(), strict=True):
            layer = layer_of(name)
            squares[layer] = squares.get(layer, 0.0) + norm * norm
        return {layer: square**0.5 for layer, square in squares.items()}


def layer_of(parameter: str) -> str:
    """`encoder.layers.3.ffn.input.weight` -> `encoder.layers.3`; `encoder.final_norm.bias` -> `encoder.final_norm`."""
    found = re.match(r"(.*?\blayers\.\d+)\.", parameter)
    return found.group(1) if found else ".".join(parameter.split(".")[:2])


def gradient_norms(model: nn.Module, scale: Tensor) -> GradientNorms:
    named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    norms = torch._foreach_norm([gradient for _, gradient in named])
    return GradientNorms([name for name, _ in named], torch.stack([whole(norm) for norm in norms]) / scale)


def apply_update(optimizer: torch.optim.Optimizer, rate: Number, divisor: Tensor, is_bad: Tensor) -> None:
    """Update the parameters with their gradients divided by `divisor`, unless `is_bad` is 1. Both: () in fp32."""
    rate = _in_fp32(rate)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate_factor"] if "rate_factor" in group else rate
    # As GradScaler sets them: the kernel divides by the first and skips if the second is 1.
    optimizer.grad_scale, optimizer.found_inf = divisor, is_bad  # type: ignore[attr-defined]
    optimizer.step()


def _in_fp32(number: Number) -> Number:
    return number.float() if isinstance(number, Tensor) else number


class Ema:
    """An exponential moving average of the trained parameters; its decay starts low and grows to `decay`."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.shadow = {name: p.detach().clone() for name, p in self.named.items()}

    def share_at(self, step: int) -> float:
        """The share of the current parameters in the average after this step."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    def update(self, share: Number) -> None:
        """(1 - a) s + a p as a ((1 - a) / a s + p): torch adds with a factor only if the host knows it."""
        shadow, current = list(self.shadow.values()), [p.detach() for p in self.named.values()]
        torch._foreach_mul_(shadow, _in_fp32((1 - share) / share))
        torch._foreach_add_(shadow, current)
        torch._foreach_mul_(shadow, _in_fp32(share))

    def swap(self) -> None:
        """Swap the values of the average and the parameters; calling it again undoes it."""
        with torch.no_grad():
            for name, parameter in self.named.items():
                kept = parameter.detach().clone()
                parameter.copy_(self.shadow[name])
                self.shadow[name].copy_(kept)


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor in one piece (every rank must call this); other tensors unchanged."""
    in_one_piece: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return in_one_piece


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by parameter name: `exp_avg/encoder.layers.0...`; zeros before the first step."""
    mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
    named = [(name, p) for name, p in model.named_parameters() if id(p) in mine]
    assert len(named) == len(mine), "a sharded module is in one piece: its parameters are not the optimiser's"
    tensors = {}
    for name, parameter in named:
        state = adam_state(optimizer.state[parameter], parameter)
        tensors.update({f"{kind}/{name}": tensor for kind, tensor in state.items()})
    return tensors
