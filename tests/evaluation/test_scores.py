"""The scores: sacreBLEU's own numbers and published ones, laws, and which scores suit which languages."""

import json

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

import deepnmt
from deepnmt.errors import InputError
from deepnmt.evaluation.metrics import METRICS
from deepnmt.evaluation.score_files import score_files
from deepnmt.evaluation.scores import quick_scores, score

# From sacreBLEU's own README, with the scores published there.
SYSTEM = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
REFERENCES = [
    ["The dog bit the man.", "It was not unexpected.", "The man bit him first."],
    ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."],
]

GERMAN = ["Die E-Mail kam am 3. Mai, sagte Dr. Huber.", "Über 1.000 Menschen!", "Nein – das ist „gut“ so."]
GERMAN_OUT = ["Die e-mail kam am 3. Mai, sagt Dr. Huber.", "über 1.000 Menschen waren da!", "Nein, das ist „gut“."]

lines = st.lists(st.lists(st.sampled_from(["Ja", "ja", "nein", "gut-so", "."]), max_size=8).map(" ".join), max_size=5)


def test_published_scores_are_reproduced() -> None:
    scores = deepnmt.score(SYSTEM, REFERENCES, target_lang="en")
    assert f"{scores.bleu.value:.2f}" == "48.53"
    assert f"{scores.chrf.value:.2f}" == "59.73"


PLAIN = {
    "bleu": lambda: BLEU(),
    "bleu_lower": lambda: BLEU(lowercase=True),
    "chrf": lambda: CHRF(),
    "chrf_lower": lambda: CHRF(lowercase=True),
    "chrf_plus": lambda: CHRF(word_order=2),
    "chrf_plus_lower": lambda: CHRF(word_order=2, lowercase=True),
    "ter": lambda: TER(),
    "ter_cased": lambda: TER(case_sensitive=True),
}


@pytest.mark.parametrize("name", PLAIN)
def test_sacrebleus_numbers_and_signatures_are_kept(name: str) -> None:
    for hypotheses, references, language in ((SYSTEM, REFERENCES, "en"), (GERMAN_OUT, [GERMAN], "de")):
        ours = score(hypotheses, references, target_lang=language, metrics=[name])[name]
        plain = PLAIN[name]()
        theirs = plain.corpus_score(hypotheses, references)
        assert ours.value == theirs.score
        assert ours.signature == f"{theirs.name}|{plain.get_signature()}"
        assert sacrebleu.__version__ in ours.signature


@pytest.mark.parametrize("name", METRICS)
def test_a_perfect_translation_scores_perfectly(name: str) -> None:
    perfect = 0 if METRICS[name].lower_is_better else 100
    assert score(GERMAN, GERMAN, "en", "de", metrics=[name])[name].value == pytest.approx(perfect)


@pytest.mark.parametrize("name", METRICS)
def test_the_order_of_the_lines_changes_nothing(name: str) -> None:
    there = score(GERMAN_OUT, GERMAN, "en", "de", metrics=[name])[name]
    back = score(GERMAN_OUT[::-1], GERMAN[::-1], "en", "de", metrics=[name])[name]
    assert there.value == pytest.approx(back.value)
    assert there.signature == back.signature


@pytest.mark.parametrize("name", METRICS)
def test_case_counts_exactly_where_the_name_says_so(name: str) -> None:
    shouted = [line.upper() for line in GERMAN_OUT]
    cased = score(shouted, GERMAN, "en", "de", metrics=[name])[name]
    lowered = score([line.lower() for line in shouted], GERMAN, "en", "de", metrics=[name])[name]
    ignores_case = "case ignored" in METRICS[name].title
    assert ("case:lc" in cased.signature) == ignores_case
    assert (cased.value == pytest.approx(lowered.value)) == ignores_case


@pytest.mark.parametrize("name", METRICS)
def test_a_repeated_reference_changes_the_signature_only(name: str) -> None:
    once = score(GERMAN_OUT, GERMAN, "en", "de", metrics=[name])[name]
    twice = score(GERMAN_OUT, [GERMAN, GERMAN], "en", "de", metrics=[name])[name]
    assert twice.value == pytest.approx(once.value)
    assert "nrefs:2" in twice.signature
    assert "nrefs:1" in once.signature


@settings(max_examples=40, deadline=None)
@given(lines.filter(len))
def test_any_lines_can_be_scored_even_empty_ones(hypotheses: list[str]) -> None:
    references = ["Ja , gut-so ."] * len(hypotheses)
    for figure in score(hypotheses, references, "en", "de").values():
        assert figure.value >= 0


def test_quick_scores_are_the_same_figures() -> None:
    quick = quick_scores(GERMAN_OUT, GERMAN, "de")
    full = score(GERMAN_OUT, GERMAN, "en", "de")
    assert list(quick) == ["bleu", "chrf"]
    assert all(quick[name] == full[name] for name in quick)


