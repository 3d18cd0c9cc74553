import errno
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from grammar import english_german, write_pairs

import deepnmt
from deepnmt.cli import main
from deepnmt.data import held_out
from deepnmt.data import prepare as preparing
from deepnmt.data.dataset import CorpusWriter, Dataset
from deepnmt.data.prepare_settings import PrepareSettings
from deepnmt.errors import InputError
from deepnmt.files import _host, write_json

Pairs = list[tuple[str, str]]
LANGUAGES = {"source_lang": "en", "target_lang": "de"}
SMALL = ["--source-lang", "en", "--target-lang", "de", "--vocab-size", "400", "--workers", "1"]


def make(folder: Path, pairs: Pairs, valid: Pairs | None = None, workers: int = 1, **settings: Any) -> Dataset:
    source, target = write_pairs(folder, "train", pairs)
    held_out = write_pairs(folder, "valid", valid) if valid else ((), ())
    options: dict[str, Any] = {**LANGUAGES, "vocab_size": 400, "workers": workers, **settings}
    texts: dict[str, Any] = {"source": source, "target": target, "valid_source": held_out[0]}
    return deepnmt.prepare(**{"out": folder / "data", **texts, "valid_target": held_out[1], **options})


def text_of(dataset: Dataset, name: str = "train") -> Pairs:
    corpus = dataset.train[name]
    return [
        (dataset.tokenizers.source.decode(corpus.source[i]), dataset.tokenizers.target.decode(corpus.target[i]))
        for i in range(len(corpus))
    ]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_clean_text_goes_in_and_comes_out_whole(tmp_path: Path) -> None:
    pairs, valid = english_german(200), english_german(20, seed=1)
    dataset = make(tmp_path, pairs, valid)
    assert text_of(dataset) == pairs
    assert dataset.valid_text == ([pair[0] for pair in valid], [pair[1] for pair in valid])
    assert dataset.valid is not None and len(dataset.valid) == 20
    assert dataset.meta["shared_vocabulary"] is dataset.tokenizers.shared is True
    entry = dataset.meta["train"][0]
    assert entry["pairs"] == entry["pairs_read"] == 200
    assert entry["source_tokens"] == dataset.train["train"].source.lengths.sum()
    assert dataset.meta["cleaning"] == {"train": {}}
    assert set(dataset.meta["settings"]) == set(PrepareSettings.__dataclass_fields__)
    dataset.verify()


def test_every_dropped_pair_is_counted_with_its_reason_and_shown(tmp_path: Path) -> None:
    good, valid = english_german(100), english_german(5, seed=1)
    bad: dict[str, Pairs] = {
        "empty": [("", "leer"), ("empty", "  ")],
        "control": [("bell \x07", "Glocke")],
        "identical": [("OK computer", "OK computer")],
        "too-long": [("long " * 150, "lang " * 150)],
        "ratio": [("short", "ein sehr langer Satz, der nicht passen kann und soll")],
        "overlap": [(valid[0][0], "anders"), ("other", valid[1][1])],
        "duplicate": [good[3], good[3]],
    }
    pairs = [*good, *(pair for listed in bad.values() for pair in listed)]
    dataset = make(tmp_path, pairs, valid)
    cleaning = dataset.meta["cleaning"]["train"]
    assert {reason: entry["count"] for reason, entry in cleaning.items()} == {
        key: len(value) for key, value in bad.items()
    }
    assert cleaning["empty"]["examples"][0]["where"].endswith(f"train.en:{len(good) + 1}")
    assert cleaning["overlap"]["examples"][0]["source"] == valid[0][0]
    assert text_of(dataset) == good
    kept_and_dropped = len(dataset.train["train"]) + sum(entry["count"] for entry in cleaning.values())
    assert kept_and_dropped == dataset.meta["train"][0]["pairs_read"] == len(pairs)


def test_reasons_to_keep_are_obeyed(tmp_path: Path) -> None:
    good = english_german(50)
    odd = [
        ("OK computer", "OK computer"),
        good[0],
        ("bell \x07", "Glocke"),
        ("short", "x " * 40 + "y"),
        ("a " * 120, "b " * 120),
    ]
    keep = ("identical", "duplicate", "control", "ratio", "too-long", "overlap")
    dataset = make(tmp_path, [*good, *odd], [good[1]], keep=keep)
    assert len(dataset.train["train"]) == 55
    assert dataset.meta["cleaning"] == {"train": {}}


