"""The scores of all pairs are sacreBLEU's."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from deepnmt.decoding.pairwise import ngram_matches, pairwise
from deepnmt.errors import InputError

# Article 1 of the Universal Declaration of Human Rights, and texts that are short, alike, repetitive or empty.
MULTILINGUAL = [
    "All human beings are born free and equal in dignity and rights.",
    "All human beings are born free and equal in rights and dignity.",
    "all humans are born equal, and free (in dignity)!",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "人人生而自由，在尊严和权利上一律平等。",
    "人人 生而 自由 平等",
    "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "🙂🙂 👩‍👩‍👧 e\u0301 é\u00a0\u2028x",
    "the the the the the the",
    "the the",
    "$3.50, U.S.-made &amp; 100%",
    "a",
    ".",
    "",
    " \t ",
]
ALIKE = st.lists(st.text("ab .,ä中", max_size=20), min_size=1, max_size=6)
ANY = st.lists(st.text(max_size=20), min_size=1, max_size=4)
SACREBLEU = {
    ("chrf", "en"): CHRF(),
    ("bleu", "en"): BLEU(effective_order=True),
    ("bleu", "zh_Hans"): BLEU(effective_order=True, trg_lang="zh"),
}


def check(texts):
    for (name, language), metric in SACREBLEU.items():
        expected = [[metric.sentence_score(text, [reference]).score for reference in texts] for text in texts]
        np.testing.assert_allclose(pairwise(name, language)(texts), expected, rtol=0, atol=1e-9)


def test_multilingual_text_scores_as_in_sacrebleu():
    check(MULTILINGUAL)


@given(ALIKE | ANY)
def test_any_text_scores_as_in_sacrebleu(texts):
    check(texts)


def test_shared_ngrams_are_counted_as_often_as_in_the_one_that_has_them_less_often():
    sequences = [np.array([7, 8, 7, 8, 7]), np.array([7, 8, 9]), np.array([], dtype=int)]
    (counts, matches), (pair_counts, pair_matches) = ngram_matches(sequences, 2)
    assert counts.tolist() == [5, 3, 0] and pair_counts.tolist() == [4, 2, 0]
    assert matches.tolist() == [[5, 2, 0], [2, 3, 0], [0, 0, 0]]
    assert pair_matches.tolist() == [[4, 1, 0], [1, 2, 0], [0, 0, 0]]


def test_a_language_whose_words_cannot_be_told_apart_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with pytest.raises(InputError, match=r"mbr = bleu needs .* tokeniser for 'ja': pip install 'sacrebleu\[ja\]'"):
        pairwise("bleu", "ja")
