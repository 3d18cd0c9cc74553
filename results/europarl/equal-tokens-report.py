"""The report on equal-tokens/: sizes, curves, scores with signatures, and a paired bootstrap between the arms.

    python equal-tokens-report.py --text FOLDER [FOLDER ...] [--arms equal-tokens] [--against dlcl-30l]

An arm is a folder with log.jsonl, recipe.toml, command.txt and the translations newstest2014.de and test.de, as
equal-tokens.sh leaves them, speed.json of its generation, and weights.csv if its connections are learned; note.md
beside the arms is shown at the top. FOLDER holds the references, newstest2014.de.xz and test.de.xz; the scores need no
other data and no GPU. An arm without scores.json gets one, with every metric.
"""

import argparse
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from deepnmt import compare, score
from deepnmt.analysis.charts import Axes, Series, grid, line_chart
from deepnmt.analysis.learning_curves import Point, read_curves
from deepnmt.analysis.weights import ConnectionWeights, draw
from deepnmt.config import Recipe, load_recipe
from deepnmt.errors import InputError
from deepnmt.evaluation.scores import TESTS, Scores
from deepnmt.files import read_json, write_json
from deepnmt.reproduction.blocks import Block, bullets, chart, code, heading, paragraph, table, write_report
from deepnmt.reproduction.runs import count_parameters
from deepnmt.settings import to_table
from deepnmt.text import read_lines
from deepnmt.training.folder import flatten

TITLE = "Europarl at equal tokens: Base, Big and deep models"
TEST_SETS = {"newstest2014": "newstest2014", "test": "Europarl test"}
METRICS = ("bleu", "chrf")
SHOWN_ABOVE_BEST = 0.6  # nats: the curves leave out the steep beginning


@dataclass(frozen=True)
class Arm:
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def recipe(self) -> Recipe:
        return load_recipe(str(self.folder / "recipe.toml"))

    @cached_property
    def points(self) -> list[Point]:
        (points,) = read_curves([self.folder]).runs.values()
        return points

    @cached_property
    def generation(self) -> str:
        """Tokens per second, as `deepnmt bench generate --json` measured them."""
        path = self.folder / "speed.json"
        return f"{read_json(path)['speeds'][0]['tokens_per_second']:,.0f}" if path.is_file() else "not measured"

    def translations(self, test: str) -> list[str]:
        return read_lines(self.folder / f"{test}.de")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    home = Path(__file__).parent / "equal-tokens"
    parser.add_argument("--arms", type=Path, default=home, metavar="DIR", help="the folder of the arms")
    parser.add_argument("--text", type=Path, nargs="+", required=True, metavar="DIR", help="where the references are")
    parser.add_argument("--against", metavar="ARM", help="compare with this arm only, instead of all with each other")
    parser.add_argument("--samples", type=int, metavar="N", help="resamples of the bootstrap")
    arguments = parser.parse_args(words)
    arms = [Arm(path.parent) for path in sorted(arguments.arms.glob("*/log.jsonl"))]
    if not arms:
        raise InputError(f"{arguments.arms} has no folder with a log.jsonl")
    arms.sort(key=lambda arm: count_parameters(arm.recipe.model))
    if arguments.against not in (None, *(arm.name for arm in arms)):
        raise InputError(f"--against {arguments.against}: {arguments.arms} has no such arm")
    found = {
        test: compared(arms, test, reference(arguments.text, test), arguments.samples, arguments.against)
        for test in TEST_SETS
    }
    for arm in arms:
        if not (path := arm.folder / "scores.json").is_file():
            write_json(path, every_score(arm, arguments.text))
    write_report(arguments.arms, TITLE, list(report(arms, found)))


def reference(folders: Sequence[Path], test: str) -> list[str]:
    for folder in folders:
        if (path := folder / f"{test}.de.xz").is_file():
            return read_lines(path)
    raise InputError(f"--text: none of {', '.join(map(str, folders))} has {test}.de.xz")


