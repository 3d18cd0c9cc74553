"""Progress of long commands on standard error: a bar on a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PLAIN_EVERY_SECONDS = 10.0


def say(text: str) -> None:
    """Print a message of the program."""
    print(f"deepnmt: {text}", file=sys.stderr, flush=True)


class Progress:
    """Counts finished units; `advance` is cheap enough to call per batch. `note` is shown after the count."""

    def __init__(self, title: str, total: int | None, unit: str) -> None:
        self.title, self.total, self.unit = title, total, unit
        self.done, self.note = 0, ""
        self.started = time.monotonic()
        self.due = self.started + PLAIN_EVERY_SECONDS
        self.bar: Callable[[str, int], None] | None = None  # shows a text and the count; without it lines are printed

    def advance(self, amount: int = 1, note: str | None = None) -> None:
        self.done += amount
        self.note = self.note if note is None else note
        if self.bar is not None:
            self.bar(self.line().partition(": ")[2], self.done)
        elif time.monotonic() >= self.due:
            self.due = time.monotonic() + PLAIN_EVERY_SECONDS
            print(self.line(), file=sys.stderr, flush=True)

    @property
    def rate(self) -> float:
        return self.done / max(time.monotonic() - self.started, 1e-9)

    def line(self) -> str:
        total = f"/{self.total:,}" if self.total else ""
        note = f"  {self.note}" if self.note else ""
        one, rate = self.unit.removesuffix("s"), f"{self.rate:,.0f}"
        speed = f"{rate} {one if rate == '1' else self.unit}/s"
        if self.done and rate == "0":
            speed = f"{1 / self.rate:,.0f} s per {one}"
        unit = one if (self.total or self.done) == 1 else self.unit
        return f"{self.title}: {self.done:,}{total} {unit} ({speed}){note}"


@contextmanager
def progress(title: str, total: int | None = None, unit: str = "lines") -> Iterator[Progress]:
    """Show the progress of a block; a final line with the rate is always printed."""
    shown = Progress(title, total, unit)
    if not sys.stderr.isatty():
        yield shown
        print(shown.line(), file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    name, line = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[line]}"))
    console = Console(stderr=True)
    with Bar(name, BarColumn(), line, TimeRemainingColumn(compact=True), console=console, transient=True) as bar:
        task = bar.add_task(title, total=total, line="")
        shown.bar = lambda text, done: bar.update(task, completed=done, line=text)
        yield shown
    console.print(shown.line(), highlight=False, markup=False)
