"""Chooses the device and the number of threads, and knows the ranks of torchrun."""

import ctypes
import os
import sys
import time
from functools import cache
from pathlib import Path

from deepnmt.errors import InputError
from deepnmt.progress import say

TRANSLATION_ENVIRONMENT = {
    "LRU_CACHE_CAPACITY": "64",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "THP_MEM_ALLOC_ENABLE": "1",  # torch: huge pages for large tensors
    # How long libgomp's threads spin before they sleep. int8 on two cores, tokens/s: 825 alone and 366 beside two busy
    # processes; with immediate sleep 545 and 458; by default 806 alone, and once 59 on a crowded machine.
    "GOMP_SPINCOUNT": "1000",
}
# Options of glibc's mallopt: the largest allocation that is reused, and the free memory that the process keeps.
ALLOCATION_LIMITS = {-3: 64 << 20, -1: 512 << 20}
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")

_say_once = cache(say)  # not every time a device is chosen


def choose_device(asked: str | None) -> str:
    """Check the requested device; the default is cuda if torch can use it, else cpu."""
    import torch

    has_gpu = torch.cuda.is_available()
    if asked is None:
        if not has_gpu and os.environ.get("LOCAL_RANK", "0") == "0" and (reason := _why_unused()):
            _say_once(f"not using the GPU of this machine ({reason})")
        return "cuda" if has_gpu else "cpu"
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise InputError(f"device {asked!r} is unknown: choose cpu, cuda, or cuda:1 for the second GPU") from error
    if device.type not in ("cpu", "cuda"):
        try:
            torch.zeros(1, device=device).item()
        except (RuntimeError, NotImplementedError, AssertionError) as error:
            raise InputError(f"device {asked} does not work here: choose cpu or cuda") from error
    if device.type == "cuda" and not has_gpu:
        raise InputError(f"device {asked}: torch sees no GPU{f' ({reason})' if (reason := _why_unused()) else ''}")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise InputError(f"device {asked}: torch sees {count}, cuda:0 to cuda:{count - 1}")
    return asked


def torchrun_ranks() -> tuple[int, int, int]:
    """Rank, number of ranks and rank on this host, from the environment that torchrun sets; without it, one rank."""
    given = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": os.environ.get("RANK", "0")}
    try:
        rank, world_size, local_rank = (int(os.environ.get(name, default)) for name, default in given.items())
    except ValueError as error:
        raise InputError(f"{', '.join(given)} in the environment must be whole numbers: {error}") from error
    if not 0 <= rank < world_size:
        raise InputError(f"RANK = {rank} is not below WORLD_SIZE = {world_size}")
    return rank, world_size, local_rank


def _why_unused() -> str | None:
    """The reason why torch does not see the GPU; None if there is none or it is hidden on purpose."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not NVIDIA_DRIVER.is_file() or visible in ("", "-1"):
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; install a build with it"
    if visible is not None:
        return f"CUDA_VISIBLE_DEVICES is {visible}"
    return f"torch {torch.__version__} needs a driver for CUDA {torch.version.cuda}"


def device_name(device: str) -> str:
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU with {threads} thread{'s' if threads > 1 else ''}"


def multiplies_bf16() -> bool:
    """True if this CPU has bf16 instructions; emulated, bf16 is slower than fp32."""
    import torch

    def seconds(dtype: torch.dtype) -> float:
        matrix = torch.ones(512, 512, dtype=dtype)
        times = []
        for _ in range(5):
            started = time.perf_counter()
            matrix @ matrix
            times.append(time.perf_counter() - started)
        return min(times)

    return seconds(torch.bfloat16) < seconds(torch.float32)


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_threads(threads: int | None) -> None:
    """Set the number of CPU threads; by default all cores, unless OMP_NUM_THREADS is set."""
    import torch

    if threads is not None and threads < 1:
        raise InputError(f"threads must be at least 1, not {threads}")
    if threads is not None or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads or available_cores())


def tune_for_translation() -> None:
    """Set up the process for translation, before torch is loaded; values set by the user are kept.

    torch's CPU kernels cache data for every shape. Batches keep having new shapes, so a cache larger than the layers of
    the current batches is useless and grows by hundreds of MB. Each step allocates and frees tens of MB; by default the
    system maps, zeroes and unmaps them every time, which takes up to a fifth of the time in int8.
    """
    for name, value in TRANSLATION_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not any(name.startswith("MALLOC_") for name in os.environ):
        for option, limit in ALLOCATION_LIMITS.items():
            _call_allocator("mallopt", option, limit)


def return_memory() -> None:
    """Return to the system what the allocator has kept for reuse."""
    _call_allocator("malloc_trim", 0)


def _call_allocator(name: str, *arguments: int) -> None:
    """Call a function of glibc, where the C library has it."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*arguments)