def every_score(arm: Arm, folders: Sequence[Path]) -> dict[str, Any]:
    """For scores.json: what training took, and every metric with its signature."""
    last = arm.points[-1]
    found: dict[str, Any] = {
        "arm": arm.name,
        "command": read_lines(arm.folder / "command.txt")[0],
        "rate": arm.recipe.training.lr,
        "updates": last.step,
        "tokens_per_update": arm.recipe.training.tokens_per_update,
        "training_seconds": round(last.seconds),
        "target_tokens": last.tokens,
        "target_tokens_per_second": round(last.tokens / last.seconds),
        "validation_nll": last.nll,
    }
    for test in TEST_SETS:
        scores = score(arm.translations(test), reference(folders, test), source_lang="en", target_lang="de")
        found[test] = {name: {"value": round(one.value, 2), "signature": one.signature} for name, one in scores.items()}
    return found


Pairs = dict[tuple[str, str], Scores]


def compared(
    arms: Sequence[Arm], test: str, lines: list[str], samples: int | None, against: str | None = None
) -> tuple[dict[str, Scores], Pairs]:
    """The scores of each arm, and those of each later arm beside each earlier one; or of all beside one."""
    languages = {"source_lang": "en", "target_lang": "de"}
    ordered = sorted(arms, key=lambda arm: arm.name != against)
    systems = [(arm.name, arm.translations(test)) for arm in ordered]
    if len(systems) == 1:
        resamples = samples or TESTS["bootstrap"].samples
        (name, hypotheses) = systems[0]
        return {name: score(hypotheses, lines, **languages, metrics=METRICS, resamples=resamples)}, {}
    scores: dict[str, Scores] = {}
    pairs: Pairs = {}
    for number in range(1 if against else len(systems) - 1):
        (baseline, its), *others = compare(systems[number:], lines, **languages, metrics=METRICS, samples=samples)
        scores |= {baseline: its} | dict(others)
        pairs |= {(baseline, name): found for name, found in others}
    return scores, pairs


def report(arms: Sequence[Arm], found: dict[str, tuple[dict[str, Scores], Pairs]]) -> Iterator[Block]:
    last = {arm.name: arm.points[-1] for arm in arms}
    tokens = {point.tokens for point in last.values()}
    given = f"{tokens.pop():,} target tokens" if len(tokens) == 1 else "**not the same number of target tokens**"
    yield paragraph(
        f"Every arm was trained on {given} of Europarl (720,000 pairs), in batches of equal size, and translated with "
        "the mean of its last five checkpoints, beam 4. Validation is on newstest2013. Brackets are 95 % intervals "
        "by bootstrap resampling of the test set. A star marks p < 0.05, not corrected for the number of comparisons. "
        "Both are about the choice of test sentences, not about the seed, of which each arm has one. Generation is "
        "measured on the same GPU with 32 sentences of 32 subwords, beam 4, bf16, at a fixed length."
    )
    if (note := arms[0].folder.parent / "note.md").is_file():
        yield paragraph(note.read_text(encoding="utf-8").strip())
    yield heading("Arms")
    yield arms_table(arms, found)
    yield heading("Validation loss")
    yield curves(arms)
    for test, title in TEST_SETS.items():
        if found[test][1]:
            yield heading(f"Paired bootstrap on {title}")
            yield pairs_table(*found[test])
    for arm in arms:
        if (path := arm.folder / "weights.csv").is_file():
            yield heading(f"Learned weights of {arm.name}")
            weights = read_weights(path)
            titles = [*(one.title for one in weights), weights[0].profile_title(weights[0].default_column)]
            for number, (title, picture) in enumerate(zip(titles, draw(weights), strict=True), start=1):
                yield chart(f"weights-{arm.name}-{number}", picture, title)
    yield heading("Settings in which the arms differ")
    yield settings_table(arms)
    yield heading("How this was made")
    yield code("bash equal-tokens.sh ARM TEXT OUT\npython equal-tokens-report.py --text TEXT")
    scores = found["test"][0][arms[0].name]
    yield bullets([f"{name}: `{scores[name].signature}`" for name in METRICS])


