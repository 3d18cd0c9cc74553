"""Sampling: the right frequencies, the rules kept, and a draw that belongs to its sentence."""

from functools import partial

import numpy as np
import pytest
import torch
from tables import EOS, Table

from deepnmt.decoding.config import TranslationConfig
from deepnmt.decoding.rules import Rules
from deepnmt.decoding.sampling import Paths, random_numbers
from deepnmt.decoding.search import search

drawn = partial(TranslationConfig, sampling=True)
COUNT = 6000
CHI_SQUARE_999 = {0: 1e-9, 1: 10.8, 2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5}  # exceeded once in a thousand


def sample(table, sentences, config, count=1, max_length=1, shrinking=(), **more):
    rules = Rules(max_lengths=torch.full((len(sentences),), max_length), eos=EOS, banned=(0, 1), **more)
    numbers = random_numbers([[7, s] for s in sentences], config.seed, count, rules.total + 1)
    state = table.start(list(sentences), count)
    return search(table.step, state, Paths(rules, config, numbers), *shrinking)


def expected_distribution(table, config):
    """The first symbol's distribution by the definition, one step at a time."""
    logits = table.logits(0, ()).astype(np.float64) / config.temperature
    logits[:EOS] = -np.inf
    order = np.argsort(-logits)
    own = table.logits(0, ()).astype(np.float64)
    improbable = np.exp(own) / np.exp(own).sum() < (config.epsilon or 0)
    improbable[order[0]] = False
    logits[improbable] = -np.inf
    if config.top_k:
        logits[order[config.top_k :]] = -np.inf
    probs = np.exp(logits - logits.max())
    probs /= probs.sum()
    mass = 0.0
    for symbol in order:
        if mass >= config.top_p:
            probs[symbol] = 0.0
        mass += probs[symbol]
    return probs / probs.sum()


@pytest.mark.parametrize(
    "config",
    [
        drawn(),
        drawn(temperature=0.5),
        drawn(temperature=2.0, seed=3),
        drawn(top_k=3),
        drawn(top_p=0.7),
        drawn(top_k=5, top_p=0.8, temperature=1.3),
        drawn(epsilon=0.1),
        drawn(epsilon=0.001),
        drawn(epsilon=0.9),
        drawn(epsilon=0.05, temperature=3.0),
        drawn(epsilon=0.05, top_k=5, top_p=0.8, temperature=1.3),
    ],
    ids=str,
)
def test_frequencies_are_those_of_the_distribution(config):
    table = Table(11, 5)
    (found,) = sample(table, [0], config, count=COUNT)
    first = [(hypothesis.symbols or [EOS])[0] for hypothesis in found]
    expected = expected_distribution(table, config)
    counts = np.bincount(first, minlength=table.vocab_size)
    assert (counts[expected == 0] == 0).all()
    possible = expected > 0
    statistic = ((counts - COUNT * expected)[possible] ** 2 / (COUNT * expected[possible])).sum()
    assert statistic < CHI_SQUARE_999[possible.sum() - 1]


def test_a_draw_belongs_to_its_sentence_whatever_the_company():
    table, config = Table(4, 30), drawn(seed=5)
    together = sample(table, range(8), config, count=3, max_length=12)
    for order in ([3], [7, 0], [6, 5, 4, 3, 2, 1, 0]):
        assert sample(table, order, config, count=3, max_length=12) == [together[i] for i in order]
    never = sample(table, range(8), config, count=3, max_length=12, shrinking=(3, 0.0))
    assert never == together
    assert sample(table, range(8), drawn(seed=6), count=3, max_length=12) != together


def test_samples_state_the_probability_of_the_model_not_of_the_tempered_one():
    table = Table(9, 6)
    for config in (drawn(temperature=3.0), drawn(top_k=2)):
        for hypothesis in sample(table, [0], config, count=20, max_length=5)[0]:
            assert hypothesis.log_prob == pytest.approx(table.log_prob(0, hypothesis.symbols), abs=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_no_symbol_under_epsilon_is_ever_drawn_unless_it_is_the_most_probable(temperature):
    table, epsilon, cut = Table(8, 40), 0.04, 0
    for sentence, found in enumerate(sample(table, range(6), drawn(epsilon=epsilon, temperature=temperature), 100, 6)):
        for hypothesis in found:
            for position, symbol in enumerate(hypothesis.symbols):
                logits = table.logits(sentence, tuple(hypothesis.symbols[:position])).astype(np.float64)
                probs = np.exp(logits) / np.exp(logits).sum()
                assert probs[symbol] >= epsilon - 1e-6 or symbol == EOS + logits[EOS:].argmax()
                cut += (probs < epsilon).sum()
    assert cut > 1000


def test_an_epsilon_of_zero_changes_nothing():
    table = Table(3, 30)
    for more in ({}, {"top_k": 4}, {"top_p": 0.5}, {"temperature": 2.0}):
        expected = sample(table, range(4), drawn(**more), count=5, max_length=8)
        assert sample(table, range(4), drawn(epsilon=0.0, **more), count=5, max_length=8) == expected
    assert sample(table, range(4), drawn(epsilon=1e-320), count=5, max_length=8)


def test_samples_keep_the_rules():
    table = Table(2, 4)
    more = {"min_length": 2, "no_repeat_ngram": 2, "prefix": torch.tensor([[4], [5]])}
    for sentence, hypotheses in enumerate(sample(table, [0, 1], drawn(), count=50, max_length=6, **more)):
        for hypothesis in hypotheses:
            assert 2 <= len(hypothesis.symbols) <= 6
            assert hypothesis.symbols[0] == 4 + sentence
            grams = list(zip(hypothesis.symbols, hypothesis.symbols[1:], strict=False))
            assert len(set(grams)) == len(grams)