def test_invalid_bytes_and_columns_are_counted(tmp_path: Path) -> None:
    good = english_german(50)
    lines = ["\t".join(pair).encode() for pair in good]
    path = tmp_path / "train.tsv"
    path.write_bytes(b"\n".join([*lines, b"bad \xff\tschlecht", b"one column", b"a\tb\tc"]) + b"\n")
    meta = deepnmt.prepare(tsv=path, out=tmp_path / "d", vocab_size=400, workers=1, **LANGUAGES).meta
    assert {reason: entry["count"] for reason, entry in meta["cleaning"]["train"].items()} == {"columns": 2, "utf8": 1}
    assert text_of(Dataset.open(tmp_path / "d")) == good


def test_nothing_is_dropped_from_held_out_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = write_pairs(tmp_path, "train", english_german(50))
    odd = [("", "leer"), ("same", "same"), ("same", "same"), ("x\x07", "y"), ("w " * 300, "v"), ("\u00a0 a  b ", "c")]
    valid = write_pairs(tmp_path, "valid", odd)
    with valid[0].open("ab") as file:
        file.write(b"bad \xff byte\n")
    with valid[1].open("ab") as file:
        file.write(b"ok\n")
    command = ["prepare", "--source", str(train[0]), "--target", str(train[1]), "--valid-source", str(valid[0])]
    assert main([*command, "--valid-target", str(valid[1]), *SMALL, "--out", str(tmp_path / "d")]) == 0
    dataset = Dataset.open(tmp_path / "d")
    assert dataset.valid is not None and len(dataset.valid) == 7
    assert dataset.valid_text is not None and dataset.valid_text[0] == [*(pair[0] for pair in odd), "bad \ufffd byte"]
    noted = {reason: entry["count"] for reason, entry in dataset.meta["valid"]["noted"].items()}
    assert noted == {"empty": 1, "identical": 2, "control": 2, "too-long": 1}
    assert "valid: 1 unusual pair kept: a side is empty" in capsys.readouterr().out


def test_a_validation_set_is_held_out_of_the_training_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "CHUNK_PAIRS", 40)
    pairs, test = english_german(300), write_pairs(tmp_path, "test", english_german(30)[10:])
    pairs += [("", "leer"), *pairs[::2], *((source, f"Auch: {target}") for source, target in pairs[:50])]
    tests = {"test_source": test[0], "test_target": test[1]}
    found = []
    for name, listed in (("one", pairs), ("other", list(reversed(pairs)))):
        (tmp_path / name).mkdir()
        dataset = make(tmp_path / name, listed, hold_out=30, keep=("overlap", "duplicate"), **tests)
        assert dataset.valid is not None and dataset.valid_text is not None and len(dataset.valid) == 30
        valid = set(zip(*dataset.valid_text, strict=True))
        assert len(valid) == 30 and not valid & set(english_german(30)[10:])
        kept, counts = text_of(dataset), {k: v["count"] for k, v in dataset.meta["cleaning"]["train"].items()}
        assert kept == [pair for pair in listed if all(pair) and pair not in valid]
        assert counts["held-out"] == 30 and sum(counts.values()) + len(kept) == len(pairs)
        assert dataset.meta["settings"]["hold_out"] == 30
        found.append(valid)
    assert found[0] == found[1], "in any order of the text"
    places = sorted(i for i, pair in enumerate(pairs[:300]) if pair in found[0])
    assert places[0] < 60 and places[-1] > 240, "from everywhere"

    make(tmp_path / "one", pairs, hold_out=30, overwrite=True, **tests)
    dataset = Dataset.open(tmp_path / "one" / "data")
    assert dataset.valid_text is not None and not {s for s, _ in text_of(dataset)} & set(dataset.valid_text[0])


