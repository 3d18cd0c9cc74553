"""What all tests share: one thread, and no GPU tests where there is no GPU."""

import os

# Tiny models are slower on several threads, and much slower beside other work. Set before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
