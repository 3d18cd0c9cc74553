"""The text format of Prometheus."""

import re

from deepnmt.serving.prometheus import SIZES, Metrics

LINE = re.compile(r'[a-z_]+(\{[a-z_]+="(\\.|[^"\\])*"(,[a-z_]+="(\\.|[^"\\])*")*\})? [0-9.e+-]+$')


def lines(metrics, name):
    return [line for line in metrics.text().splitlines() if name in line]


def test_a_counter_counts_for_each_set_of_labels():
    metrics = Metrics()
    metrics.add("deepnmt_requests_total", route="/a", status="200")
    for _ in range(2):
        metrics.add("deepnmt_requests_total", route="/a", status="404")
    assert lines(metrics, "deepnmt_requests_total") == [
        "# HELP deepnmt_requests_total Requests answered.",
        "# TYPE deepnmt_requests_total counter",
        'deepnmt_requests_total{route="/a",status="200"} 1',
        'deepnmt_requests_total{route="/a",status="404"} 2',
    ]


def test_the_buckets_of_a_histogram_are_cumulative_and_end_with_everything():
    metrics = Metrics()
    for value in (1, 2, 3, 700):
        metrics.observe("deepnmt_batch_sentences", value, model="m")
    counts = [1, 2, *[3] * (len(SIZES) - 2)]
    assert lines(metrics, "deepnmt_batch_sentences")[1:] == [
        "# TYPE deepnmt_batch_sentences histogram",
        *(
            f'deepnmt_batch_sentences_bucket{{model="m",le="{bound}"}} {count}'
            for bound, count in zip((*SIZES, "+Inf"), (*counts, 4), strict=True)
        ),
        'deepnmt_batch_sentences_sum{model="m"} 706',
        'deepnmt_batch_sentences_count{model="m"} 4',
    ]


def test_every_line_can_be_read_whatever_the_labels_are():
    metrics = Metrics()
    metrics.add("deepnmt_requests_total", route='a"b\\c\nd')
    metrics.observe("deepnmt_request_seconds", 0.2, route="/x")
    text = metrics.text([("deepnmt_queue_sentences", 3.0, {"model": "m"})])
    assert '# TYPE deepnmt_queue_sentences gauge\ndeepnmt_queue_sentences{model="m"} 3\n' in text
    assert all(line.startswith("# ") or LINE.match(line) for line in text.splitlines())
