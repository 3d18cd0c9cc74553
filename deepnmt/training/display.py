"""Progress of a run on standard error: a live bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from deepnmt.training.curves import Sink


class Display(Sink):
    """Prints the lines of the log. `open_display` picks the live version on a terminal."""

    def __init__(self, step: int, max_steps: int) -> None:
        self.max_steps, self.is_first = max_steps, True
        self._count_from(step)

    def write(self, line: Mapping[str, Any]) -> None:
        self.show(line, self._left(line["step"]))
        if self.is_first:  # compiling, which happens once, must not count in the estimate
            self.is_first = False
            self._count_from(line["step"])

    def rewind(self, step: int, lines: int | None) -> None:
        self._count_from(step)

    def show(self, line: Mapping[str, Any], left: timedelta | None) -> None:
        print(describe(line, self.max_steps, left), file=sys.stderr, flush=True)

    def _count_from(self, step: int) -> None:
        self.started, self.first_step = time.monotonic(), step

    def _left(self, step: int) -> timedelta | None:
        done = step - self.first_step
        if done <= 0:
            return None
        seconds = (time.monotonic() - self.started) / done * (self.max_steps - step)
        return timedelta(seconds=round(seconds))


class LiveDisplay(Display):
    """Training lines update a bar; all others are printed above it."""

    def __init__(self, step: int, max_steps: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(step, max_steps)
        columns = (BarColumn(bar_width=10), TextColumn("{task.description}"))
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task("starting", total=max_steps, completed=step)
        self.bar.start()

    def show(self, line: Mapping[str, Any], left: timedelta | None) -> None:
        if line["kind"] == "train":
            text = (
                f"{line['step']:,}/{self.max_steps:,} loss {line['loss']:.3f} ppl {line['ppl']:.2f} "
                f"lr {line['lr']:.1e} {line['tokens_per_second']:,.0f} tokens/s eta {'?' if left is None else left}"
            )
            self.bar.update(self.task, completed=line["step"], description=text)
        else:
            self.bar.console.print(describe(line, self.max_steps, left), highlight=False, markup=False)

    def close(self) -> None:
        self.bar.stop()


def open_display(step: int, max_steps: int) -> Display:
    return LiveDisplay(step, max_steps) if sys.stderr.isatty() else Display(step, max_steps)


def describe(line: Mapping[str, Any], max_steps: int, left: timedelta | None) -> str:
    """One line of the log as one line of text."""
    kind, where = line["kind"], f"step {line['step']:,}/{max_steps:,}"
    if kind == "train":
        memory = f"  {line['memory_gib']:.1f} GiB" if line.get("memory_gib") else ""
        eta = f"  eta {left}" if left is not None else ""
        return (
            f"{where}  epoch {line['epoch']}  loss {line['loss']:.3f}  ppl {line['ppl']:.2f}  lr {line['lr']:.2e}  "
            f"gradient {line['grad_norm']:.2f}  {line['tokens_per_second']:,.0f} tokens/s{memory}{eta}"
        )
    if kind == "validation":
        scores = "".join(f"  {name} {value:.2f}" for name, value in line.items() if name in ("bleu", "chrf"))
        best = "  (best so far)" if line["is_best"] else ""
        return f"{where}  validation: loss {line['loss']:.3f}  ppl {line['ppl']:.2f}{scores}{best}"
    return f"{where}  {kind}: {line.get('text', '')}"