def test_which_scores_suit_which_languages() -> None:
    de, fr = score(GERMAN_OUT, GERMAN, "en", "de"), score(GERMAN_OUT, GERMAN, "en", "fr")
    assert "compound_bleu" in de
    assert "compound_bleu" not in fr
    assert set(fr) < set(de)
    assert "compound_bleu" not in score(GERMAN_OUT, GERMAN, "fr", "de")
    lowercase = score(GERMAN_OUT, GERMAN, "en", "de", lowercase=True)
    assert all("case:lc" in figure.signature for figure in lowercase.values())
    chosen = score(GERMAN_OUT, GERMAN, metrics=["bleu", "bleu_lower", "ter_cased"], lowercase=True)
    assert list(chosen) == ["bleu_lower", "ter"]
    unknown = score(GERMAN_OUT, GERMAN)
    assert not any("multi" in name for name in unknown)
    assert any("needs the target language" in notice for notice in unknown.notices)


def test_chinese_is_scored_by_character() -> None:
    scores = score(["今天天气很好。"], ["今天天气不错。"], "en", "zh-CN")
    assert "tok:zh" in scores.bleu.signature
    assert "asian:yes" in scores.ter.signature
    assert 0 < scores.ter.value < 100
    assert set(scores) == {"bleu", "bleu_lower", "chrf", "ter"}


def test_a_missing_word_tokeniser_is_replaced_by_characters_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    scores = score(["今日は天気がいい。"], ["今日は天気がよい。"], "en", "ja")
    assert "tok:char" in scores.bleu.signature
    assert any("sacrebleu[ja]" in notice for notice in scores.notices)


def test_a_language_unknown_to_moses_is_tokenised_with_english_abbreviations_and_said() -> None:
    scores = score(["Dr. X yz."], ["Dr. X yz."], "en", "tlh", metrics=["multi_bleu"])
    assert "tok:moses-tlh[prefixes-en]" in scores.multi_bleu.signature
    assert any("'tlh'" in notice for notice in scores.notices)
    assert score(["a"], ["a"], "en", "de_AT", metrics=["multi_bleu"]).notices == ()


def test_text_that_is_not_raw_is_noticed() -> None:
    assert score(GERMAN_OUT, GERMAN, "en", "de").notices == ()
    (tokenised,) = score(["Das ist gut ."] * 3, GERMAN, "en", "de").notices
    assert "3 of 3 lines end in a detached full stop" in tokenised
    (subwords,) = score(["Das ist g@@ ut."] * 3, GERMAN, "en", "de").notices
    assert "subword marks" in subwords


def test_confidence_intervals_are_sacrebleus() -> None:
    scores = score(GERMAN_OUT, GERMAN, "en", "de", metrics=["chrf"], resamples=200)
    plain = CHRF()
    theirs = plain.corpus_score(GERMAN_OUT, [GERMAN], n_bootstrap=200)
    assert scores.chrf.low == pytest.approx(theirs._mean - theirs._ci)
    assert scores.chrf.high == pytest.approx(theirs._mean + theirs._ci)
    assert "bs:200|seed:12345" in scores.chrf.signature


def test_intervals_where_some_resamples_score_nothing() -> None:
    found = score(["a b c d e", "f", "g"], ["a b c d e", "h", "i"], "en", "de", resamples=100)
    for one in found.values():
        assert one.low is not None and one.high is not None and one.low <= one.high


def test_json_is_stable_and_complete() -> None:
    texts = {score(GERMAN_OUT, GERMAN, "en", "de", resamples=50).to_json() for _ in range(2)}
    (text,) = texts
    figures = json.loads(text)
    assert list(figures["bleu"]) == ["name", "value", "signature", "low", "high", "p_value"]
    assert figures == score(GERMAN_OUT, GERMAN, "en", "de", resamples=50).as_dict()


def test_scores_are_read_by_name_and_unknown_names_are_told_what_there_is() -> None:
    scores = quick_scores(GERMAN_OUT, GERMAN, "de")
    assert scores.bleu is scores["bleu"]
    assert str(scores.bleu).startswith("BLEU|nrefs:1|")
    with pytest.raises(AttributeError, match="no score 'ter' here; there are bleu, chrf"):
        _ = scores.ter


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: score(["a"], ["a", "b"]), "hypotheses has 1 lines and reference 1 has 2"),
        (lambda: score(["a"], [["a"], ["a", "b"]]), "reference 2 has 2 lines and reference 1 has 1"),
        (lambda: score([], [[]]), "reference 1 is empty"),
        (lambda: score("a", ["a"]), "hypotheses must be a list of lines, not a string"),
        (lambda: score(["a"], "a"), "reference 1 must be a list of lines, not a string"),
        (lambda: score(["a"], []), "no reference"),
        (lambda: score_files([__file__], []), "no reference"),
        (lambda: score(["a"], ["a"], metrics=["blue"]), "unknown score 'blue'; choose from bleu,"),
        (lambda: score(["a"], ["a"], metrics=["multi_bleu"]), "add target_lang"),
    ],
)
def test_refusals(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        call()