def test_what_is_held_out_is_clean_and_comes_from_a_corpus_without_a_tag(tmp_path: Path) -> None:
    dirty = [
        *english_german(100),
        *[("x\x07", f"{i}") for i in range(100)],
        *[("w " * 150, f"{i}") for i in range(100)],
    ]
    tagged, real = write_pairs(tmp_path, "bt", english_german(100, seed=1)), write_pairs(tmp_path, "real", dirty)
    options: dict[str, Any] = {**LANGUAGES, "vocab_size": 400, "workers": 1, "out": tmp_path / "d"}
    corpora = {"bt": tagged, "real": real}
    dataset = deepnmt.prepare(corpora=corpora, tags={"bt": "<bt>"}, hold_out=20, **options)
    assert dataset.valid_text is not None and set(zip(*dataset.valid_text, strict=True)) < set(dirty[:100])
    assert dataset.meta["valid"]["noted"] == {}
    with pytest.raises(InputError, match="hold_out needs a corpus without a tag"):
        deepnmt.prepare(corpora={"bt": tagged}, tags={"bt": "<bt>"}, hold_out=20, overwrite=True, **options)
    write_pairs(tmp_path, "real", dirty[90:])
    with pytest.raises(InputError, match=r"hold_out = 30, but only \d of 120 pairs sampled from .* pass the clean"):
        deepnmt.prepare(source=real[0], target=real[1], hold_out=30, overwrite=True, **options)


@pytest.mark.parametrize("pretokenizer", ["none", "moses"])
def test_the_dataset_depends_neither_on_the_number_of_workers_nor_on_the_size_of_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pretokenizer: str
) -> None:
    pairs = [*english_german(300), *english_german(100), ("", "x")]
    datasets = []
    for workers, size in ((1, 40), (2, 40), (1, 7)):
        monkeypatch.setattr(preparing, "CHUNK_PAIRS", size)
        monkeypatch.setattr(held_out, "CHUNK_PAIRS", size)
        folder = tmp_path / f"{workers}-{size}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        write_pairs(folder, "t", pairs)
        options: dict[str, Any] = {**LANGUAGES, "vocab_size": 400, "pretokenizer": pretokenizer, "workers": workers}
        options |= {"hold_out": 20, "tokenizer_lines": 90}
        deepnmt.prepare(source="t.en", target=["t.de"], out="data", **options)
        datasets.append(files_of(folder / "data"))
    metas = [json.loads(files.pop("dataset.json")) for files in datasets]
    for meta in metas:
        del meta["seconds"]
    assert metas[0] == metas[1] == metas[2]
    assert datasets[0] == datasets[1] == datasets[2]
    assert metas[0]["cleaning"]["train"]["duplicate"]["count"] == 100
    assert metas[0]["tokenizer"]["learnt_from_pairs"] == 70


@pytest.mark.parametrize("unit", ["words", "subwords"])
def test_the_longest_side_is_measured_in_the_unit_asked_for(tmp_path: Path, unit: str) -> None:
    pairs = english_german(60)
    limit = 7 if unit == "words" else 14
    dataset = make(tmp_path, pairs, length_unit=unit, max_length=limit, max_ratio=0)
    if unit == "words":
        kept = [pair for pair in pairs if max(len(side.split()) for side in pair) <= limit]
        assert text_of(dataset) == kept != pairs
    else:
        corpus = dataset.train["train"]
        assert np.maximum(corpus.source.lengths, corpus.target.lengths).max() <= limit
        assert len(corpus) + dataset.meta["cleaning"]["train"]["too-long"]["count"] == 60


def test_corpora_keep_their_names_weights_and_tags(tmp_path: Path) -> None:
    news, back = english_german(60), english_german(60, seed=5)
    files = [*write_pairs(tmp_path, "news", news), *write_pairs(tmp_path, "back", back)]
    command = ["prepare", "--corpus", "news", *map(str, files[:2]), "--corpus", "bt", *map(str, files[2:]), *SMALL]
    assert main([*command, "--tag", "bt=<bt>", "--weight", "bt=0.5", "--out", str(tmp_path / "d")]) == 0
    dataset = Dataset.open(tmp_path / "d")
    assert [(entry["name"], entry["weight"], entry["tag"]) for entry in dataset.meta["train"]] == [
        ("news", 1.0, None),
        ("bt", 0.5, "<bt>"),
    ]
    assert text_of(dataset, "news") == news
    assert text_of(dataset, "bt") == [(f"<bt> {source}", target) for source, target in back]
    tag = dataset.tokenizers.source.opening("<bt>")[0]
    assert all(dataset.train["bt"].source[i][0] == tag for i in range(60))
    assert dataset.tokenizers.shared


