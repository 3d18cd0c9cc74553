"""Scores for reading: folded to a terminal's width, signatures under the figures, or one line a figure for a pipe."""

from collections.abc import Sequence

from rich.text import Text

from deepnmt.evaluation.metrics import METRICS
from deepnmt.evaluation.scores import Score, Scores

Systems = Sequence[tuple[str, Scores]]

SIGNIFICANT = 0.05


def lines(systems: Systems) -> str:
    """Aligned columns, one figure a line, the signature last; columns without any entry are left out."""
    rows = [["score", "system", "value", "low", "high", "difference", "p", "signature"]]
    baseline = systems[0][1]
    for key in baseline:
        for name, scores in systems:
            rows.append(_row(name, scores[key], baseline[key]))
    kept = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in kept]
    numbers = {"value", "low", "high", "difference", "p"}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column[0] in numbers else cell.ljust(width)
            for cell, width, column in zip(row, widths, kept, strict=True)
        ).rstrip()
        for row in zip(*kept, strict=True)
    )


def folded(systems: Systems, width: int) -> str:
    return rich_table(systems, width).plain


def rich_table(systems: Systems, width: int) -> Text:
    """No line is wider than `width`, unless a name alone is."""
    if len(systems) == 1:
        return Text("\n").join(_alone(systems[0][1], width))
    return Text("\n\n").join(_compared(systems, key, width) for key in systems[0][1])


def _row(system: str, score: Score, baseline: Score) -> list[str]:
    compared = score.p_value is not None
    return [
        score.name,
        system,
        _number(score, score.value),
        "" if score.low is None else _number(score, score.low),
        "" if score.high is None else _number(score, score.high),
        _difference(score, baseline) if compared else "",
        f"{score.p_value:.4f}" if compared else "",
        score.signature,
    ]


def _alone(scores: Scores, width: int) -> list[Text]:
    name_width = max(len(score.name) for score in scores.values())
    heads = [
        (key, f"{score.name:<{name_width}}", f"{_number(score, score.value):>6}", _interval(score))
        for key, score in scores.items()
    ]
    about_starts = max(len("  ".join(head[1:])) for head in heads) + 2
    with_about = all(about_starts + len(_about(key)) <= width for key in scores)
    parts = []
    for key, name, value, interval in heads:
        line = Text.assemble((name, "bold"), "  ", (value, "bold cyan"), f"  {interval}" if interval else "")
        if with_about and _about(key):
            line.append(" " * (about_starts - len(line.plain)))
            line.append(_about(key), "italic")
        line.append("\n")
        parts.append(line.append_text(_signature(scores[key].signature, width)))
    return parts


def _compared(systems: Systems, key: str, width: int) -> Text:
    baseline = systems[0][1][key]
    block = Text(baseline.name, "bold")
    if _about(key):
        block.append(f"  ({_about(key)})", "italic not bold")
    block.append("\n").append_text(_signature(baseline.signature, width))
    longest = max(len(name) for name, _ in systems)
    for name, scores in systems:
        score = scores[key]
        block.append(f"\n  {name:<{longest}}  ")
        block.append(f"{_number(score, score.value):>6}", "bold cyan")
        block.append(f"  {_interval(score)}" if score.low is not None else "")
        block.append_text(_verdict(score, baseline, key) if score is not baseline else Text("  baseline"))
    return block


def _verdict(score: Score, baseline: Score, key: str) -> Text:
    difference = f"  {_difference(score, baseline)}"
    if score.p_value is None:
        return Text(difference)
    test = f"{difference}  p = {score.p_value:.4f}"
    if score.p_value >= SIGNIFICANT:
        return Text.assemble(test, "  not significant")
    lower_is_better = key in METRICS and METRICS[key].lower_is_better
    if (score.value < baseline.value) == lower_is_better:
        return Text.assemble(test, ("  better", "bold green"))
    return Text.assemble(test, ("  worse", "bold red"))


def _signature(signature: str, width: int, indent: str = "  ") -> Text:
    """Broken after a `|` if it does not fit."""
    folded_lines = [indent]
    for part in signature.replace("|", "|\n").split("\n"):
        if len(folded_lines[-1] + part) > width and folded_lines[-1].strip():
            folded_lines.append(indent * 2)
        folded_lines[-1] += part
    return Text("\n".join(folded_lines), "dim")


def _about(key: str) -> str:
    return METRICS[key].about if key in METRICS else ""


def _interval(score: Score) -> str:
    return (
        ""
        if score.low is None or score.high is None
        else f"[{_number(score, score.low)}, {_number(score, score.high)}]"
    )


def _difference(score: Score, baseline: Score) -> str:
    return f"{score.value - baseline.value:+.{score.decimals}f}"


def _number(score: Score, value: float) -> str:
    return f"{value:.{score.decimals}f}"
