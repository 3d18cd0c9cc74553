"""Translations with terms: every one of them, at the best place, whatever else is in the batch."""

import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from digits import digit_tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_terms import plain_term_search
from tables import EOS, Table

import deepnmt
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.decoding.config import SearchConfig
from deepnmt.decoding.glossary import Glossary, read_terms
from deepnmt.decoding.pieces import Piece
from deepnmt.decoding.rules import Rules, prefix_table
from deepnmt.decoding.search import Found, search
from deepnmt.decoding.term_search import Phrase, Term, TermBeams, Wanted
from deepnmt.decoding.translator import Translator
from deepnmt.errors import InputError

words = st.integers(3, 5)
phrases = st.lists(st.lists(words, min_size=1, max_size=2).map(tuple), min_size=1, max_size=2, unique=True)


def run(
    table: Table, terms: list[list[Phrase]], config: SearchConfig, sentences: list[int] | None = None, **more
) -> list[list[Found]]:
    numbers = list(range(len(terms))) if sentences is None else sentences
    limits = torch.full((len(terms),), more.pop("max_length", 5))
    wanted = [[term if isinstance(term, Term) else Term(term) for term in of_sentence] for of_sentence in terms]
    growing = TermBeams(Rules(max_lengths=limits, eos=EOS, banned=(0, 1), **more), config, wanted)
    return search(table.step, table.start(numbers, growing.last.shape[1]), growing)


def contains(symbols: list[int], terms: list[Phrase]) -> bool:
    """By the definition: in some order, each term has an occurrence of its own."""
    if not terms:
        return True
    for i, term in enumerate(terms):
        rest = terms[:i] + terms[i + 1 :]
        for start in range(len(symbols) - len(term) + 1):
            if tuple(symbols[start : start + len(term)]) == term and contains(symbols[start + len(term) :], rest):
                return True
    return False


@settings(deadline=None, max_examples=60)
@given(terms=phrases, symbols=st.lists(words, max_size=7))
def test_progress_is_complete_only_where_the_terms_occur(terms: list[Phrase], symbols: list[int]) -> None:
    wanted = Wanted([Term(term) for term in terms])
    progress = wanted.start
    for symbol in symbols:
        is_next = symbol in progress.next_symbols(0)
        before, progress = progress.count, wanted.after(progress, symbol)
        assert progress.count <= before + 1
        assert is_next or progress.count <= before
    assert not progress.is_complete or contains(symbols, terms)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), terms=st.lists(phrases, min_size=1, max_size=3), beam=st.integers(1, 4))
def test_every_hypothesis_contains_its_terms_and_has_its_own_score(
    seed: int, terms: list[list[Phrase]], beam: int
) -> None:
    table, config = Table(seed, 3), SearchConfig(beam=beam, nbest=beam)
    for sentence, (found, wanted) in enumerate(zip(run(table, terms, config), terms, strict=True)):
        assert found
        assert len({tuple(hypothesis.symbols) for hypothesis in found}) == len(found)
        for hypothesis in found:
            assert contains(hypothesis.symbols, wanted)
            assert hypothesis.log_prob == pytest.approx(table.log_prob(sentence, hypothesis.symbols), abs=1e-4)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), terms=phrases, alpha=st.sampled_from([0.0, 0.6, 1.0]))
def test_a_wide_beam_finds_the_best_translation_that_contains_them(
    seed: int, terms: list[Phrase], alpha: float
) -> None:
    table, config = Table(seed, 3), SearchConfig(beam=400, length_penalty=alpha, patience=math.inf)
    ((found,),) = run(table, [terms], config, max_length=4)

    def complete(symbols: list[int]) -> bool:  # as the search understands it: without overlaps, greedily
        wanted = Wanted([Term(term) for term in terms])
        progress = wanted.start
        for symbol in symbols:
            progress = wanted.after(progress, symbol)
        return progress.is_complete

    best = max(
        table.log_prob(0, symbols) / (len(symbols) + 1) ** alpha for symbols in table.sequences(4) if complete(symbols)
    )
    assert found.score == pytest.approx(best, abs=1e-5)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10**6), terms=st.lists(phrases, min_size=2, max_size=4), patience=st.sampled_from([1.0, 9.0])
)
def test_company_and_stopping_early_change_nothing(seed: int, terms: list[list[Phrase]], patience: float) -> None:
    table, config = Table(seed, 3), SearchConfig(beam=3, nbest=2, patience=patience)
    together = run(table, terms, config)
    assert together == [run(table, [wanted], config, sentences=[i])[0] for i, wanted in enumerate(terms)]
    assert together == run(table, terms, SearchConfig(beam=3, nbest=2, patience=patience, stop_early=False))


