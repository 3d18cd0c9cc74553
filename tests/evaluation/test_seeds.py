"""The paired bootstrap over seeds: with one seed it is the usual one; more seeds and clearer differences are surer."""

import random

from pytest import approx

from deepnmt.evaluation.metrics import Languages
from deepnmt.evaluation.scores import compare
from deepnmt.evaluation.seeds import SeedScores, seeds_p_value

WORDS = [f"word{i}" for i in range(50)]
REFERENCES = [" ".join(random.Random(i).choices(WORDS, k=12)) for i in range(150)]


def translations(errors, seed):
    """The references with this share of other words."""
    chosen = random.Random(seed)
    return [" ".join("x" if chosen.random() < errors else w for w in line.split()) for line in REFERENCES]


def p_value(baseline, system):
    scores = [SeedScores(seeds, [REFERENCES], Languages("en", "de"), "bleu") for seeds in (baseline, system)]
    return seeds_p_value([(scores[0], scores[1])])


def test_with_one_seed_it_is_the_paired_bootstrap_of_sacrebleu():
    one, other = translations(0.20, 1), translations(0.18, 2)
    _, (_, theirs) = compare({"one": one, "other": other}, REFERENCES, metrics=["bleu"])
    assert 0.005 < theirs["bleu"].p_value < 0.6, "a difference that is neither certain nor nothing"
    assert p_value([one], [other]) == approx(theirs["bleu"].p_value, abs=0.05)


def test_the_same_translations_do_not_differ():
    one = [translations(0.2, seed) for seed in (1, 2)]
    assert p_value(one, one) == 1.0


def test_seeds_that_agree_make_a_difference_surer():
    one, other = ([translations(errors, seed + 10 * errors) for seed in range(4)] for errors in (0.20, 0.18))
    assert p_value(one, other) < p_value(one[:1], other[:1])
    assert p_value(one, [translations(0.05, seed) for seed in range(4)]) < 0.002