def test_a_held_out_line_that_begins_with_a_tag_is_encoded_and_compared_like_a_tagged_one(tmp_path: Path) -> None:
    pairs = english_german(60)
    tagged = [("<bt> " + pairs[0][0], pairs[0][1]), (pairs[1][0], "<bt> " + pairs[1][1]), ("other", "anders")]
    files = [*write_pairs(tmp_path, "train", pairs), *write_pairs(tmp_path, "valid", tagged)]
    command = ["prepare", "--source", str(files[0]), "--target", str(files[1]), "--tag", "train=<bt>", *SMALL]
    held_out = ["--valid-source", str(files[2]), "--valid-target", str(files[3])]
    assert main([*command, *held_out, "--out", str(tmp_path / "d")]) == 0
    dataset = Dataset.open(tmp_path / "d")
    assert dataset.valid is not None
    assert dataset.valid_text == ([source for source, _ in tagged], [target for _, target in tagged])
    for i, (source, _) in enumerate(tagged):
        assert dataset.valid.source[i].tolist() == dataset.tokenizers.source.encode(source)
    tag = dataset.tokenizers.target.opening("<bt>")[0]
    assert not any(tag in dataset.valid.target[i] for i in range(3)), "a target has no tags, as in training"
    assert dataset.meta["cleaning"]["train"]["overlap"]["count"] == 2


def test_a_line_of_encoded_data_does_not_fill_the_vocabulary(tmp_path: Path) -> None:
    pairs, draw = english_german(200), random.Random(0)
    junk = ["".join(draw.choices("abcdefghijklmnop", k=20_000)) for _ in range(2)]
    for name, listed in (("clean", pairs), ("dirty", [*pairs, (junk[0], junk[1])])):
        (tmp_path / name).mkdir()
        make(tmp_path / name, listed)
    clean, dirty = (Dataset.open(tmp_path / name / "data") for name in ("clean", "dirty"))
    assert clean.tokenizers.source.pieces == dirty.tokenizers.source.pieces
    assert dirty.meta["cleaning"]["train"]["too-long"]["count"] == 1
    with pytest.raises(InputError, match=r"every word is longer than 1,600 characters, too long for max_length = 100"):
        make(tmp_path / "dirty", [(junk[0], junk[1])], overwrite=True)
    kept = make(tmp_path / "dirty", [*pairs, (junk[0], junk[1])], keep=["too-long"], overwrite=True)
    assert kept.tokenizers.source.pieces != clean.tokenizers.source.pieces


def test_separate_vocabularies_have_sizes_of_their_own(tmp_path: Path) -> None:
    dataset = make(tmp_path, english_german(200), joint=False, vocab_size=(330, 360), min_frequency=1)
    assert not dataset.meta["shared_vocabulary"]
    assert (dataset.meta["source_vocab_size"], dataset.meta["target_vocab_size"]) == (330, 360)


def test_the_paper_s_way_has_unknown_words_and_a_cut_off(tmp_path: Path) -> None:
    pairs = [*english_german(100), ("a rare ħ", "ein seltenes ħ")]
    dataset = make(tmp_path, pairs, byte_fallback=False, min_frequency=5, vocab_size=200)
    assert dataset.meta["train"][0]["source_unknown"] >= 1
    assert "ħ" not in dataset.tokenizers.source.pieces
    corpus = dataset.train["train"]
    ids = np.concatenate([corpus.source.ids, corpus.target.ids])
    counts = np.bincount(ids, minlength=dataset.tokenizers.source.vocab_size)
    assert all(counts[i] >= 5 for i, piece in enumerate(dataset.tokenizers.source.pieces) if i >= 4 and piece != "▁")


def test_a_tokeniser_learns_from_no_more_lines_than_asked(tmp_path: Path) -> None:
    dataset = make(tmp_path, english_german(100), tokenizer_lines=30)
    assert dataset.meta["tokenizer"]["learnt_from_pairs"] == 25
    assert dataset.meta["settings"]["tokenizer_lines"] == 30
    assert text_of(dataset) == english_german(100)


