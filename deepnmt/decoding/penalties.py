"""Length penalties: a hypothesis is ranked by log probability / penalty(length); the length counts the end symbol."""

from collections.abc import Callable

import torch
from torch import Tensor

from deepnmt.decoding.config import SearchConfig

PENALTIES: dict[str, Callable[[Tensor, float], Tensor]] = {
    # The authors' code (and fairseq's): score / length**alpha.
    "length": lambda length, alpha: length**alpha,
    # Wu et al. 2016, https://arxiv.org/abs/1609.08144, equation 14.
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,
}


def penalty_table(config: SearchConfig, max_length: int, device: torch.device | str = "cpu") -> Tensor:
    """penalty(n) for n = 0 .. max_length (n = 0 never ends a hypothesis; its entry is 1)."""
    lengths = torch.arange(max_length + 1, dtype=torch.float64).clamp(min=1)
    return PENALTIES[config.penalty_form](lengths, config.length_penalty).float().to(device)