@pytest.mark.parametrize("seed", range(12))
def test_the_search_is_the_plain_one_alone_and_in_any_company(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(15):
        check_search(draw)


def check_search(draw: random.Random) -> None:
    """Several terms, also equal and overlapping ones, with windows, prefixes, lengths, repetition and patience."""
    num_words, beam, count = draw.choice([2, 3, 4, 9]), draw.randint(1, 5), draw.choice([1, 2, 4])
    table = Table(draw.randrange(10**6), num_words, draw.choice([0.5, 1.5, 3.0, 6.0]))

    def word() -> int:
        return draw.randint(3, 2 + num_words)

    def term() -> Term:
        symbols = tuple(word() for _ in range(draw.choice([1, 1, 2, 3])))
        first = draw.choice([0, 0, draw.randint(0, 4)])
        return Term(symbols, first, draw.choice([sys.maxsize, first + draw.randint(0, 3)]))

    terms = [[term() for _ in range(draw.choice([1, 1, 2, 3]))] for _ in range(count)]
    for of_sentence in terms:
        if draw.random() < 0.2:
            of_sentence.append(of_sentence[0])
    config = SearchConfig(
        beam=beam,
        nbest=draw.randint(1, beam),
        length_penalty=draw.choice([-0.3, 0.0, 0.6, 1.0]),
        patience=draw.choice([0.5, 1.0, 2.0, math.inf]),
        stop_early=draw.random() < 0.7,
    )
    limits = {"min_length": draw.choice([0, 0, 2, 4]), "no_repeat_ngram": draw.choice([0, 0, 0, 2])}
    longest = [draw.randint(1, 8) for _ in range(count)]
    prefixes = [[word() for _ in range(draw.choice([0, 0, 1, 3]))] for _ in range(count)]
    shrinking = draw.choice([1, 2, 4]), draw.choice([0.0, 0.8, 1.0])

    def run(sentences: list[int]) -> list[list[Found]]:
        prefix = prefix_table([prefixes[i] for i in sentences])
        rules = Rules(
            max_lengths=torch.tensor([longest[i] for i in sentences]), eos=EOS, banned=(0, 1), prefix=prefix, **limits
        )
        growing = TermBeams(rules, config, [terms[i] for i in sentences])
        return search(table.step, table.start(sentences, growing.last.shape[1]), growing, *shrinking)

    together = run([*range(count)])
    assert together == [run([i])[0] for i in range(count)]
    for i, found in enumerate(together):
        expected = plain_term_search(table, i, terms[i], config, longest[i], prefixes[i], **limits)
        assert [hypothesis.symbols for hypothesis in found] == [symbols for _, symbols in expected]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([score for score, _ in expected], abs=1e-4)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), symbols=st.lists(words, min_size=1, max_size=2), first=st.integers(0, 3))
def test_a_term_begins_in_its_window_unless_the_model_says_it_earlier(
    seed: int, symbols: list[int], first: int
) -> None:
    phrase, last = tuple(symbols), first + 1
    ((found, *_),) = run(Table(seed, 3), [[Term(phrase, first, last)]], SearchConfig(beam=3), max_length=7)
    places = [i for i in range(8) if tuple(found.symbols[i : i + len(phrase)]) == phrase]
    assert places and places[0] <= last


