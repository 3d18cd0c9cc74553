"""A vocabulary has any size, but a GPU's matrix products are fast only if all rows start at multiples of 16 bytes."""

import torch
from torch import Tensor

GPU_ROWS = 64  # of the output layer's weight, hence columns of logits


def widened(weight: Tensor, multiple: int) -> Tensor:
    """(V, ...) with rows of zeros at the end, up to a multiple."""
    missing = -len(weight) % multiple
    return torch.cat([weight, weight.new_zeros(missing, *weight.shape[1:])]) if missing else weight