@pytest.mark.parametrize("direction", ["same", "opposite"])
def test_the_tokenisers_of_another_dataset_are_used_as_they_are(tmp_path: Path, direction: str) -> None:
    first = make(tmp_path, english_german(100), lowercase=True)
    other = write_pairs(tmp_path, "other", english_german(30, seed=9))
    command = ["prepare", "--tokenizer", str(first.folder), "--workers", "1", "--out", str(tmp_path / "e")]
    if direction == "same":
        command += ["--source", str(other[0]), "--target", str(other[1]), "--source-lang", "en", "--target-lang", "de"]
    else:
        command += ["--source", str(other[1]), "--target", str(other[0]), "--source-lang", "de", "--target-lang", "en"]
    assert main(command) == 0
    second = Dataset.open(tmp_path / "e")
    assert second.tokenizers.source.pieces == first.tokenizers.source.pieces
    assert second.tokenizers.source.language == ("en" if direction == "same" else "de")
    english = [pair[0 if direction == "same" else 1] for pair in text_of(second)]
    assert english == [source.lower() for source, _ in english_german(30, seed=9)]


def test_a_text_that_a_sentencepiece_model_normalises_to_nothing_is_empty(tmp_path: Path) -> None:
    model = tmp_path / "nfkc.model"
    options: dict[str, Any] = {"model_prefix": str(tmp_path / "nfkc"), "vocab_size": 80, "hard_vocab_limit": False}
    lines = iter([line for pair in english_german(50) for line in pair])
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, minloglevel=2, **options)
    dataset = make(tmp_path, [*english_german(50), ("\u200b", "unsichtbar"), ("nothing", "\u200b")], tokenizer=model)
    assert dataset.meta["cleaning"]["train"]["empty"]["count"] == 2


def test_a_sentencepiece_model_is_used_as_it_is(tmp_path: Path) -> None:
    first = make(tmp_path, english_german(100))
    model = tmp_path / "their.model"
    subwords: Any = first.tokenizers.source.subwords
    model.write_bytes(subwords.model)
    pairs = english_german(30, seed=9)
    (tmp_path / "2").mkdir()
    second = make(tmp_path / "2", pairs, tokenizer=(model,))
    assert second.tokenizers.shared
    assert second.tokenizers.target.pieces == first.tokenizers.target.pieces
    assert text_of(second) == pairs


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"lowercase": True}, "lowercase = true has no effect on a given tokeniser, and .*data has false"),
        ({"pretokenizer": "moses"}, "pretokenizer = moses has no effect on a given tokeniser, and .*data has none"),
        ({"normalization": "nfkc"}, "normalization = nfkc has no effect"),
    ],
)
def test_preprocessing_that_a_given_tokeniser_lacks_is_refused(
    tmp_path: Path, asked: dict[str, Any], message: str
) -> None:
    (tmp_path / "2").mkdir()
    first = make(tmp_path, english_german(60))
    with pytest.raises(InputError, match=message):
        make(tmp_path / "2", english_german(60), tokenizer=first.folder, **asked)
    files = tuple(first.folder / f"tokenizer.{side}.json" for side in ("source", "target"))
    with pytest.raises(InputError, match=r"tokenizer.target.json is a tokeniser for de, not fr"):
        make(tmp_path / "2", english_german(60), tokenizer=files, target_lang="fr")
    assert make(tmp_path / "2", english_german(60), tokenizer=files).tokenizers.shared
    lowered = make(tmp_path / "2", english_german(60), lowercase=True, out=tmp_path / "l")
    make(tmp_path / "2", english_german(60), tokenizer=lowered.folder, lowercase=True, overwrite=True)


@pytest.mark.parametrize("joint", [True, False])
def test_codes_of_subword_nmt_are_used(tmp_path: Path, joint: bool) -> None:
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\nt h\nth e</w>\nd e\nde r</w>\n")
    pairs = english_german(60)
    dataset = make(tmp_path, pairs, codes=codes, joint=joint, min_frequency=1)
    assert dataset.tokenizers.shared is joint
    assert "the" in dataset.tokenizers.source.pieces
    assert ("the" in dataset.tokenizers.target.pieces) is joint
    assert text_of(dataset) == pairs