def test_a_forced_prefix_may_contain_a_term() -> None:
    prefix = prefix_table([[3, 4], [5]])
    first, second = run(Table(1, 3), [[(3, 4)], [(3, 4)]], SearchConfig(beam=2), prefix=prefix)
    assert first[0].symbols[:2] == [3, 4]
    assert second[0].symbols[0] == 5
    assert contains(second[0].symbols[1:], [(3, 4)])


def glossary(terms: dict[str, str], source: str = "de") -> Glossary:
    pair = digit_tokenizers()
    return Glossary(terms, TokenizerPair(Tokenizer(pair.source.subwords, Preprocessor(source)), pair.target))


def test_terms_are_whole_words_in_any_case_and_the_longest_counts() -> None:
    terms = glossary({"eins": "zwei", "eins zwei": "drei", "vier.": "acht"})

    def found(text: str) -> list[str]:
        renderings = terms.in_text(text)
        assert [each.symbols for each in renderings] == [tuple(terms.target.encode(each.text)) for each in renderings]
        return [each.text for each in renderings]

    assert found("Eins, zwei.") == ["zwei"]
    assert found("eins zwei, EINS!") == ["drei", "zwei"]
    assert found("eins eins") == ["zwei"]
    assert found("vier.") == ["acht"]
    assert found("einst keins eins2 zwei eins") == ["zwei"]
    assert found("") == []
    (rendering,) = terms.in_text("sieben eins neun")
    ids = terms.source.encode("sieben eins neun")
    assert terms.source.decode(ids[rendering.source]) == "eins"


@pytest.mark.parametrize(
    ("term", "text", "is_found"),
    [
        ("घर", "घरों में", False),  # a vowel sign continues the word
        ("घर", "घर में", True),
        ("cafe", "cafe\u0301", False),
        ("caf\u00e9", "ein cafe\u0301 da", True),
        ("cafe\u0301", "ein CAF\u00c9 da", True),
        ("i", "İİ", False),
        ("eins", "İ İ eins", True),
    ],
)
def test_accents_and_vowel_signs_belong_to_words(term: str, text: str, is_found: bool) -> None:
    terms = glossary({term: "zwei"})
    found = terms.in_text(text)
    assert bool(found) == bool(terms.own_in(text) and found) == is_found
    if text.endswith("eins"):
        assert terms.source.decode(terms.source.encode(text)[found[0].source]) == "eins"


def test_languages_without_spaces_have_no_whole_words() -> None:
    assert glossary({"eins": "zwei"}, source="ja").in_text("keinst")


def test_a_term_that_the_model_cannot_spell_is_refused() -> None:
    with pytest.raises(InputError, match="cannot spell 'Ω', the translation of the term 'eins'"):
        glossary({"eins": "Ω"})
    with pytest.raises(InputError, match="must not be empty"):
        glossary({"eins": " "})
    with pytest.raises(InputError, match="the term 'EINS' has two translations"):
        glossary({"eins": "zwei", "EINS": "drei"})
    with pytest.raises(InputError, match="must be strings, not 'eins' and 3"):
        glossary({"eins": 3})
    with pytest.raises(InputError, match=r"terms must be a dictionary of terms and translations, not \['eins'\]"):
        glossary(["eins"])


def test_translations_contain_the_terms_of_their_text_alone(digits_model: Path) -> None:
    translator = Translator(digits_model)
    texts = ["eins zwei drei", "vier fünf", "zwei sechs", ""]
    plain = translator.translate(texts)
    assert translator.translate(texts, terms={"neun": "acht"}) == plain
    found = translator.translate(texts, terms={"zwei": "null"})
    assert "null" in found[0] and "null" in found[2]
    assert found[1] == plain[1] and found[3] == ""
    assert found == [translator.translate([text], terms={"zwei": "null"})[0] for text in texts]
    assert translator.translate(texts, terms={"zwei": "zwei"}) == plain  # what it says anyway
    # The model reverses digits: the term stands where it would have put "zwei".
    assert translator.translate(["eins zwei drei vier"], terms={"zwei": "null"})[0].split()[1:3].count("null") == 1
    assert translator.translate(texts, terms={"zwei": "null"}, max_length=3)[0].split() != plain[0].split()
    assert "null" in translator.translate(texts, terms={"zwei": "null"}, beam=1)[0]
    with pytest.raises(InputError, match="terms need a beam search"):
        translator.translate(texts, terms={"zwei": "null"}, sampling=True)


