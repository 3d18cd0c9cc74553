"""The paired bootstrap over seeds: with one seed it is the usual one; more seeds and clearer differences are surer."""

import random

import numpy as np
from pytest import approx, mark

from deepnmt.evaluation.metrics import Languages, build
from deepnmt.evaluation.paired_tests import bootstrap_p, resample, surviving
from deepnmt.evaluation.scores import compare, score

WORDS = [f"word{i}" for i in range(50)]
REFERENCES = [" ".join(random.Random(i).choices(WORDS, k=12)) for i in range(150)]


def translations(errors, seed):
    """The references with this share of other words."""
    chosen = random.Random(seed)
    return [" ".join("x" if chosen.random() < errors else w for w in line.split()) for line in REFERENCES]


def scores(seeds, test=0):
    bleu = build(["bleu"], Languages("en", "de"))["bleu"]
    found = [resample(bleu, lines, [REFERENCES], test, 1_000) for lines in seeds]
    return np.mean(found, axis=0)


def p_of(baseline, system):
    observed, *drawn = scores(system) - scores(baseline)
    return bootstrap_p(observed, np.array(drawn))


def test_with_one_seed_it_is_the_paired_bootstrap_of_sacrebleu():
    one, other = translations(0.20, 1), translations(0.18, 2)
    _, (_, theirs) = compare({"one": one, "other": other}, REFERENCES, metrics=["bleu"])
    assert 0.005 < theirs["bleu"].p_value < 0.6, "a difference that is neither certain nor nothing"
    assert p_of([one], [other]) == approx(theirs["bleu"].p_value, abs=0.05)


@mark.parametrize("name", ["bleu", "chrf", "compound_bleu"])
def test_the_score_is_that_of_sacrebleu(name):
    metric = build([name], Languages("en", "de"))[name]
    for lines in (translations(0.2, 1), translations(0.97, 1), ["x"] * len(REFERENCES)):
        first = resample(metric, lines, [REFERENCES], 0, samples=1)[0]
        assert first == approx(score(lines, REFERENCES, "en", "de", metrics=[name])[name].value, abs=1e-9)


def test_the_same_translations_do_not_differ():
    one = [translations(0.2, seed) for seed in (1, 2)]
    assert p_of(one, one) == 1.0


def test_seeds_that_agree_make_a_difference_surer():
    one, other = ([translations(errors, seed + 10 * errors) for seed in range(4)] for errors in (0.20, 0.18))
    assert p_of(one, other) < p_of(one[:1], other[:1])
    assert p_of(one, [translations(0.05, seed) for seed in range(4)]) < 0.002


def test_test_sets_of_one_length_are_resampled_apart():
    one = [translations(0.2, 1)]
    assert np.array_equal(scores(one), scores(one))
    first, second = scores(one), scores(one, test=1)
    assert first[0] == second[0] and abs(np.corrcoef(first[1:], second[1:])[0, 1]) < 0.2


def test_holm_bonferroni_keeps_what_holds_among_many_comparisons():
    assert surviving({"a": 0.04, "b": 0.001, "c": 0.02}) == {"a", "b", "c"}  # .05/3, .05/2, .05
    assert surviving({"a": 0.04, "b": 0.001, "c": 0.03}) == {"b"}  # c is above .05/2, so a does not count either
    assert surviving({}) == set()
