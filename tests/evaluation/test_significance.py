"""Paired tests: sacreBLEU's own p-values, except that a system does not differ from itself."""

import random

import pytest
from sacrebleu import significance as theirs
from sacrebleu.metrics.bleu import BLEU

from deepnmt.errors import InputError
from deepnmt.evaluation.scores import TESTS, compare

WORDS = ["der", "die", "das", "Haus", "Hund", "Mann", "Frau", "läuft", "sieht", "grün-blau", "heute", "nicht", ",", "."]


def corpus(damage: float, seed: int, size: int = 60) -> list[str]:
    """The same reference text whatever the arguments, with a share of the words replaced."""
    text, harm = random.Random(0), random.Random(seed)
    lines = [[text.choice(WORDS) for _ in range(12)] for _ in range(size)]
    return [" ".join(harm.choice(WORDS) if harm.random() < damage else word for word in line) for line in lines]


REFERENCE, GOOD, BAD = corpus(0, 1), corpus(0.1, 2), corpus(0.4, 3)


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("metric", ["bleu", "compound_bleu", "chrf", "ter"])
def test_a_system_does_not_differ_from_itself_and_a_much_better_one_does(test: str, metric: str) -> None:
    systems = [("bad", BAD), ("the same", list(BAD)), ("good", GOOD)]
    (_, base), (_, same), (_, good) = compare(systems, REFERENCE, "en", "de", metrics=[metric], test=test, samples=200)
    assert base[metric].p_value is None
    assert same[metric].p_value == 1.0
    assert good[metric].p_value is not None
    assert good[metric].p_value < 0.01


@pytest.mark.parametrize("test", TESTS)
def test_two_equally_good_systems_are_not_told_apart(test: str) -> None:
    (_, _), (_, other) = compare(
        {"one": corpus(0.2, 4), "other": corpus(0.2, 5)}, REFERENCE, metrics=["bleu"], test=test, samples=200
    )
    assert other.bleu.p_value is not None
    assert other.bleu.p_value > 0.05


@pytest.mark.parametrize("test", TESTS)
def test_p_values_intervals_and_signatures_are_sacrebleus(test: str) -> None:
    systems = [("a", corpus(0.2, 4)), ("b", corpus(0.23, 5))]
    ours = compare(systems, REFERENCE, metrics=["bleu"], test=test, samples=300)
    code, confidence = {"bootstrap": ("bs", -1), "randomization": ("ar", 1000)}[test]
    signatures, results = theirs.PairedTest(systems, {"BLEU": BLEU(force=True)}, [REFERENCE], code, 300, confidence)()
    for (_, scores), result in zip(ours, results["BLEU"], strict=True):
        assert scores.bleu.value == result.score
        assert scores.bleu.p_value == result.p_value
        assert scores.bleu.signature == f"BLEU|{signatures['BLEU']}"
        close = 1e-5 if test == "bootstrap" else 0.5  # with "ar" theirs has other resamples
        assert scores.bleu.low == pytest.approx(result.mean - result.ci, abs=close)
        assert scores.bleu.high == pytest.approx(result.mean + result.ci, abs=close)


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter"])
def test_systems_that_differ_in_few_sentences_are_not_told_apart_by_exchanging_these(metric: str) -> None:
    """The smallest p-value of an exact test is 2 / 2^n if n sentences differ."""
    for differing, least in ((1, 1.0), (2, 0.5), (3, 0.25)):
        other = [*GOOD[:-differing], *(line.replace(" ", " x ", 2) for line in GOOD[-differing:])]
        _, (_, found) = compare({"a": GOOD, "b": other}, REFERENCE, metrics=[metric], test="randomization", samples=999)
        assert found[metric].p_value == pytest.approx(least, abs=0.06)


def test_a_bootstrap_of_few_lines_is_said_to_mislead() -> None:
    for size, said in ((29, True), (30, False)):
        _, (_, found) = compare([("a", GOOD[:size]), ("b", BAD[:size])], REFERENCE[:size], metrics=["bleu"], samples=9)
        assert any("use the randomization test" in notice for notice in found.notices) is said


def test_kinds_of_bleu_that_share_a_name_in_sacrebleu_stay_apart() -> None:
    (_, first), _ = compare(
        [("a", [line.upper() for line in GOOD]), ("b", GOOD)],
        REFERENCE,
        "en",
        "de",
        metrics=["bleu", "bleu_lower", "multi_bleu"],
        samples=20,
    )
    assert first.bleu.value < 20 < first.bleu_lower.value
    assert len({figure.signature for figure in first.values()}) == 3


def test_refusals() -> None:
    with pytest.raises(InputError, match="two hypotheses or more"):
        compare([("a", GOOD)], REFERENCE)
    with pytest.raises(InputError, match="unknown test 'sign'; choose from bootstrap, randomization"):
        compare([("a", GOOD), ("b", BAD)], REFERENCE, test="sign")
    with pytest.raises(InputError, match="b has 59 lines and reference 1 has 60"):
        compare([("a", GOOD), ("b", BAD[1:])], REFERENCE)
