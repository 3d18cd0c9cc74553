"""The laws of beam search, over tables of probabilities where everything can be enumerated."""

import math
import random
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import EOS, Table

from deepnmt.decoding.config import SearchConfig, TranslationConfig
from deepnmt.decoding.rules import Rules, prefix_table
from deepnmt.decoding.sampling import Paths
from deepnmt.decoding.search import PENALTIES, Beams, EnsembleState, Found, ensemble_step, search

BANNED = (0, 1)
seeds = st.integers(0, 10**6)
penalties = st.fixed_dictionaries(
    {
        "length_penalty": st.sampled_from([-1.0, -0.3, 0.0, 0.4, 0.6, 1.0, 2.0]),
        "penalty_form": st.sampled_from([*PENALTIES]),
    }
)


def rules(max_lengths: list[int], **more) -> Rules:
    return Rules(max_lengths=torch.tensor(max_lengths), eos=EOS, banned=BANNED, **more)


def run(table, max_lengths, config, sentences=None, shrinking=(), **more) -> list[list[Found]]:
    sentences = list(range(len(max_lengths))) if sentences is None else sentences
    state = table.start(sentences, config.beam)
    return search(table.step, state, Beams(rules(max_lengths, **more), config), *shrinking)


def greedy(table, max_lengths, **more) -> list[list[Found]]:
    state = table.start(list(range(len(max_lengths))), 1)
    return search(table.step, state, Paths(rules(max_lengths, **more)))


def score(log_prob: float, length: int, config: SearchConfig) -> float:
    return log_prob / PENALTIES[config.penalty_form](length + 1, config.length_penalty)


def rank(table, sentence: int, symbols: list[int], config: SearchConfig) -> float:
    return score(table.log_prob(sentence, symbols), len(symbols), config)


@pytest.mark.parametrize("form", PENALTIES)
@settings(deadline=None, max_examples=40)
@given(
    seed=seeds, alpha=st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.5]), words=st.integers(1, 3), max_length=st.integers(0, 3)
)
def test_a_beam_as_wide_as_the_candidates_finds_what_enumeration_finds(form, seed, alpha, words, max_length):
    table = Table(seed, words)
    everything = table.sequences(max_length)
    nbest = min(3, len(everything))
    config = SearchConfig(beam=len(everything), nbest=nbest, length_penalty=alpha, penalty_form=form)
    (found,) = run(table, [max_length], config)
    expected = sorted((rank(table, 0, s, config) for s in everything), reverse=True)[:nbest]
    assert [hypothesis.score for hypothesis in found] == pytest.approx(expected, abs=1e-5)
    best = max(everything, key=lambda s: rank(table, 0, s, config))
    assert rank(table, 0, found[0].symbols, config) == pytest.approx(rank(table, 0, best, config), abs=1e-5)


def repeats(symbols: tuple[int, ...], size: int) -> bool:
    """Does the last n-gram occur before?"""
    grams = [symbols[i : i + size] for i in range(len(symbols) - size + 1)]
    return bool(size and grams) and grams[-1] in grams[:-1]


def plain_search(tables, sentence, config, longest, prefix, min_length=0, no_repeat_ngram=0, free=0):
    """The same search as a loop over lists, which never stops early: the n best as (score, symbols)."""
    longest = max(longest, min_length, len(prefix))
    live, ended = [((), 0.0)], []
    for position in range(longest + 1):
        extended, ends = [], []
        for symbols, log_prob in live:
            rows = [table.logits(sentence, symbols).astype(np.float64) for table in tables]
            log_probs = np.log(np.mean([np.exp(row) / np.exp(row).sum() for row in rows], axis=0))
            if position < len(prefix):
                gain = 0.0 if position < free else log_probs[prefix[position]]
                extended.append(((*symbols, prefix[position]), log_prob + gain))
                continue
            if position >= min_length:
                ends.append((symbols, log_prob + log_probs[EOS]))
            for symbol in range(EOS + 1, len(log_probs)):
                if position < longest and not repeats((*symbols, symbol), no_repeat_ngram):
                    extended.append(((*symbols, symbol), log_prob + log_probs[symbol]))
        live = sorted(extended, key=lambda item: -item[1])[: config.beam]
        candidates = sorted((item[1] for item in live + ends), reverse=True)[: config.beam]
        ended += [item for item in ends if len(candidates) < config.beam or item[1] >= candidates[-1]]
        if not live or len(ended) >= config.patience * config.beam:
            break
    ranked = sorted(((score(p, len(s), config), list(s)) for s, p in ended), key=lambda item: -item[0])
    return ranked[: config.nbest]


@pytest.mark.parametrize("seed", range(10))
def test_the_search_is_the_plain_one_whatever_the_settings(seed):
    draw = random.Random(seed)
    for _ in range(25):
        check_search(draw)