BAD_INPUT = {
    "--source {short} --target {de}": "{short} has 49 lines but {de} has 50",
    "--source {folder} --target {de}": "{folder} is a folder, not a text file",
    "{both} --valid-source {empty} --valid-target {empty}": "{empty} is empty",
    "{both} --test-tsv {columns}": "line 2 of {columns} has 1 column: a TSV file needs two tab-separated columns",
    "--tsv {three}": "cleaning (not two columns: 50); a TSV file needs two tab-separated columns; `cut -f1,2`",
    "--tsv {three} --hold-out 5": "no line of {three} has two columns: a TSV file needs two tab-separated columns",
    "--source {blank} --target {de}": "({blank} and {de}) is left after cleaning (a side is empty: 50)",
    "--source {en} {de} --target {de}": "source has 2 files but target has 1",
    "": "no training text",
    "--source nowhere --target {de}": "nowhere does not exist",
    "{both} --max-ratio 0.5": "--max-ratio 0.5 must be at least 1",
    "{both} --max-ratio nan": "--max-ratio nan must be at least 1",
    "{both} --vocab-size 1": "--vocab-size 1 must be at least 5",
    "{both} --vocab-size 3000000000": "--vocab-size 3000000000 must be at least 5 and below 1e+09",
    "{both} --vocab-size 500 300": "--vocab-size 500 and 300: two sizes need joint = false (--separate)",
    "{both} --character-coverage 0.5": "--character-coverage 0.5 must be from 0.98 to 1",
    "{both} --weight train=inf": "must be above zero and finite",
    "{both} --keep utf8": "invalid choice: 'utf8'",
    "{both} --tag 'bt=<bt>'": "tags names corpus 'bt'; the corpora are train",
    "{both} --tag 'train=a b'": "must be one word",
    "{both} --tag 'train=</s>'": "must be one word, not a special symbol",
    "{both} --tag train": "--tag 'train' must be NAME=VALUE",
    "{both} --weight train=much": "'much' is not a number",
    "{both} --weight train=-1": "must be above zero",
    "{both} --codes x y z": "codes takes one value for both sides",
    "{both} --pretokenizer mecab": "invalid choice: 'mecab'",
    "{both} --source-lang=": "--source-lang '' is not a language code, such as en",
    "{both} --target-lang a/b": "--target-lang 'a/b' is not a language code, such as en",
    "{both} --target-lang German": "--target-lang 'German' is not a language code; use de",
    "{both} --tokenizer nowhere": "nowhere does not exist",
    "{both} --hold-out 11": "--hold-out 11 is more than a fifth of the 50 pairs of {en} and {de}; hold out fewer",
    "--source {blank} --target {de} --hold-out 5": "only 0 of 20 pairs sampled from {blank} and {de} pass the cleaning",
    "{both} --hold-out 0": "--hold-out 0 must be at least 1",
    "{both} --hold-out 5 --valid-source {en} --valid-target {de}": "from the training text: omit it, or --valid-source",
    "--source /dev/null --target {de} --hold-out 5": "/dev/null is not a regular file; --hold-out reads the text twice",
    "{both} --workers -1": "--workers -1 must be at least 1",
    "{both} --no-such-option 3": "see deepnmt prepare --help",
    "--corpus ../up {en} {de}": "corpus name '../up'",
    "--corpus a {en} {de} --corpus a {en} {de}": "two corpora have the same name",
}


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.items())
def test_bad_input_is_refused_in_one_sentence_and_leaves_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    message: str,
    unchanged: Callable[[Path], Any],
) -> None:
    inputs, old = tmp_path / "in", tmp_path / "old"
    inputs.mkdir()
    old.mkdir()
    write_json(old / "dataset.json", {})
    en, de = write_pairs(inputs, "train", english_german(50))
    names = {"en": en, "de": de, "folder": inputs, "both": f"--source {en} --target {de}"}
    for name, content in {
        "short": "x\n" * 49,
        "empty": "",
        "columns": "a\tb\nno tab\n",
        "blank": "\n" * 50,
        "three": "a\tb\tc\n" * 50,
    }.items():
        names[name] = inputs / name
        (inputs / name).write_text(content)
    given = shlex.split(arguments.format(**names))
    for out in (tmp_path / "deep" / "new", old):
        with unchanged(tmp_path):
            assert main(["prepare", *SMALL, *given, "--overwrite", "--out", str(out)]) == 2
        captured = capsys.readouterr()
        assert message.format(**names) in captured.err
        assert captured.err.splitlines()[-1].startswith("deepnmt: ")


