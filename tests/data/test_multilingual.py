"""Datasets with several directions: tags of target languages, held-out text, and given tokenisers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grammar import english_german, write_pairs

import deepnmt
from deepnmt.cli import main
from deepnmt.data.dataset import Dataset
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.errors import InputError

Pairs = list[tuple[str, str]]
Files = tuple[str, str]


def turned(pairs: Pairs) -> Pairs:
    return [(target, source) for source, target in pairs]


def shouted(pairs: Pairs) -> Pairs:
    """A language of its own: English in capitals."""
    return [(source, source.upper()) for source, _ in pairs]


@pytest.fixture
def files(tmp_path: Path) -> dict[tuple[str, str], Files]:
    """Training text in three directions, of which two are each other's opposite."""
    pairs = english_german(150)
    text = {("en", "de"): pairs, ("de", "en"): turned(pairs), ("en", "xx"): shouted(english_german(80, seed=5))}
    return {languages: write_pairs(tmp_path, "".join(languages), some) for languages, some in text.items()}


def prepared(out: Path, directions: Any, **settings: Any) -> Dataset:
    return deepnmt.prepare(directions=directions, out=out, workers=1, **{"vocab_size": 400, **settings})


def test_a_source_begins_with_the_tag_of_its_target_language(tmp_path: Path, files: Any) -> None:
    dataset = prepared(tmp_path / "data", files)
    source, target = dataset.tokenizers.source, dataset.tokenizers.target
    for code in ("de", "en", "xx"):
        name = {"de": "en-de", "en": "de-en", "xx": "en-xx"}[code]
        corpus, (tag,) = dataset.train[name], source.opening(f"<2{code}>")
        assert all(corpus.source[i][0] == tag for i in range(len(corpus)))
        assert not np.isin(corpus.target.ids, [source.opening(f"<2{other}>") for other in ("de", "en", "xx")]).any()
    assert dataset.tokenizers.languages == (["en", "de"], ["de", "en", "xx"])
    assert source.pieces == target.pieces and dataset.tokenizers.shared
    corpus, pairs = dataset.train["de-en"], turned(english_german(150))
    assert [(source.decode(corpus.source[i]), target.decode(corpus.target[i])) for i in range(150)] == pairs