def check_search(draw):
    """Beams, penalties, n best, patience, early stopping, lengths, prefixes, repetition, ensembles, shrinking."""
    words, beam, count = draw.randint(1, 4), draw.choice([1, 2, 3, 4, 7]), draw.choice([1, 2, 4])
    tables = [Table(draw.randrange(10**6), words, draw.choice([0.5, 1.5, 3.0, 6.0])) for _ in range(draw.randint(1, 3))]
    config = SearchConfig(
        beam=beam,
        nbest=draw.randint(1, beam),
        length_penalty=draw.choice([-1.0, -0.3, 0.0, 0.6, 1.0, 2.0]),
        penalty_form=draw.choice([*PENALTIES]),
        patience=draw.choice([0.5, 1.0, 2.0, math.inf]),
        stop_early=draw.random() < 0.7,
    )
    free = draw.choice([0, 0, 1])
    prefixes = [[draw.randint(3, 2 + words) for _ in range(draw.choice([free, 1, 2, 4]))] for _ in range(count)]
    longest = [draw.randint(0, 6) for _ in range(count)]
    limits = {"min_length": draw.choice([0, 0, 1, 3]), "no_repeat_ngram": draw.choice([0, 0, 1, 2]), "free": free}
    expected = [
        plain_search(tables, sentence, config, longest[sentence], prefixes[sentence], **limits)
        for sentence in range(count)
    ]
    step, shrinking = tables[0].step, (draw.choice([1, 2, 4]), draw.choice([0.0, 0.8, 1.0]))
    if len(tables) > 1:
        step = partial(ensemble_step, [table.step for table in tables])
    for kind in [Beams, Paths] if beam == 1 and config.patience <= 1 else [Beams]:
        states = [table.start(list(range(count)), beam) for table in tables]
        growing = kind(rules(longest, prefix=prefix_table(prefixes), **limits), config)
        found = search(step, states[0] if len(states) == 1 else EnsembleState(states), growing, *shrinking)
        assert [[h.symbols for h in each] for each in found] == [[symbols for _, symbols in each] for each in expected]
        for each, others in zip(found, expected, strict=True):
            scores = [value for value, _ in others]
            assert [h.score for h in each] == pytest.approx(scores, abs=1e-4, rel=1e-5)
            assert [score(h.log_prob, len(h.symbols), config) for h in each] == pytest.approx(
                scores, abs=1e-4, rel=1e-5
            )


@settings(deadline=None, max_examples=150)
@given(
    seed=seeds,
    penalty=penalties,
    beam=st.integers(1, 4),
    max_length=st.integers(1, 8),
    patience=st.sampled_from([1.0, 2.0, math.inf]),
    data=st.data(),
)
def test_stopping_early_returns_what_searching_on_returns(seed, penalty, beam, max_length, patience, data):
    nbest = data.draw(st.integers(1, beam))
    table = Table(seed, 4, scale=3.0)
    kinds = [
        SearchConfig(beam=beam, nbest=nbest, patience=patience, stop_early=early, **penalty) for early in (True, False)
    ]
    early, on = (run(table, [max_length, max_length], config) for config in kinds)
    assert early == on


def test_stopping_early_saves_steps_whatever_the_sign_of_alpha():
    for alpha in (-0.5, 0.0, 0.6):
        cost = {}
        for early in (True, False):
            table = Table(3, 4, scale=4.0)
            run(table, [30] * 20, SearchConfig(beam=2, length_penalty=alpha, patience=math.inf, stop_early=early))
            cost[early] = table.rows_computed
        assert cost[True] < 0.6 * cost[False], (alpha, cost)


@settings(deadline=None, max_examples=50)
@given(seed=seeds, order=st.permutations(range(6)), every=st.integers(1, 4), below=st.sampled_from([0.0, 0.5, 0.99]))
def test_company_order_and_shrinking_change_nothing(seed, order, every, below):
    table, config = Table(seed, 4, scale=2.5), SearchConfig(beam=3, nbest=3)
    lengths = [0, 2, 7, 4, 7, 1]
    alone = [run(table, [lengths[i]], config, sentences=[i])[0] for i in range(6)]
    together = run(table, [lengths[i] for i in order], config, sentences=list(order), shrinking=(every, below))
    assert together == [alone[i] for i in order]


def test_finished_sentences_leave_the_batch():
    rows = {}
    for below in (0.0, 0.9):
        table, config = Table(1, 4), SearchConfig(beam=2, stop_early=False, patience=math.inf)
        run(table, [1, 1, 1, 20], config, shrinking=(1, below))
        rows[below] = table.rows_computed
    assert rows[0.0] == 21 * 8
    assert rows[0.9] == 2 * 8 + 19 * 2


def test_where_the_rules_leave_nothing_there_is_no_hypothesis():
    # Two words, none twice, yet four symbols at least.
    assert run(Table(1, 2), [6], SearchConfig(beam=2), no_repeat_ngram=1, min_length=4) == [[]]
    assert greedy(Table(1, 2), [6], no_repeat_ngram=1, min_length=4) == [[]]


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"beam": 0}, "beam = 0 must be at least 1"),
        ({"beam": 2, "nbest": 3}, r"nbest must be between 1 and the beam \(2\), not 3"),
        ({"patience": 0.0}, "patience = 0.0 must be above 0"),
        ({"length_penalty": math.nan}, "length_penalty = nan must be above -10 and below 10"),
        ({"length_penalty": 500.0}, "length_penalty = 500.0 must be above -10 and below 10"),
        ({"max_length_ratio": math.inf}, "max_length_ratio = inf must be at least 0 and finite"),
        ({"max_source_length": 0}, "max_source_length = 0 must be at least 2"),
        ({"min_length": 9, "max_length": 4}, "min_length = 9 is more than max_length = 4"),
        ({"sampling": True, "temperature": 0.0}, "temperature = 0.0 must be at least 1e-06 and finite"),
        ({"sampling": True, "temperature": math.inf}, "temperature = inf must be at least 1e-06 and finite"),
        ({"sampling": True, "top_k": -1}, "top_k = -1 must be at least 0"),
        ({"sampling": True, "top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ({"sampling": True, "top_p": 1.5}, "top_p must be above 0 and at most 1"),
        ({"top_p": 0.5}, "top_p = 0.5 has no effect without sampling"),
        ({"temperature": 2.0}, "temperature = 2.0 has no effect without sampling"),
    ],
    ids=str,
)
def test_senseless_settings_are_refused(settings_, message):
    with pytest.raises(ValueError, match=message):
        TranslationConfig(**settings_)