@pytest.mark.parametrize(
    ("names", "swapped"),
    [
        (("train.en", "train.de"), False),
        (("train.de", "train.en"), True),
        (("train.de.txt", "train.eng"), True),
        (("news.de-en.en", "news.de-en.de"), False),
        (("train.de", "train.fr"), False),
        (("source", "target"), False),
    ],
)
def test_files_given_in_the_wrong_order_are_noticed_by_their_names(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], names: tuple[str, str], swapped: bool
) -> None:
    files = [tmp_path / name for name in names]
    for file, lines in zip(files, zip(*english_german(20), strict=True), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines))
    train = write_pairs(tmp_path, "other", english_german(60, seed=1))
    options: dict[str, Any] = {**LANGUAGES, "vocab_size": 400, "workers": 1, "out": tmp_path / "d"}
    deepnmt.prepare(source=train[0], target=train[1], valid_source=files[0], valid_target=files[1], **options)
    warning = f"deepnmt: {files[0]} is given as en and {files[1]} as de; are they swapped?\n"
    assert (warning in capfd.readouterr().err) is swapped


def test_mistakes_in_a_call_from_python_are_refused(tmp_path: Path) -> None:
    for mistake, message in {
        "vocab_size": "vocab_size takes one value for both sides, or one per side, not 0",
        "pretokenizer": "pretokenizer takes one value",
    }.items():
        with pytest.raises(InputError, match=message):
            make(tmp_path, english_german(50), **{mistake: []})
    with pytest.raises(InputError, match=r"corpus 'a' must be a source file and a target file, not 'a\.tsv'"):
        make(tmp_path, english_german(50), corpora={"a": "a.tsv"})


def test_the_current_folder_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for out in (".", ".."):
        with pytest.raises(InputError, match="is the current folder or contains it; choose another `out`"):
            make(tmp_path, english_german(50), out=out, overwrite=True)


def test_a_dataset_that_another_process_made_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_another(*arguments: object) -> None:
        (tmp_path / "data").mkdir()
        write_json(tmp_path / "data" / "dataset.json", {})

    monkeypatch.setattr(preparing, "write_held_out", make_another)
    with pytest.raises(InputError, match="already exists"):
        make(tmp_path, english_german(50), english_german(5, seed=1))
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["dataset.json"]


def test_a_file_name_that_is_not_utf8_is_recorded(tmp_path: Path) -> None:
    name = os.fsdecode(b"train\xe4.tsv")
    (tmp_path / name).write_text("".join(f"{source}\t{target}\n" for source, target in english_german(50)))
    dataset = deepnmt.prepare(tsv=tmp_path / name, out=tmp_path / "d", vocab_size=400, workers=1, **LANGUAGES)
    assert (
        Dataset.open(tmp_path / "d").meta["train"][0]["files"]
        == [[str(tmp_path / name)]]
        == dataset.meta["train"][0]["files"]
    )


def test_a_symbolic_link_to_a_dataset_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "large").mkdir(parents=True)
    (tmp_path / "data").symlink_to(tmp_path / "elsewhere" / "large")
    train = write_pairs(tmp_path, "train", english_german(50))
    command = ["prepare", "--source", str(train[0]), "--target", str(train[1]), *SMALL, "--out", str(tmp_path / "data")]
    for options in ([], ["--overwrite"]):
        assert main([*command, *options]) == 0
        assert (tmp_path / "data").is_symlink()
        assert len(Dataset.open(tmp_path / "elsewhere" / "large").train["train"]) == 50
        assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["large"]


def test_a_dataset_is_replaced_only_when_asked_and_other_folders_never(tmp_path: Path) -> None:
    make(tmp_path, english_german(50))
    with pytest.raises(InputError, match="already exists; choose another `out` or pass `overwrite=True`"):
        make(tmp_path, english_german(60))
    assert len(Dataset.open(tmp_path / "data").train["train"]) == 50
    (tmp_path / "data" / "dataset.json").unlink()
    with pytest.raises(InputError, match="is not a dataset and will not be overwritten"):
        make(tmp_path, english_german(60), overwrite=True)


