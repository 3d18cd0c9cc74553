"""Placeholders, URLs and e-mail addresses come through a translation as they are."""

import time
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pytest import mark

from deepnmt.decoding.alignment import Alignment, word_spans
from deepnmt.decoding.placeholders import lacks_placeholders, placeholders, restore_placeholders


def aligned(source, target, links):
    """Each target word attends to one source word."""
    words = source.split()
    return Alignment(words, target.split(), np.eye(len(words))[links])


@mark.parametrize(
    ("text", "expected"),
    [
        ("Turn on {name}, {{ state }} or ${x}!", ["{name}", "{{ state }}", "${x}"]),
        ("%s of %d, %(count)d %1$s %.2f%%", ["%s", "%d", "%(count)d", "%1$s", "%.2f"]),
        ("5 % of 100%, 20 %ig", []),
        ("See https://a.b/c?d=e#f, or (http://x.y/).", ["https://a.b/c?d=e#f", "http://x.y/"]),
        ("Mail me@example.org or a.b+c@d-e.co.uk.", ["me@example.org", "a.b+c@d-e.co.uk"]),
        ("{} and {0:>5}", ["{}", "{0:>5}"]),
    ],
)
def test_what_is_a_placeholder(text, expected):
    assert placeholders(text) == expected


@mark.parametrize(
    "text", ["a" * 100_000, "{" * 100_000, "%" * 100_000, "a@" * 50_000, "http://" * 14_000, "a." * 50_000]
)
def test_strange_texts_take_no_time(text):
    started = time.monotonic()
    placeholders(text)
    assert time.monotonic() - started < 5


@mark.parametrize(
    ("source", "target", "links", "expected"),
    [
        ("Turn on {name}.", "Schalte {Name} ein.", [0, 2, 1], "Schalte {name} ein."),
        ("Turn on {name}.", "Schalte Namen ein.", [0, 2, 1], "Schalte {name} ein."),
        ("Turn on {name}.", "Schalte ein, name.", [0, 1, 2], "Schalte ein, {name}."),
        ("{a} and {b}", "{b} und {c}", [2, 1, 0], "{b} und {a}"),
        ("{a} and {a}", "{a} und", [0, 1], "{a} und {a}"),
        ("See {url} now.", "Siehe jetzt.", [0, 2], "Siehe jetzt {url}."),
        ("Hello there", "Hallo {x} du", [0, 0, 1], "Hallo du"),
        ("Visit https://a.b/c today", "Besuche https://a.b/d heute", [0, 1, 2], "Besuche https://a.b/c heute"),
        ("{a}", "", [], "{a}"),
    ],
)
def test_what_is_lost_is_put_back_where_the_alignment_says(source, target, links, expected):
    text, alignment = restore_placeholders(source, target, aligned(source, target, links))
    assert text == expected
    spans = word_spans(text, alignment.target_words)
    assert [text[start:end] for start, end in spans] == alignment.target_words


WORDS = st.sampled_from(
    ["one", "two.", "{a}", "{b},", "%s", "%(n)d", "x@y.z", "https://a.b/c", "({c})", "{", "}", "%", "s"]
)


@given(st.lists(WORDS, max_size=6), st.lists(WORDS, max_size=6), st.randoms(use_true_random=False))
def test_afterwards_the_placeholders_are_those_of_the_source(source, target, random):
    weights = np.reshape([random.random() for _ in target for _ in source], (len(target), len(source)))
    source_text, text = " ".join(source), " ".join(target)
    restored, alignment = restore_placeholders(source_text, text, Alignment(source, target, weights))
    assert Counter(placeholders(restored)) == Counter(placeholders(source_text))
    assert not lacks_placeholders(source_text, restored)
    assert len(alignment.target_words) == len(alignment.weights)
