"""The device that a command works on: the one that was asked for, if torch can use it, or the best that there is."""

import os
from functools import cache
from pathlib import Path

from deepnmt.errors import InputError
from deepnmt.progress import say

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")

_say_once = cache(say)  # however often a device is chosen


def choose_device(asked: str | None) -> str:
    """cpu or cuda, or what was asked for. A GPU that is there but stays unused is named."""
    import torch

    if torch.cuda.is_available():
        return asked or "cuda"
    if asked is not None and asked.startswith("cuda"):
        raise InputError(f"--device {asked}: torch sees no GPU{f' ({reason})' if (reason := _why_unused()) else ''}")
    if asked is None and os.environ.get("LOCAL_RANK", "0") == "0" and (reason := _why_unused()):
        _say_once(f"the GPU of this machine is not used ({reason})")
    return asked or "cpu"


def _why_unused() -> str | None:
    """Of a GPU that torch does not see, although there is one and it is not hidden on purpose."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not NVIDIA_DRIVER.is_file() or visible in ("", "-1"):
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; install a build with it"
    if visible is not None:
        return f"CUDA_VISIBLE_DEVICES is {visible}"
    return f"torch {torch.__version__} wants a driver for CUDA {torch.version.cuda}"