def test_the_search_for_terms_is_cut_into_batches_of_few_rows(
    digits_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator, texts = Translator(digits_model), ["eins zwei", "zwei", "drei zwei vier", "eins", "vier zwei"]
    terms, rows = {"zwei": "null", "eins": "null acht"}, []
    expected = translator.translate(texts, terms=terms)

    def observed(self: TermBeams, *arguments: Any) -> None:
        original(self, *arguments)
        rows.append(self.last.numel())

    original = TermBeams.__init__
    monkeypatch.setattr(TermBeams, "__init__", observed)
    monkeypatch.setattr("deepnmt.decoding.translator.ROWS", {"cpu": 20})
    assert translator.translate(texts, terms=terms) == expected
    assert len(rows) > 1 and max(rows) <= 20


def test_pieces_without_a_term_are_searched_once_and_the_others_twice_in_few_batches(
    digits_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator, searched, done = Translator(digits_model), [], []
    original = Translator._search

    def observed(self: Translator, batch: list[Piece], config: Any) -> Any:
        searched.append([piece.source for piece in batch])
        return original(self, batch, config)

    monkeypatch.setattr(Translator, "_search", observed)
    texts = ["eins drei", "zwei", "vier zwei", "acht", "neun", "sechs zwei"]
    found = translator.translate(texts, terms={"zwei": "null"}, batch_tokens=1, done=done.append)
    assert sorted(searched[:6]) == sorted([text] for text in texts)
    assert searched[6:] == [["vier zwei", "sechs zwei", "zwei"]]
    assert sum(done) == 6
    assert [found[i] for i in (0, 3, 4)] == translator.translate([texts[i] for i in (0, 3, 4)])


def test_terms_that_the_rules_forbid_are_left_out_with_a_warning(digits_model: Path) -> None:
    translator, told = Translator(digits_model), []
    texts, settings = ["vier", "eins zwei"], {"no_repeat_ngram": 1}
    terms = {"zwei": "null null"}
    found = translator.translate(texts, terms=terms, warn=lambda *message: told.append(message), **settings)
    assert found == translator.translate(texts, **settings)
    assert [number for number, _ in told] == [1]
    assert "cannot get all its terms" in told[0][1]


def test_an_ensemble_uses_terms_too(digits_model: Path, random_model: Path) -> None:
    translator = Translator([digits_model, random_model])
    assert "null" in translator.translate(["eins zwei"], terms={"zwei": "null"})[0]


def test_terms_from_a_file(digits_model: Path, tmp_path: Path) -> None:
    terms, source, out = tmp_path / "terms.tsv", tmp_path / "source", tmp_path / "out"
    terms.write_text("# digits\n\nzwei\tnull\nzwei\tnull\n", encoding="utf-8")
    source.write_text("eins zwei\ndrei\n", encoding="utf-8")
    assert read_terms(terms) == {"zwei": "null"}
    deepnmt.translate_file(digits_model, source, out, terms=terms, device="cpu")
    assert "null" in out.read_text(encoding="utf-8").splitlines()[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("zwei\n", "line 1: expected a source term, a tab and its translation"),
        ("eins\tzwei\n\tzwei\n", "line 2: expected a source term"),
        ("eins\tzwei\tdrei\n", "line 1: expected a source term"),
        ("eins\tzwei\neins\tdrei\n", "line 2: 'eins' has another translation"),
        ("eins\tzwei\nEins\tdrei\n", "line 2: 'Eins' has another translation"),
    ],
)
def test_a_file_of_terms_is_refused_by_line(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_terms(tmp_path / "terms.tsv")
