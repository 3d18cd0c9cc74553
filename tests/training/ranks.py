"""Run a function in several processes that are the ranks of one world, and collect what each returns."""

import os
import socket
import time
import traceback
import warnings
from multiprocessing.connection import wait

from processes import CONTEXT, SECONDS


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(size, function, *arguments):
    port = free_port()
    pipes, processes = [], []
    for rank in range(size):
        receiving, sending = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_main, args=(sending, rank, size, port, function, arguments), daemon=True)
        process.start()
        sending.close()
        pipes.append(receiving)
        processes.append(process)
    try:
        results = _receive_all(pipes)
        for process in processes:
            process.join(SECONDS)
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            process.kill()
            process.join()
            process.close()
            pipe.close()
    failures = [text for kind, text in results if kind == "failed"]
    if failures:
        raise AssertionError("\n".join(failures))
    return [value for _, value in results]


def _receive_all(pipes):
    """What the ranks send. After the first failure no other is awaited: the others may wait for the one that failed."""
    results, deadline = {}, time.monotonic() + SECONDS
    while len(results) < len(pipes) and all(kind == "done" for kind, _ in results.values()):
        waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in results}
        ready = wait(list(waiting), max(deadline - time.monotonic(), 0))
        if not ready:
            raise AssertionError(f"ranks that hang: {sorted(waiting.values())}")
        for pipe in ready:
            rank = waiting[pipe]
            try:
                results[rank] = pipe.recv()
            except EOFError:
                results[rank] = "failed", f"rank {rank} died"
    return [results[rank] for rank in sorted(results)]


def _main(pipe, rank, size, port, function, arguments):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    warnings.simplefilter("error", UserWarning)
    try:
        pipe.send(("done", function(*arguments)))
    except BaseException:
        pipe.send(("failed", f"rank {rank}: {traceback.format_exc()}"))
