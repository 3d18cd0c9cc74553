"""The tables: nothing is lost or wider than it may be."""

import pytest

from deepnmt.evaluation.metrics import METRICS
from deepnmt.evaluation.scores import Score, Scores, compare, score
from deepnmt.evaluation.table import folded, lines

OUT = ["Die Katze saß auf der Matte.", "Er kam, sah und siegte nicht."]
REFERENCE = ["Die Katze sitzt auf der Matte.", "Er kam, sah und siegte."]


def unfolded(table: str) -> str:
    return table.replace("|\n    ", "|")


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("resamples", [0, 20])
def test_every_figure_and_whole_signature_is_there_and_no_line_too_wide(width: int, resamples: int) -> None:
    scores = score(OUT, REFERENCE, "en", "de", metrics=list(METRICS), resamples=resamples)
    table = scores.table(width)
    assert max(map(len, table.split("\n"))) <= width
    for figure in scores.values():
        assert f"\n  {figure.signature}\n" in unfolded(table) + "\n"
        assert f"{figure.name} " in table
        assert f"{figure.value:.2f}" in table


@pytest.mark.parametrize("resamples", [0, 20])
def test_at_80_columns_every_default_figure_says_which_it_is(resamples: int) -> None:
    scores = score(OUT, REFERENCE, "en", "de", resamples=resamples)
    table = scores.table(80)
    assert all(METRICS[name].about in table for name in scores)


def test_in_a_pipe_a_figure_is_one_line_that_ends_in_its_signature() -> None:
    scores = score(OUT, REFERENCE, "en", "de")
    header, *rows = str(scores).split("\n")
    assert header.split() == ["score", "value", "signature"]
    for row, figure in zip(rows, scores.values(), strict=True):
        assert row.startswith(figure.name)
        assert row.split()[-2:] == [f"{figure.value:.2f}", figure.signature]
    assert len({row.index(figure.signature) for row, figure in zip(rows, scores.values(), strict=True)}) == 1


def test_compared_systems_stand_under_each_score_with_a_verdict() -> None:
    systems = compare([("base", OUT), ("perfect", REFERENCE)], REFERENCE, "en", "de", metrics=["chrf"], samples=20)
    for width in (80, 120):
        title, signature, base, perfect = unfolded(folded(systems, width).plain).split("\n")
        assert title == "chrF2  (character n-grams)"
        assert signature.strip() == systems[0][1].chrf.signature
        assert base.startswith("  base ")
        assert base.endswith("baseline")
        assert "100.00" in perfect
    assert [row.split()[:2] for row in lines(systems).split("\n")] == [
        ["score", "system"],
        ["chrF2", "base"],
        ["chrF2", "perfect"],
    ]


@pytest.mark.parametrize(
    ("key", "value", "p_value", "verdict"),
    [
        ("bleu", 31.0, 0.01, "+1.00  p = 0.0100  better"),
        ("bleu", 29.0, 0.01, "-1.00  p = 0.0100  worse"),
        ("bleu", 31.0, 0.05, "+1.00  p = 0.0500  not significant"),
        ("ter", 31.0, 0.01, "+1.00  p = 0.0100  worse"),
        ("ter", 29.0, 0.01, "-1.00  p = 0.0100  better"),
        ("bleu", 31.0, None, "+1.00"),
    ],
)
def test_the_verdict_knows_which_way_is_better(key: str, value: float, p_value: float | None, verdict: str) -> None:
    def scores(value: float, p_value: float | None) -> Scores:
        return Scores({key: Score(name=key, value=value, signature="x", p_value=p_value)}, 1)

    table = folded([("base", scores(30.0, None)), ("other", scores(value, p_value))], 80).plain
    assert table.split("\n")[-1].endswith(f"  {verdict}")
