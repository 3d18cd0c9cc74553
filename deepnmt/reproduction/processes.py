"""Executes runs in this process, or in one or several processes per GPU. A process claims a run by locking its folder.

A lock ends with its process, so a killed worker leaves nothing to clean up, and several calls can work on one study
concurrently.
"""

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import torch

from deepnmt.errors import InputError, RunError
from deepnmt.progress import progress, say
from deepnmt.reproduction.runs import PlannedRun
from deepnmt.reproduction.steps import Setup, do_run, next_step, share_compiled_layers
from deepnmt.reproduction.study import Study
from deepnmt.training.lock import hold_lock

POLL_SECONDS = 1.0


def work(runs: Sequence[PlannedRun], setup: Setup, stop_after: float | None = None) -> None:
    """Do every run that is not done and not claimed by another process; start none after `stop_after` minutes.

    An error in one run does not cost the others: it is reported at the end.
    """
    if setup.device == "cuda":
        share_compiled_layers()
    started = time.monotonic()
    failed: list[str] = []
    elsewhere = 0
    for number, run in enumerate(runs, start=1):
        if stop_after is not None and time.monotonic() - started > 60 * stop_after:
            say(f"stopping after {stop_after:g} minutes; repeat the command to resume")
            break
        folder = setup.study.runs / run.name
        with _claim(folder) as mine:
            elsewhere += not mine
            if mine and next_step(run, setup.study):
                say(f"run {number} of {len(runs)}: {run.name} ({run.purpose})")
                try:
                    do_run(run, setup)
                except KeyboardInterrupt as error:
                    raise KeyboardInterrupt("interrupted; repeat the command to resume") from error
                except Exception as error:
                    expected = isinstance(error, InputError | RunError)
                    if not expected:
                        traceback.print_exc()
                    failed.append(f"{run.name}: {error if expected else f'{type(error).__name__}: {error}'}")
                    if setup.device == "cuda" and _is_lost():
                        break
    if elsewhere:
        say(f"left to other processes: {elsewhere} of {len(runs)} runs; repeat the command to report them")
    if failed:
        raise RunError(f"{len(failed)} of {len(runs)} runs ended with an error: {'; '.join(failed)}")


def _is_lost() -> bool:
    """After some errors a process can compute nothing more on its GPU; under MPS the error may be another's."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


@contextmanager
def _claim(folder: Path) -> Iterator[bool]:
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(hold_lock(folder))
        except InputError:
            yield False
        else:
            yield True


def start_workers(
    arguments: Sequence[str], gpus: Sequence[str], parallel: int, runs: Sequence[PlannedRun], study: Study
) -> None:
    """Start `parallel` processes per GPU, which execute runs until none is left, and show the progress.

    `arguments` are those of this call; the workers' flag is added.
    """
    workers: list[tuple[Path, subprocess.Popen[bytes]]] = []
    for number in range(len(gpus) * parallel):
        log = study.folder / "workers" / f"worker-{number + 1}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]}
        command = [sys.executable, "-m", "deepnmt", "reproduce", *arguments, "--worker"]
        with log.open("ab") as output:
            workers.append((log, subprocess.Popen(command, stdout=output, stderr=output, env=environment)))
    try:
        with _stopped_by_sigterm():
            _wait([worker for _, worker in workers], runs, study)
    except BaseException:
        for _, worker in workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
        for _, worker in workers:
            worker.wait()
        raise
    for log, worker in workers:
        if worker.returncode:
            last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"])[-1]
            raise RunError(
                f"a worker ended with status {worker.returncode}: {last.removeprefix('deepnmt: ')} (see {log})"
            )


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """On SIGTERM, end this process only after its workers have saved their checkpoints."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait(workers: Sequence["subprocess.Popen[bytes]"], runs: Sequence[PlannedRun], study: Study) -> None:
    with progress("runs", total=len(runs), unit="runs") as shown:
        working = True
        while working:
            working = any(worker.poll() is None for worker in workers)
            shown.advance(sum(not next_step(run, study) for run in runs) - shown.done)
            time.sleep(POLL_SECONDS if working else 0)
