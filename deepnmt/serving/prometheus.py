"""What the server counts and measures, in the text format of Prometheus."""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping

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
Gauges = Iterable[tuple[str, float, Mapping[str, str]]]  # name, value, labels


class Metrics:
    """Everything `/metrics` shows. Counters and histograms may be changed by any thread; gauges are read when shown."""

    def __init__(self) -> None:
        self.gauges: Callable[[], Gauges] = tuple
        self._lock = threading.Lock()
        self._series: dict[str, dict[str, float]] = {name: {} for name in METRICS}  # as written, by metric

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        with self._lock:
            self._add(name, "", amount, labels)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Count a value in its histogram. Buckets are cumulative: each counts the values up to its bound."""
        bounds = HISTOGRAMS[name]
        place = bisect_left(bounds, value)
        with self._lock:
            for i, bound in enumerate((*bounds, "+Inf")):
                self._add(name, "_bucket", i >= place, {**labels, "le": str(bound)})
            self._add(name, "_sum", value, labels)
            self._add(name, "_count", 1, labels)

    def _add(self, name: str, suffix: str, amount: float, labels: Mapping[str, str]) -> None:
        series, key = self._series[name], _series(name + suffix, labels)
        series[key] = series.get(key, 0) + amount

    def text(self) -> str:
        with self._lock:
            shown = {name: dict(series) for name, series in self._series.items()}
        for name, value, labels in self.gauges():
            shown[name][_series(name, labels)] = value
        lines = []
        for name, series in shown.items():
            kind = "counter" if name.endswith("_total") else "histogram" if name in HISTOGRAMS else "gauge"
            lines += [f"# HELP {name} {METRICS[name]}", f"# TYPE {name} {kind}"]
            lines += [f"{key} {value:.10g}" for key, value in series.items()]
        return "\n".join(lines) + "\n"


def _series(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{inside}}}" if inside else name


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
