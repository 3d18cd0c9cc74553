"""The results of the demo: scores, examples, and a page with the curves and the learned weights."""

from html import escape
from pathlib import Path

from deepnmt.analysis.charts import Axes, Series, heat_map, line_chart, page
from deepnmt.analysis.weights import learned_weights
from deepnmt.demo.course import Demo
from deepnmt.files import write_text
from deepnmt.languages import language_name
from deepnmt.model.storage import load_model
from deepnmt.text import read_lines
from deepnmt.training.curves import read_log


def examples(demo: Demo, count: int) -> list[tuple[str, ...]]:
    """Source, translation and reference of test sentences of medium length, evenly spaced."""
    files = demo.corpus / "test.en", demo.run / f"test.{demo.target}", demo.corpus / f"test.{demo.target}"
    lines = zip(*map(read_lines, files), strict=True)
    chosen = [line for line in lines if 5 <= len(line[0].split()) <= 14]
    return chosen[:: max(1, len(chosen) // count)][:count]


def show(demo: Demo, count: int) -> None:
    print(f"\nTest set: {demo.num_lines:,} sentences, from components not in the training data")
    for score in demo.scores.values():
        low, high = score.get("low"), score.get("high")
        spread = "" if low is None else f" ({low:.1f} to {high:.1f} with 95 % confidence)"
        print(f"  {score['name']} {score['value']:.1f}{spread}   {score['signature']}")
    if demo.baseline:
        print(f"  {demo.baseline}")
    for source, hypothesis, reference in examples(demo, count):
        print(f"\n  {source}\n  > {hypothesis}\n  = {reference}")


def write_report(demo: Demo, count: int) -> Path:
    scores = "".join(
        f"<tr><td>{escape(score['name'])}<td class=n>{score['value']:.2f}<td><code>{escape(score['signature'])}</code>"
        for score in demo.scores.values()
    )
    beside = ""
    if demo.baseline:
        beside = f"<p>{escape(str(demo.baseline))}; <code>{escape(demo.baseline.signature)}</code>.</p>"
    cell = "<td style='white-space:normal'>"  # sentences may wrap
    rows = "".join(f"<tr>{cell}{cell.join(map(escape, sentences))}" for sentences in examples(demo, count))
    sections = [
        f"<p>Trained here. Model: <code>{escape(str(demo.model))}</code></p>",
        f"<h2>Scores</h2><p>{demo.num_lines:,} test sentences from components that are not in the training data.</p>"
        f"<table><tr><th>score<th class=n>value<th>signature{scores}</table>{beside}",
        f"<h2>Examples</h2><table><tr><th>source<th>translation<th>reference{rows}</table>",
        f"<h2>Curves</h2>{_curves(demo.run)}",
        *_weights(demo.model),
    ]
    report = demo.folder / "report.html"
    write_text(report, page(f"deepnmt demo: English to {language_name(demo.target)}", sections))
    return report


def _weights(model: Path) -> list[str]:
    """A section about learned weights between layers, if any."""
    maps = [
        heat_map(weights.matrix, weights.rows, weights.columns, weights.title)
        for weights in learned_weights(load_model(model))
    ]
    about = (
        "<h2>Learned layer weights</h2><p>A row shows the weights of the earlier outputs in the input of the next "
        "layer; small weights are blank, as in figure 6 of the paper.</p>"
    )
    return [about + "".join(maps)] if maps else []


def _curves(run: Path) -> str:
    training, validation = (
        [(line["step"], line["ppl"]) for line in read_log(run, kind)] for kind in ("train", "validation")
    )
    bleu = [(line["step"], line["bleu"]) for line in read_log(run, "validation") if "bleu" in line]
    axes = Axes("perplexity", "update", "perplexity", log_y=True)
    chart = line_chart([Series("training", training), Series("validation", validation)], axes)
    if bleu:
        chart += line_chart([Series("validation", bleu)], Axes("BLEU", "update", "BLEU"))
    return chart
