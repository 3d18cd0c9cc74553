"""Tables of scores: folded to the width of a terminal, with signatures below, or one line per score for a pipe."""

from collections.abc import Sequence

from rich.text import Text

from deepnmt.columns import aligned
from deepnmt.evaluation.metrics import METRICS
from deepnmt.evaluation.scores import Score, Scores

Systems = Sequence[tuple[str, Scores]]

SIGNIFICANT = 0.05


def lines(systems: Systems) -> str:
    """Aligned columns, one score per line, the signature last; empty columns are omitted."""
    rows = [["score", "system", "value", "low", "high", "difference", "p", "signature"]]
    baseline = systems[0][1]
    for key in baseline:
        for name, scores in systems:
            score = scores[key]
            tested = ["", ""]
            if score.p_value is not None:
                tested = [_difference(score, baseline[key]), f"{score.p_value:.4f}"]
            interval = [_number(score, score.low), _number(score, score.high)]
            rows.append([score.name, name, _number(score, score.value), *interval, *tested, score.signature])
    kept = [column for column in zip(*rows, strict=True) if any(column[1:])]
    first_number = [column[0] for column in kept].index("value")
    return aligned(list(zip(*kept, strict=True)), slice(first_number, -1))


def folded(systems: Systems, width: int) -> Text:
    """Lines are at most `width` wide, unless a name is wider."""
    if len(systems) == 1:
        return Text("\n").join(_alone(systems[0][1], width))
    return Text("\n\n").join(_compared(systems, key, width) for key in systems[0][1])


def _alone(scores: Scores, width: int) -> list[Text]:
    longest = max(len(score.name) for score in scores.values())
    heads = {}
    for key, score in scores.items():
        value, interval = f"{_number(score, score.value):>6}", _interval(score)
        heads[key] = Text.assemble((f"{score.name:<{longest}}", "bold"), "  ", (value, "bold cyan"), interval)
    about_starts = max(len(head.plain) for head in heads.values()) + 2
    if all(about_starts + len(_about(key)) <= width for key in scores):
        for key, head in heads.items():
            head.append(" " * (about_starts - len(head.plain)) + _about(key), "italic")
    for head in heads.values():
        head.rstrip()
    return [head.append("\n").append_text(_signature(scores[key].signature, width)) for key, head in heads.items()]


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
        block.append(_interval(score))
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
    is_better = (score.value < baseline.value) == lower_is_better
    return Text.assemble(test, ("  better", "bold green") if is_better else ("  worse", "bold red"))


def _signature(signature: str, width: int) -> Text:
    """Broken after a `|` if it does not fit."""
    folded_lines = ["  "]
    for part in signature.replace("|", "|\n").split("\n"):
        if len(folded_lines[-1] + part) > width and folded_lines[-1].strip():
            folded_lines.append("    ")
        folded_lines[-1] += part
    return Text("\n".join(folded_lines), "dim")


def _about(key: str) -> str:
    return METRICS[key].about if key in METRICS else ""


def _interval(score: Score) -> str:
    return "" if score.low is None else f"  [{_number(score, score.low)}, {_number(score, score.high)}]"


def _difference(score: Score, baseline: Score) -> str:
    return f"{score.value - baseline.value:+.{score.decimals}f}"


def _number(score: Score, value: float | None) -> str:
    return "" if value is None else f"{value:.{score.decimals}f}"
