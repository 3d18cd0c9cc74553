"""The request of a call of `deepnmt reproduce`: pure data."""

from dataclasses import dataclass
from pathlib import Path

from deepnmt.settings import check_bounds


@dataclass(frozen=True, kw_only=True)
class Request:
    experiments: tuple[str, ...]
    settings: tuple[str, ...] = ()  # section.field=value, for all arms
    scale: str = "full"
    data: Path | None = None
    out: Path | None = None
    minutes: float | None = None  # of device time, for all runs together
    tokens: int | None = None  # for every run; by default the scale's
    stop_after: float | None = None  # minutes
    arms: tuple[str, ...] = ()  # labels or patterns; by default all
    seeds: int | None = None  # by default the scale's
    tests: tuple[tuple[str, ...], ...] = ()  # name, source, references
    parallel: int = 1  # runs at a time on one GPU
    device: str | None = None
    keep_checkpoints: bool = False
    no_scores: bool = False  # leave them, and the reports, to another call

    def __post_init__(self) -> None:
        check_bounds(self, "tokens seeds parallel", least=1)
        check_bounds(self, "minutes stop_after", above=0, below=float("inf"))

    def words(self) -> list[str]:
        """The command-line arguments of this request, without those for a single process."""
        words = [*self.experiments, *self.settings, "--scale", self.scale, "--data", str(self.data)]
        words += ["--out", str(self.out)] if self.out else []
        for name in ("minutes", "tokens", "stop_after", "seeds", "device"):
            value = getattr(self, name)
            if value is not None:
                words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
        words += ["--parallel", str(self.parallel)] if self.parallel > 1 else []
        words += ["--arms", *self.arms] if self.arms else []
        words += ["--keep-checkpoints"] if self.keep_checkpoints else []
        for test in self.tests:
            words += ["--test", *test]
        return words
