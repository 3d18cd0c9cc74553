"""The laws of beam search, over tables of probabilities where everything can be enumerated."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import EOS, Table

from deepnmt.decoding.config import SearchConfig
from deepnmt.decoding.penalties import PENALTIES
from deepnmt.decoding.rules import Rules, prefix_table
from deepnmt.decoding.sampling import Paths
from deepnmt.decoding.search import Beams, Found, search

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


def rank(table, sentence: int, symbols: list[int], config: SearchConfig) -> float:
    penalty = PENALTIES[config.penalty_form](len(symbols) + 1, config.length_penalty)
    return table.log_prob(sentence, symbols) / penalty


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


@settings(deadline=None, max_examples=60)
@given(
    seed=seeds,
    penalty=penalties,
    beam=st.integers(1, 5),
    max_length=st.integers(0, 7),
    patience=st.sampled_from([0.5, 1.0, 2.0, math.inf]),
)
def test_no_beam_misstates_a_score_and_the_n_best_are_sorted_and_unique(seed, penalty, beam, max_length, patience):
    table = Table(seed, 4)
    config = SearchConfig(beam=beam, nbest=beam, patience=patience, **penalty)
    for sentence, found in enumerate(run(table, [max_length, max(0, max_length - 2)], config)):
        assert found
        for hypothesis in found:
            assert hypothesis.log_prob == pytest.approx(table.log_prob(sentence, hypothesis.symbols), abs=1e-4)
            assert hypothesis.score == pytest.approx(rank(table, sentence, hypothesis.symbols, config), abs=1e-4)
        scores = [hypothesis.score for hypothesis in found]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(hypothesis.symbols) for hypothesis in found}) == len(found)


@settings(deadline=None, max_examples=80)
@given(seed=seeds, max_length=st.integers(0, 8), alpha=st.sampled_from([-0.5, 0.0, 0.6, 3.0]))
def test_beam_one_is_greedy(seed, max_length, alpha):
    table = Table(seed, 5)
    lengths = [max_length, 3, max_length + 1]
    beams = run(table, lengths, SearchConfig(beam=1, length_penalty=alpha))
    assert [found[0].symbols for found in beams] == [found[0].symbols for found in greedy(table, lengths)]
    assert [f[0].log_prob for f in beams] == pytest.approx([f[0].log_prob for f in greedy(table, lengths)], abs=1e-4)


def test_greedy_takes_the_most_probable_symbol_every_time():
    table = Table(5, 6)
    symbols = greedy(table, [6])[0][0].symbols
    for position in range(len(symbols)):
        logits = table.logits(0, tuple(symbols[:position]))[EOS:]
        assert logits.argmax() + EOS == symbols[position]


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


@settings(deadline=None, max_examples=40)
@given(seed=seeds, beam=st.integers(1, 4), shortest=st.integers(0, 5), longest=st.integers(0, 6))
def test_length_limits_hold_and_the_longer_minimum_wins(seed, beam, shortest, longest):
    found = run(Table(seed, 3), [longest, longest], SearchConfig(beam=beam, nbest=beam), min_length=shortest)
    for hypothesis in (hypothesis for sentence in found for hypothesis in sentence):
        assert shortest <= len(hypothesis.symbols) <= max(longest, shortest)
    alone = greedy(Table(seed, 3), [longest], min_length=shortest)[0][0]
    assert shortest <= len(alone.symbols) <= max(longest, shortest)


@settings(deadline=None, max_examples=40)
@given(
    seed=seeds,
    beam=st.integers(1, 4),
    prefixes=st.lists(st.lists(st.integers(3, 6), max_size=5), min_size=2, max_size=4),
)
def test_prefixes_are_respected_and_scored(seed, beam, prefixes):
    table, lengths = Table(seed, 4), [4] * len(prefixes)
    found = run(table, lengths, SearchConfig(beam=beam, nbest=beam), prefix=prefix_table(prefixes))
    for sentence, (prefix, hypotheses) in enumerate(zip(prefixes, found, strict=True)):
        for hypothesis in hypotheses:
            assert hypothesis.symbols[: len(prefix)] == prefix
            assert hypothesis.log_prob == pytest.approx(table.log_prob(sentence, hypothesis.symbols), abs=1e-4)
    chosen = greedy(table, lengths, prefix=prefix_table(prefixes))
    assert [f[0].symbols[: len(p)] for f, p in zip(chosen, prefixes, strict=True)] == prefixes


@settings(deadline=None, max_examples=40)
@given(seed=seeds, beam=st.integers(1, 4), size=st.integers(1, 3))
def test_no_n_gram_is_repeated_and_nothing_else_is_forbidden(seed, beam, size):
    table = Table(seed, 3)
    found = run(table, [9, 9], SearchConfig(beam=beam, nbest=beam), no_repeat_ngram=size)
    for sentence, hypotheses in enumerate(found):
        for hypothesis in hypotheses:
            grams = list(zip(*(hypothesis.symbols[i:] for i in range(size)), strict=False))
            assert len(set(grams)) == len(grams)
            assert hypothesis.log_prob == pytest.approx(table.log_prob(sentence, hypothesis.symbols), abs=1e-4)


@settings(deadline=None, max_examples=25)
@given(seed=seeds, size=st.integers(1, 2))
def test_the_best_without_repetition_is_found_by_a_wide_beam(seed, size):
    table, config = Table(seed, 3), SearchConfig(beam=121)
    allowed = [
        s
        for s in table.sequences(4)
        if len(set(grams := list(zip(*(s[i:] for i in range(size)), strict=False)))) == len(grams)
    ]
    (found,) = run(table, [4], config, no_repeat_ngram=size)
    assert found[0].score == pytest.approx(max(rank(table, 0, s, config) for s in allowed), abs=1e-5)


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
    ],
)
def test_senseless_settings_are_refused(settings_, message):
    with pytest.raises(ValueError, match=message):
        SearchConfig(**settings_)