def test_one_direction_is_an_ordinary_dataset(tmp_path: Path, files: Any) -> None:
    source, target = files["en", "de"]
    languages = {"source_lang": "en", "target_lang": "de"}
    usual = deepnmt.prepare(
        source=source, target=target, out=tmp_path / "a", workers=1, vocab_size=400, hold_out=20, **languages
    )
    other = prepared(tmp_path / "b", {("en", "de"): files["en", "de"]}, hold_out=20)
    for one, two in zip(usual.train["train"].sides, other.train["en-de"].sides, strict=True):
        assert np.array_equal(one.ids, two.ids) and np.array_equal(one.offsets, two.offsets)
    assert usual.valid_text == other.valid_text
    assert not other.tokenizers.is_multilingual
    for name in ("tokenizer.source.json", "tokenizer.target.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_into_one_language_needs_no_tag(tmp_path: Path, files: Any) -> None:
    french = write_pairs(tmp_path, "fr", [(text.upper(), text) for _, text in turned(english_german(90, seed=3))])
    dataset = prepared(tmp_path / "data", {("de", "en"): files["de", "en"], ("fr", "en"): french})
    pair = dataset.tokenizers
    assert pair.source.tags == () and pair.languages == (["de", "fr"], ["en"]) and pair.is_multilingual
    moved = TokenizerPair.load(dataset.folder).for_languages("fr", None)
    assert (moved.source.language, moved.languages) == ("fr", pair.languages)
    with pytest.raises(InputError, match="no source language 'it'"):
        pair.for_languages("it", "en")


def test_held_out_text_is_in_no_direction_of_training(tmp_path: Path, files: Any) -> None:
    """A pair of the validation set must not be learned in the opposite direction either."""
    dataset = prepared(tmp_path / "data", files, hold_out=15)
    assert [(part.languages, len(part.source)) for part in dataset.valid_directions] == [(key, 15) for key in files]
    held_out = {line for part in dataset.valid_directions for line in (*part.source, *part.target)}
    pair = dataset.tokenizers
    for corpus in dataset.train.values():
        assert not held_out & {pair.source.decode(corpus.source[i]) for i in range(len(corpus))}
        assert not held_out & {pair.target.decode(corpus.target[i]) for i in range(len(corpus))}
    source, target = dataset.valid_directions[1].source, dataset.valid_directions[1].target
    assert set(zip(source, target, strict=True)) <= set(turned(english_german(150)))


def test_held_out_sets_are_given_by_direction(tmp_path: Path, files: Any) -> None:
    held_out = english_german(8, seed=9)
    valid = {
        ("de", "en"): write_pairs(tmp_path, "v1", turned(held_out)),
        ("de", "xx"): write_pairs(tmp_path, "v2", [(german, english.upper()) for english, german in held_out]),
    }
    test = {("en", "de"): files["en", "de"]}
    dataset = prepared(tmp_path / "data", files, valid_directions=valid, test_directions=test, keep=["overlap"])
    assert [part.languages for part in dataset.valid_directions] == [("de", "en"), ("de", "xx")]
    assert dataset.valid is not None and dataset.valid_text is not None
    targets = [part.languages[1] for part in dataset.valid_directions for _ in part.source]
    for i, target in enumerate(targets):
        ids = dataset.tokenizers.for_languages("de", target).source.encode(dataset.valid_text[0][i])
        assert dataset.valid.source[i].tolist() == ids
    assert dataset.meta["test"]["directions"] == [["en", "de", 150]]


def test_the_same_pair_in_two_directions_is_no_duplicate(tmp_path: Path) -> None:
    pairs = english_german(60)
    same = write_pairs(tmp_path, "a", pairs)
    dataset = prepared(tmp_path / "data", {("en", "de"): same, ("en", "lb"): same})
    assert [len(corpus) for corpus in dataset.train.values()] == [60, 60]


def test_given_subwords_get_the_tags(tmp_path: Path, files: Any) -> None:
    """A bilingual tokeniser can be used for more languages; one with languages keeps its own."""
    usual = prepared(tmp_path / "a", {("en", "de"): files["en", "de"]})
    dataset = prepared(tmp_path / "b", files, tokenizer=usual.folder)
    source = dataset.tokenizers.source
    assert source.tags == ("<2de>", "<2en>", "<2xx>")
    assert source.subwords.pieces == usual.tokenizers.source.subwords.pieces
    again = prepared(tmp_path / "c", {("en", "xx"): files["en", "xx"]}, tokenizer=dataset.folder)
    assert again.tokenizers.source.pieces == source.pieces
    assert again.train["en-xx"].source[0][0] == source.opening("<2xx>")[0]
    with pytest.raises(InputError, match="the model has no target language 'fr'"):
        prepared(tmp_path / "d", {("en", "fr"): files["en", "xx"]}, tokenizer=dataset.folder)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source_lang": "en"}, "directions come with their languages and files"),
        ({"tsv": "a.tsv"}, "directions come with their languages and files"),
        ({"tags": {"en-de": "<bt>"}}, "directions come with their languages and files"),
        ({"directions": {"en-de": ("a", "b")}}, "a direction is a pair of languages with its source and target files"),
        ({"directions": {("en", "de"): "a.en"}}, "a direction is a pair of languages with its source and target files"),
        ({"directions": {("en", "English text"): ("a", "b")}}, "'English text' is not a language code"),
        ({"directions": {}}, "no languages: give source_lang and target_lang, or directions"),
        ({"weights": {"de-en": 2.0}}, "weights names corpus 'de-en'; the corpora are en-de"),
    ],
)
def test_what_is_no_direction_is_refused(tmp_path: Path, files: Any, given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepared(tmp_path / "data", **{"directions": {("en", "de"): files["en", "de"]}, **given})
    assert not (tmp_path / "data").exists()


def test_a_validation_set_in_another_language_is_refused(tmp_path: Path, files: Any) -> None:
    valid = {("de", "fr"): files["de", "en"]}
    with pytest.raises(InputError, match=r"is de to fr; the training text is en to de, de to en, en to xx"):
        prepared(tmp_path / "data", files, valid_directions=valid)


def test_the_command_takes_directions_and_joins_their_files(
    tmp_path: Path, files: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    more = write_pairs(tmp_path, "more", english_german(30, seed=7))
    given = [("en", "de", *files["en", "de"]), ("en", "de", *more), ("en", "xx", *files["en", "xx"])]
    options = [str(word) for direction in given for word in ("--direction", *direction)]
    out = tmp_path / "data"
    assert main(["prepare", *options, "--vocab-size", "400", "--workers", "1", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("en to de, en to xx:\n")
    assert len(Dataset.open(out).train["en-de"]) == 180
    assert main(["prepare", *options, "--source-lang", "en", "--out", str(tmp_path / "other")]) == 2
    assert "omit --source-lang, --target-lang" in capsys.readouterr().err