@pytest.mark.parametrize(
    ("failure", "status"),
    [(OSError(errno.ENOSPC, "No space left on device"), 1), (KeyboardInterrupt(), 130)],
    ids=["full disk", "ctrl-c"],
)
def test_a_failure_midway_leaves_the_old_dataset_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: BaseException,
    status: int,
) -> None:
    make(tmp_path, english_german(50))
    before = files_of(tmp_path / "data")

    def fail(*arguments: object) -> None:
        raise failure

    train = write_pairs(tmp_path, "new", english_german(60))
    command = ["prepare", "--source", str(train[0]), "--target", str(train[1]), *SMALL, "--out", str(tmp_path / "data")]
    with monkeypatch.context() as patch:
        patch.setattr(CorpusWriter, "append", fail)
        assert main([*command, "--overwrite"]) == status
    if status == 1:
        assert "no space left to write" in capsys.readouterr().err
    assert files_of(tmp_path / "data") == before
    assert not list(tmp_path.glob(".data*"))
    assert main([*command, "--overwrite"]) == 0
    assert len(Dataset.open(tmp_path / "data").train["train"]) == 60


def test_what_a_killed_call_left_is_cleared_away_by_the_next(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    dead, alive, other = (
        tmp_path / f".{name}.{_host()}-{number}-abcd.partial"
        for name, number in (("d[1]", int(process.stdout)), ("d[1]", os.getppid()), ("d1", int(process.stdout)))
    )
    for folder in (dead, alive, other):
        folder.mkdir()
    make(tmp_path, english_german(50), out=tmp_path / "d[1]")
    assert not dead.exists()
    assert alive.exists() and other.exists()


def test_ctrl_c_ends_a_call_with_workers_and_leaves_nothing(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.write_text("b\n" * 3 * preparing.CHUNK_PAIRS)
    os.mkfifo(source)
    command = [sys.executable, "-m", "deepnmt", "prepare", "--source", str(source), "--target", str(target)]
    command += ["--source-lang", "en", "--target-lang", "de", "--workers", "2", "--out", str(tmp_path / "out" / "d")]
    # A shell's job in the background has Ctrl-C switched off, and would hand that down.
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, text=True, preexec_fn=listen)
    writer = os.open(source, os.O_RDWR)  # waits for nobody
    try:
        while not list((tmp_path / "out").glob(".d.*")):
            time.sleep(0.05)
        os.write(writer, b"a\n" * (preparing.CHUNK_PAIRS + 5))  # the first chunk is at work, the second incomplete
        time.sleep(1)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
        os.close(writer)
    assert errors.splitlines()[-1] == "deepnmt: interrupted"
    assert process.returncode == 130
    assert not (tmp_path / "out").exists()


def test_the_summary_says_what_was_kept_dropped_and_what_to_do_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write_pairs(tmp_path, "train", [*english_german(50), ("", "x")])
    out = tmp_path / "d"
    assert main(["prepare", "--source", str(train[0]), "--target", str(train[1]), *SMALL, "--out", str(out)]) == 0
    shown = capsys.readouterr()
    for part in (
        "empty: a side is empty",
        "1.96 %",
        "no validation set",
        "--hold-out N",
        "Shared vocabulary:",
        "sentences/s",
    ):
        assert part in shown.out
    assert f"Next: deepnmt train demo --data {out} --out RUN" in shown.out.replace("\n", "")
    assert "cleaning: 51 pairs" in shown.err
    assert "UTF-8" not in shown.out and "is small" not in shown.out

    again = ["--source", str(train[0]), "--target", str(train[1]), *SMALL, "--separate", "--overwrite"]
    assert main(["prepare", *again, "--out", str(out)]) == 0
    assert f"deepnmt train demo model.share_embeddings=false --data {out} --out RUN" in capsys.readouterr().out

    train[1].write_bytes(train[1].read_bytes() + "schön\n".encode("latin-1"))
    train[0].write_text(train[0].read_text() + "nice\n")
    (tmp_path / "tiny.tsv").write_text("Hello\tHallo\n")
    large = ["--source-lang", "en", "--target-lang", "de", "--out", str(out), "--overwrite"]
    assert main(["prepare", "--source", str(train[0]), "--target", str(train[1]), *large]) == 0
    shown = capsys.readouterr()
    assert "train: many pairs are not valid UTF-8; if a file is Latin-1, convert it with `iconv" in shown.out
    assert "The text is small for this --vocab-size, so rare words are split finely; try --vocab-size " in shown.out
    assert main(["prepare", "--tsv", str(tmp_path / "tiny.tsv"), *large, "--no-byte-fallback"]) == 0
    assert "try --vocab-size 5." in capsys.readouterr().out
