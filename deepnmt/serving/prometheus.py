"""The server's metrics, in the text format of Prometheus."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
METRICS = {
    "deepnmt_requests_total": "Requests answered.",
    "deepnmt_errors_total": "Requests answered with an error.",
    "deepnmt_request_seconds": "From request to the end of the answer.",
    "deepnmt_batch_sentences": "Sentences translated at once.",
    "deepnmt_batch_seconds": "Time of a batch in the model.",
    "deepnmt_sentences_total": "Sentences translated, without those from the cache.",
    "deepnmt_cached_sentences_total": "Sentences answered from the cache.",
    "deepnmt_source_characters_total": "Characters translated.",
    "deepnmt_target_tokens_total": "Subwords of the best translations.",
    "deepnmt_queue_sentences": "Sentences waiting for a batch.",
    "deepnmt_model_failing": "1 while a model fails on every batch.",
    "deepnmt_cache_bytes": "Size of the cached translations.",
    "deepnmt_requests_at_work": "Requests being translated.",
    "deepnmt_characters_at_work": "Their characters.",
}
HISTOGRAMS = {
    "deepnmt_request_seconds": SECONDS,
    "deepnmt_batch_sentences": SIZES,
    "deepnmt_batch_seconds": SECONDS,
}
Labels = tuple[tuple[str, str], ...]
Gauges = Iterable[tuple[str, float, Mapping[str, str]]]  # name, value, labels


class Metrics:
    """The counters and histograms that `/metrics` shows, which any thread may change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # For each set of labels the sum and, in a histogram, the number of values in each bucket.
        self._values: dict[str, dict[Labels, list[float]]] = {name: {} for name in METRICS}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        with self._lock:
            self._values[name].setdefault(tuple(labels.items()), [0])[0] += amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Count a value in its histogram."""
        bounds = HISTOGRAMS[name]
        with self._lock:
            values = self._values[name].setdefault(tuple(labels.items()), [0] * (len(bounds) + 2))
            values[0] += value
            values[1 + bisect_left(bounds, value)] += 1

    def text(self, gauges: Gauges = ()) -> str:
        with self._lock:
            shown = {name: {key: list(values) for key, values in kept.items()} for name, kept in self._values.items()}
        for name, value, own in gauges:
            shown[name][tuple(own.items())] = [value]
        lines = []
        for name, series in shown.items():
            kind = "counter" if name.endswith("_total") else "histogram" if name in HISTOGRAMS else "gauge"
            lines += [f"# HELP {name} {METRICS[name]}", f"# TYPE {name} {kind}"]
            for labels, (total, *counts) in series.items():
                if name not in HISTOGRAMS:
                    lines.append(_line(name, labels, total))
                    continue
                running = list(accumulate(counts))  # a bucket counts the values up to its bound
                for bound, count in zip((*HISTOGRAMS[name], "+Inf"), running, strict=True):
                    lines.append(_line(f"{name}_bucket", (*labels, ("le", str(bound))), count))
                lines += [_line(f"{name}_sum", labels, total), _line(f"{name}_count", labels, running[-1])]
        return "\n".join(lines) + "\n"


def _line(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{inside}}} {value:.10g}" if inside else f"{name} {value:.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