def arms_table(arms: Sequence[Arm], found: dict[str, tuple[dict[str, Scores], Pairs]]) -> Block:
    head = ["arm", "parameters", "updates", "target tokens", "seconds", "tokens/s", "generated tokens/s"]
    head += ["validation nll"]
    head += [f"{title} {metric}" for title in TEST_SETS.values() for metric in ("BLEU", "chrF")]
    rows = []
    for arm in arms:
        last = arm.points[-1]
        row = [arm.name, f"{count_parameters(arm.recipe.model) / 1e6:.1f}M", f"{last.step:,}", f"{last.tokens:,}"]
        row += [f"{last.seconds:,.0f}", f"{last.tokens / last.seconds:,.0f}", arm.generation, f"{last.nll:.3f}"]
        for test in TEST_SETS:
            of_arm = [found[test][0][arm.name][metric] for metric in METRICS]
            row += [f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]" for one in of_arm]
        rows.append(row)
    return table(head, rows)


def pairs_table(scores: dict[str, Scores], pairs: Pairs) -> Block:
    """The difference of one arm from another, and the p-value of the hypothesis that there is none."""
    rows = []
    for (first, second), found in pairs.items():
        row = [f"{second} against {first}"]
        for metric in METRICS:
            p = found[metric].p_value
            assert p is not None
            row += [
                f"{found[metric].value - scores[first][metric].value:+.2f}",
                f"{p:.4f}" + (" *" if p < 0.05 else ""),
            ]
        rows.append(row)
    return table(["arms", "BLEU", "p", "chrF", "p"], rows)


def curves(arms: Sequence[Arm]) -> Block:
    """Over updates, tokens and seconds, side by side in one picture."""
    most = min(point.nll for arm in arms for point in arm.points) + SHOWN_ABOVE_BEST
    shown = {arm.name: [point for point in arm.points if point.nll <= most] for arm in arms}
    charts = [
        (
            [
                Series(name, [(getattr(point, x) / unit, point.nll) for point in points])
                for name, points in shown.items()
            ],
            Axes(f"Validation loss over {title}", title, "nats per subword"),
        )
        for x, title, unit in (
            ("step", "updates", 1),
            ("tokens", "million target tokens", 1e6),
            ("seconds", "seconds", 1),
        )
    ]
    about = f"Validation loss (newstest2013) over updates, target tokens and seconds, from {most:.2f} nats down"
    return chart("curves", grid([line_chart(*one) for one in charts], len(charts)), about)


def read_weights(path: Path) -> list[ConnectionWeights]:
    """What `deepnmt inspect weights --out weights.csv` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    found = []
    for stack, kind in dict.fromkeys((cell["stack"], cell["kind"]) for cell in cells):
        own = [cell for cell in cells if cell["stack"] == stack]
        rows, columns = (tuple(dict.fromkeys(cell[name] for cell in own)) for name in ("row", "column"))
        weights = {(cell["row"], cell["column"]): float(cell["weight"]) for cell in own}
        matrix = [[weights.get((row, column), 0.0) for column in columns] for row in rows]
        found.append(ConnectionWeights(stack, kind, matrix, rows, columns))
    return found


def settings_table(arms: Sequence[Arm]) -> Block:
    """Those that every arm has: the options of one kind of connection alone are left out."""
    tables = [flatten(to_table(arm.recipe)) for arm in arms]
    shared = [name for name in tables[0] if all(name in settings for settings in tables)]
    differing = [name for name in shared if any(settings[name] != tables[0][name] for settings in tables)]
    rows = [[name, *(str(settings[name]) for settings in tables)] for name in differing]
    return table(["setting", *(arm.name for arm in arms)], rows)


if __name__ == "__main__":
    main()
