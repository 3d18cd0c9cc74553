"""What the demo shows at its end: scores, examples, and a page with the curves and what the layers listen to."""

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from deepnmt.files import replacing
from deepnmt.languages import language_name

BASELINES = Path(__file__).parent


def baseline_file(device: str) -> Path:
    return BASELINES / f"demo_baseline_{device}.json"


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What a 6-layer post-norm Transformer reached in the demo's time; measured once, and stored with how and where."""

    target: str
    device: str
    bleu: float
    chrf: float
    signatures: dict[str, str]
    recipe: str
    command: str
    machine: str
    steps: int
    seconds: float

    @classmethod
    def stored(cls, target: str, device: str) -> "Baseline | None":
        """None where it has not been measured: for another language, or on another kind of machine."""
        if not baseline_file(device).is_file():
            return None
        found = cls(**json.loads(baseline_file(device).read_text(encoding="utf-8")))
        return found if found.target == target else None

    def __str__(self) -> str:
        figures = f"BLEU {self.bleu:.1f}, chrF2 {self.chrf:.1f}"
        return f"6-layer post-norm Transformer in the same time: {figures} (measured on {self.machine})"


@dataclass(frozen=True, kw_only=True)
class Demo:
    target: str
    folder: Path
    corpus: Path
    run: Path
    model: Path
    baseline: "Baseline | None" = None

    @property
    def hypotheses(self) -> Path:
        return self.run / f"test.{self.target}"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def triples(self, count: int) -> list[tuple[str, str, str]]:
        """Source, translation and reference of some test sentences, evenly spread over those of middling length."""
        files = self.corpus / "test.en", self.hypotheses, self.corpus / f"test.{self.target}"
        lines = list(zip(*(path.read_text(encoding="utf-8").split("\n") for path in files), strict=True))
        chosen = [line for line in lines if 5 <= len(line[0].split()) <= 14]
        return chosen[:: max(1, len(chosen) // count)][:count]


def show(demo: Demo, result: dict[str, Any], count: int) -> None:
    print(f"\nTest set: {result['num_lines']:,} sentences of components the model has never seen")
    for score in result["scores"].values():
        low, high = score.get("low"), score.get("high")
        spread = "" if low is None else f" ({low:.1f} to {high:.1f} with 95 % confidence)"
        print(f"  {score['name']} {score['value']:.1f}{spread}   {score['signature']}")
    if demo.baseline:
        print(f"  {demo.baseline}")
    for source, hypothesis, reference in demo.triples(count):
        print(f"\n  {source}\n  > {hypothesis}\n  = {reference}")
    print(f"\nCurves, examples and the layers' weights: {demo.report}")


def write_report(demo: Demo, result: dict[str, Any], count: int) -> None:
    from deepnmt.analysis.charts import page

    scores = "".join(
        f"<tr><td>{escape(score['name'])}<td class=n>{score['value']:.2f}<td><code>{escape(score['signature'])}</code>"
        for score in result["scores"].values()
    )
    cell = "<td style='white-space:normal'>"  # sentences, unlike figures, may break
    examples = "".join(f"<tr>{cell}{cell.join(map(escape, sentences))}" for sentences in demo.triples(count))
    sections = [
        f"<p>Trained here. Model: <code>{escape(str(demo.model))}</code></p>",
        f"<h2>Scores</h2><p>{result['num_lines']:,} test sentences of components that training never saw.</p>"
        f"<table><tr><th>score<th class=n>value<th>signature{scores}</table>{_beside(demo.baseline)}",
        f"<h2>Examples</h2><table><tr><th>source<th>translation<th>reference{examples}</table>",
        f"<h2>Curves</h2>{_curves(demo.run)}",
        *_weights(demo.model),
    ]
    with replacing(demo.report) as aside:
        aside.write_text(page(f"deepnmt demo: English to {language_name(demo.target)}", sections), encoding="utf-8")


def _beside(baseline: Baseline | None) -> str:
    if baseline is None:
        return ""
    signatures = ", ".join(f"<code>{escape(signature)}</code>" for signature in baseline.signatures.values())
    return (
        f"<p>{escape(str(baseline))}; recipe <code>{escape(baseline.recipe)}</code>, {baseline.steps:,} steps in "
        f"{baseline.seconds:.0f} s by <code>{escape(baseline.command)}</code>; {signatures}.</p>"
    )


def _weights(model: Path) -> list[str]:
    """A section, if the model has learned connection weights."""
    from deepnmt.analysis.weights import draw, learned_weights
    from deepnmt.model.storage import load_model

    maps = draw(learned_weights(load_model(model)))
    about = (
        "<h2>How much each layer weights the earlier ones</h2><p>A row shows how much each earlier output counts in "
        "what follows that layer; small weights are blank, as in figure 6 of the paper.</p>"
    )
    return [about + "".join(maps)] if maps else []


def _curves(run: Path) -> str:
    from deepnmt.analysis.charts import Axes, Series, line_chart
    from deepnmt.training.curves import read_log

    lines = read_log(run)
    training = [(line["step"], line["ppl"]) for line in lines if line["kind"] == "train"]
    validation = [(line["step"], line["ppl"]) for line in lines if line["kind"] == "validation"]
    bleu = [(line["step"], line["bleu"]) for line in lines if line["kind"] == "validation" and "bleu" in line]
    axes = Axes(title="perplexity", x_label="step", y_label="perplexity", log_y=True)
    chart = line_chart([Series("training", training), Series("validation", validation)], axes)
    if bleu:
        chart += line_chart([Series("validation", bleu)], Axes(title="BLEU", x_label="step", y_label="BLEU"))
    return chart
