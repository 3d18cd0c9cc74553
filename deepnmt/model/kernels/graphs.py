"""The one recorder of CUDA graphs: the launches of some work, recorded once and replayed without the host."""

from collections.abc import Callable

import torch

Work = Callable[[], None]


def record_graph(work: Work, stream: torch.cuda.Stream | None = None, *, warm_ups: int = 2, spare: float = 0.0) -> Work:
    """The replay of this work, which has run `warm_ups` times before (compilation, libraries' work spaces).

    `spare` is the share of the work's memory that must be free beyond it: a recording cannot release cached blocks, so
    it needs more than a plain run. Where that is known not to suffice, out of memory is raised before recording.
    """
    current, side = torch.cuda.current_stream(), stream or torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(warm_ups - 1):
            held = torch.cuda.memory_allocated()
            if spare:
                torch.cuda.reset_peak_memory_stats()
            work()
        reserve = torch.empty(0, dtype=torch.uint8, device="cuda")
        if spare:
            reserve = reserve.new_empty(int(spare * (torch.cuda.max_memory_allocated() - held)))
        if warm_ups:
            work()
        del reserve
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    if spare:
        torch.cuda.reset_peak_memory_stats()
    # Only calls of this thread are watched for what must not be recorded: a loader's thread may pin memory meanwhile.
    # The outer context restores the stream also where a recording that failed cannot be ended.
    with (
        torch.cuda.stream(current),
        torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
    ):
        work()
    return graph.replay
