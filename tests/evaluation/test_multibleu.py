"""Tokenised BLEU against an independent multi-bleu, and values worked by hand."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacremoses import MosesTokenizer

from deepnmt.evaluation.multibleu import MosesWords, MultiBLEU
from deepnmt.evaluation.scores import score


def plain_multi_bleu(hypotheses: list[str], reference_sets: list[list[str]]) -> float:
    """BLEU of multi-bleu.perl, on tokens, from its definition."""
    correct, total, length, reference_length = Counter[int](), Counter[int](), 0, 0
    for hypothesis, *references in zip(hypotheses, *reference_sets, strict=True):
        words, reference_words = hypothesis.split(), [reference.split() for reference in references]
        length += len(words)
        reference_length += min(map(len, reference_words), key=lambda size: (abs(size - len(words)), size))
        for n in range(1, 5):
            grams = Counter(zip(*(words[i:] for i in range(n)), strict=False))
            total[n] += sum(grams.values())
            allowed = Counter[tuple[str, ...]]()
            for reference in reference_words:
                allowed |= Counter(zip(*(reference[i:] for i in range(n)), strict=False))
            correct[n] += sum((grams & allowed).values())
    if not all(correct[n] for n in range(1, 5)):
        return 0.0
    brevity = min(1.0, math.exp(1 - reference_length / length))
    return 100 * brevity * math.exp(sum(math.log(correct[n] / total[n]) for n in range(1, 5)) / 4)


def sentence(smallest: int) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(["ba", "Ba", "do", "Do"]), min_size=smallest, max_size=9).map(" ".join)


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    size, sets = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    references = [[draw(sentence(1)) for _ in range(size)] for _ in range(sets)]
    return [draw(st.one_of(sentence(0), st.just(references[0][i]))) for i in range(size)], references


@settings(max_examples=100)
@given(corpora())
def test_equals_an_independent_multi_bleu_with_any_number_of_references(
    corpus: tuple[list[str], list[list[str]]],
) -> None:
    hypotheses, references = corpus
    scores = score(hypotheses, references, target_lang="de", metrics=["multi_bleu", "multi_bleu_lower"])
    assert scores.multi_bleu.value == pytest.approx(plain_multi_bleu(hypotheses, references), abs=1e-9)
    lowered = [[line.lower() for line in lines] for lines in (hypotheses, *references)]
    assert scores.multi_bleu_lower.value == pytest.approx(plain_multi_bleu(lowered[0], lowered[1:]), abs=1e-9)


def value(hypothesis: str, *references: str, metric: str = "multi_bleu") -> float:
    return score([hypothesis], [[line] for line in references], "en", "de", metrics=[metric])[metric].value


def test_precisions_worked_by_hand() -> None:
    # 5 of 6 words, 3 of 5 pairs, 2 of 4 triples, 1 of 3 quadruples; equally long.
    by_hand = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert by_hand == pytest.approx(53.73, abs=0.005)
    assert value("the cat sat on the mat", "the cat sat on a mat") == pytest.approx(by_hand)


def test_brevity_takes_the_closest_reference_length_and_the_shorter_of_two_as_close() -> None:
    six = "a b c d e f"
    assert value(six, "a b c d e f g h", "a b c d e f g h i j") == pytest.approx(100 * math.exp(1 - 8 / 6))
    assert value(six, "a b c d e f g h", "b c d e") == pytest.approx(100)


def test_without_a_matching_quadruple_it_is_zero_because_nothing_is_smoothed() -> None:
    assert value("a b c x e f g", "a b c d e f g") == 0


def test_punctuation_is_tokenised_before_counting() -> None:
    # Moses: das ist gut , sagte er . (7) against das ist gut . (4): 4 words, 2 pairs, 1 triple.
    assert value("Das ist gut, sagte er.", "Das ist gut.") == 0
    # Ja , das ist gut . against Ja , das ist gut ! : 5/6, 4/5, 3/4, 2/3.
    by_hand = 100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    assert value("Ja, das ist gut.", "Ja, das ist gut!") == pytest.approx(by_hand)


def test_compound_figure_worked_by_hand() -> None:
    hypothesis, reference = "das rich-text format ist gut", "das rich-text Format ist gut"
    # das rich ##AT##-##AT## text format ist gut: 6 of 7, 4 of 6, 2 of 5, 1 of 4; unsplit no quadruple matches.
    by_hand = 100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25
    assert value(hypothesis, reference, metric="compound_bleu") == pytest.approx(by_hand)
    assert value(hypothesis, reference) == 0
    assert value(hypothesis, reference, metric="compound_bleu_lower") == pytest.approx(100)


def test_compound_figure_replaces_unicode_punctuation_and_the_tokenised_one_does_not() -> None:
    hypothesis, reference = "Er sagte: “Das ist so…”", 'Er sagte: "Das ist so..."'
    assert value(hypothesis, reference, metric="compound_bleu") == pytest.approx(100)
    assert value(hypothesis, reference) < 100


def test_case_is_lowered_after_tokenising_as_abbreviations_are_known_by_their_case() -> None:
    line = "Siehe Nr. 5 und so fort"
    assert MultiBLEU(MosesWords("de"), lowercase=True)._preprocess_segment(line) == "siehe nr. 5 und so fort"
    assert MosesWords("de").tokenize(line.lower()) == "siehe nr . 5 und so fort"


def test_escaping_as_tokenizer_perl_does_would_not_change_the_score() -> None:
    hypotheses = ['A & B < "C" [x|y] \'s d', "it's R&D | [1] > 2", "&quot; & &amp; x y z"]
    references = ['A & B < "C" [x|z] \'s d', "it's R&D | [2] > 2", "&quot; & &amp; x y w"]
    escaped = MosesTokenizer(lang="en")
    tokens = [[escaped.tokenize(line, return_str=True) for line in lines] for lines in (hypotheses, references)]
    assert "&quot;" in tokens[0][0]
    ours = score(hypotheses, references, target_lang="en", metrics=["multi_bleu"]).multi_bleu.value
    assert ours == pytest.approx(plain_multi_bleu(tokens[0], [tokens[1]]))
    assert 0 < ours < 100


def test_signature_names_every_step_and_version() -> None:
    scores = score(["a b c d"], ["a b c d"], "en", "de", metrics=["multi_bleu", "compound_bleu_lower"])
    import sacrebleu
    import sacremoses

    import deepnmt

    versions = (
        f"sacremoses:{sacremoses.__version__}|sacrebleu:{sacrebleu.__version__}|version:deepnmt-{deepnmt.__version__}"
    )
    steps = "norm:no|tok:moses-de|escape:no|smooth:none"
    assert scores.multi_bleu.signature == f"BLEU|nrefs:1|case:mixed|{steps}|{versions}"
    steps = "norm:unicode-punct|tok:moses-de+compound-split|escape:no|smooth:none"
    assert scores.compound_bleu_lower.signature == f"BLEU|nrefs:1|case:lc|{steps}|{versions}"
