"""What a long command shows while it works: a bar on a terminal, plain lines in a log, always on standard error."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

PLAIN_EVERY_SECONDS = 10.0


def say(text: str) -> None:
    """A line of the program itself."""
    print(f"deepnmt: {text}", file=sys.stderr, flush=True)


class Progress:
    """Counts done units; `advance` is cheap enough to call per batch. `note` is shown beside the count."""

    def __init__(self, title: str, total: int | None, unit: str) -> None:
        self.title, self.total, self.unit = title, total, unit
        self.done = 0
        self.note = ""
        self.started = time.monotonic()

    def advance(self, amount: int = 1, note: str | None = None) -> None:
        self.done += amount
        if note is not None:
            self.note = note

    @property
    def rate(self) -> float:
        return self.done / max(time.monotonic() - self.started, 1e-9)

    def line(self) -> str:
        total = f"/{self.total:,}" if self.total else ""
        note = f"  {self.note}" if self.note else ""
        count, rate = self.total or self.done, f"{self.rate:,.0f}"
        unit, rate_unit = (self.unit.removesuffix("s") if one else self.unit for one in (count == 1, rate == "1"))
        return f"{self.title}: {self.done:,}{total} {unit} ({rate} {rate_unit}/s){note}"


class _PlainProgress(Progress):
    def __init__(self, title: str, total: int | None, unit: str) -> None:
        super().__init__(title, total, unit)
        self._next = self.started + PLAIN_EVERY_SECONDS

    def advance(self, amount: int = 1, note: str | None = None) -> None:
        super().advance(amount, note)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_EVERY_SECONDS
            print(self.line(), file=sys.stderr, flush=True)


@contextmanager
def progress(title: str, total: int | None = None, unit: str = "lines") -> Iterator[Progress]:
    """Show the progress of a block; the closing line with the rate is always printed."""
    if not sys.stderr.isatty():
        plain = _PlainProgress(title, total, unit)
        yield plain
        print(plain.line(), file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[line]}", markup=False),
        TimeRemainingColumn(compact=True),
    )
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total, line="")

        class _BarProgress(Progress):
            def advance(self, amount: int = 1, note: str | None = None) -> None:
                super().advance(amount, note)
                bar.update(task, advance=amount, line=self.line().partition(": ")[2])

        shown = _BarProgress(title, total, unit)
        yield shown
    console.print(shown.line(), highlight=False, markup=False)
