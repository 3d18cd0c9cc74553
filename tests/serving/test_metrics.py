"""The text format of Prometheus."""

import re

from deepnmt.serving.metrics import Gauge, Histogram, Metric, Metrics

LINE = re.compile(r'[a-z_]+(\{[a-z_]+="(\\.|[^"\\])*"(,[a-z_]+="(\\.|[^"\\])*")*\})? [0-9.e+-]+$')


def test_a_counter_counts_for_each_set_of_labels():
    metric = Metric("requests_total", "Requests.")
    metric.add(route="/a", status="200")
    metric.add(2, route="/a", status="404")
    assert metric.value(route="/a") == 3
    assert metric.lines() == [
        "# HELP requests_total Requests.",
        "# TYPE requests_total counter",
        'requests_total{route="/a",status="200"} 1',
        'requests_total{route="/a",status="404"} 2',
    ]


def test_the_buckets_of_a_histogram_are_cumulative_and_end_with_everything():
    histogram = Histogram("seconds", "Time.", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7):
        histogram.observe(value)
    assert histogram.lines()[2:] == [
        'seconds_bucket{le="0.1"} 2',
        'seconds_bucket{le="1.0"} 3',
        'seconds_bucket{le="+Inf"} 4',
        "seconds_sum 7.65",
        "seconds_count 4",
    ]


def test_every_line_can_be_read_whatever_the_labels_are():
    metrics = Metrics()
    metrics.requests.add(route='a"b\\c\nd')
    metrics.latency.observe(0.2, route="/x")
    metrics.gauges = [Gauge("depth", "Depth.", lambda: {(("model", "m"),): 3.0})]
    lines = metrics.text().splitlines()
    assert 'depth{model="m"} 3' in lines
    assert all(line.startswith("# ") or LINE.match(line) for line in lines)
