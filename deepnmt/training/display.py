"""Progress of a run on standard error: a live bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from deepnmt.training.curves import Sink

QUIET_SECONDS = 20.0


class Display(Sink):
    """On a terminal, training lines update a bar and all others are printed above it.

    Between two lines of the log, a slow run shows its steps.
    """

    def __init__(self, step: int, max_steps: int) -> None:
        self.max_steps, self.is_first = max_steps, True
        self._count_from(step)
        self.shown = self.started
        self.bar: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (BarColumn(bar_width=10), TextColumn("{task.description}"))
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.bar.add_task("starting", total=max_steps, completed=step)
            self.bar.start()

    def write(self, line: Mapping[str, Any]) -> None:
        left = self._left(line["step"])
        if self.bar is None:
            print(describe(line, self.max_steps, left), file=sys.stderr, flush=True)
        elif line["kind"] == "train":
            text = (
                f"{line['step']:,}/{self.max_steps:,} loss {line['loss']:.3f} ppl {line['ppl']:.2f} "
                f"lr {line['lr']:.1e} {line['tokens_per_second']:,.0f} tokens/s eta {'?' if left is None else left}"
            )
            self.bar.update(self.bar.task_ids[0], completed=line["step"], description=text)
        else:
            self.bar.console.print(describe(line, self.max_steps, left), highlight=False, markup=False)
        self.shown = time.monotonic()
        if self.is_first:  # compiling, which happens once, must not count in the estimate
            self.is_first = False
            self._count_from(line["step"])

    def tick(self, step: int) -> None:
        if time.monotonic() - self.shown < QUIET_SECONDS or (left := self._left(step)) is None:
            return
        self.shown = time.monotonic()
        seconds = (self.shown - self.started) / (step - self.first_step)
        text = f"{step:,}/{self.max_steps:,}  {seconds:.1f} s per step  eta {left}"
        if self.bar is None:
            print(f"step {text}", file=sys.stderr, flush=True)
        else:
            self.bar.update(self.bar.task_ids[0], completed=step, description=text)

    def rewind(self, step: int, lines: int) -> None:
        self._count_from(step)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _count_from(self, step: int) -> None:
        self.started, self.first_step = time.monotonic(), step

    def _left(self, step: int) -> timedelta | None:
        done = step - self.first_step
        if done <= 0:
            return None
        seconds = (time.monotonic() - self.started) / done * (self.max_steps - step)
        return timedelta(seconds=round(seconds))


def describe(line: Mapping[str, Any], max_steps: int, left: timedelta | None) -> str:
    """One line of the log as one line of text."""
    kind, where = line["kind"], f"step {line['step']:,}/{max_steps:,}"
    if kind == "train":
        memory = f"  {line['memory_gib']:.1f} GiB" if line.get("memory_gib") else ""
        gradient = "overflow" if line["grad_norm"] is None else f"{line['grad_norm']:.2f}"
        eta = f"  eta {left}" if left is not None else ""
        return (
            f"{where}  epoch {line['epoch']}  loss {line['loss']:.3f}  ppl {line['ppl']:.2f}  lr {line['lr']:.2e}  "
            f"gradient {gradient}  {line['tokens_per_second']:,.0f} tokens/s{memory}{eta}"
        )
    if kind == "validation":
        scores = "".join(f"  {name} {value:.2f}" for name, value in line.items() if name in ("bleu", "chrf"))
        by_direction = [f"{name[5:]} {value:.2f}" for name, value in line.items() if name.startswith("bleu/")]
        scores += f"  (bleu {', '.join(by_direction)})" if by_direction else ""
        best = "  (best so far)" if line["is_best"] else ""
        return f"{where}  validation: loss {line['loss']:.3f}  ppl {line['ppl']:.2f}{scores}{best}"
    return f"{where}  {kind}: {line.get('text', '')}"
