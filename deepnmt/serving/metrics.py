"""Counters and histograms in the text format of Prometheus."""

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence

Labels = tuple[tuple[str, str], ...]
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metric:
    """One name with a value for each set of labels. Any thread may add to it."""

    kind = "counter"

    def __init__(self, name: str, about: str) -> None:
        self.name, self.about = name, about
        self._lock = threading.Lock()
        self._values: dict[Labels, float] = {}

    def add(self, amount: float = 1, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount

    def value(self, **labels: str) -> float:
        """The sum over every set of labels that contains these."""
        with self._lock:
            return sum(value for key, value in self._values.items() if set(labels.items()) <= set(key))

    def lines(self) -> list[str]:
        with self._lock:
            values = sorted(self._values.items())
        return [*self._head(), *(_line(self.name, key, value) for key, value in values)]

    def _head(self) -> list[str]:
        return [f"# HELP {self.name} {self.about}", f"# TYPE {self.name} {self.kind}"]


class Gauge(Metric):
    """Its values are computed when it is read."""

    kind = "gauge"

    def __init__(self, name: str, about: str, read: Callable[[], dict[Labels, float]]) -> None:
        super().__init__(name, about)
        self._read = read

    def lines(self) -> list[str]:
        return [*self._head(), *(_line(self.name, key, value) for key, value in sorted(self._read().items()))]


class Histogram(Metric):
    kind = "histogram"

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        super().__init__(name, about)
        self.bounds = tuple(bounds)
        self._counts: dict[Labels, list[int]] = {}

    def observe(self, value: float, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self._lock:
            counts = self._counts.setdefault(key, [0] * (len(self.bounds) + 1))
            counts[bisect_left(self.bounds, value)] += 1
            self._values[key] = self._values.get(key, 0) + value

    def lines(self) -> list[str]:
        with self._lock:
            series = [(key, list(counts), self._values[key]) for key, counts in sorted(self._counts.items())]
        lines = self._head()
        for key, counts, total in series:
            running = 0
            for bound, count in zip([*map(str, self.bounds), "+Inf"], counts, strict=True):
                running += count
                lines.append(_line(f"{self.name}_bucket", (*key, ("le", bound)), running))
            lines += [_line(f"{self.name}_sum", key, total), _line(f"{self.name}_count", key, running)]
        return lines


class Metrics:
    """Everything `/metrics` shows."""

    def __init__(self) -> None:
        self.requests = Metric("deepnmt_requests_total", "Requests answered.")
        self.errors = Metric("deepnmt_errors_total", "Requests answered with an error.")
        self.latency = Histogram("deepnmt_request_seconds", "From request to the end of the answer.", SECONDS)
        self.batch_size = Histogram("deepnmt_batch_sentences", "Sentences translated at once.", SIZES)
        self.batch_time = Histogram("deepnmt_batch_seconds", "Time of a batch in the model.", SECONDS)
        self.sentences = Metric("deepnmt_sentences_total", "Sentences translated, without those from the cache.")
        self.cached = Metric("deepnmt_cached_sentences_total", "Sentences answered from the cache.")
        self.characters = Metric("deepnmt_source_characters_total", "Characters translated.")
        self.tokens = Metric("deepnmt_target_tokens_total", "Subwords of the best translations.")
        self.gauges: list[Gauge] = []

    def text(self) -> str:
        counted = [value for value in vars(self).values() if isinstance(value, Metric)]
        return "\n".join(line for metric in [*counted, *self.gauges] for line in metric.lines()) + "\n"


def _line(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{inside}}} {value:.10g}" if inside else f"{name} {value:.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
