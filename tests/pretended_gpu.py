"""A CPU that stands in for a GPU: the code takes the fused paths, whose kernels run in Triton's interpreter."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Inside, every tensor says that it is on a GPU, if the kernels are interpreted."""
    with pytest.MonkeyPatch.context() as patch:
        if INTERPRETED:
            patch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True), raising=False)
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        yield
