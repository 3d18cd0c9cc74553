"""`deepnmt distill`: a teacher's translations as training text for a student."""

import os
import shutil
from pathlib import Path

import pytest
from digits import reversed_digits
from sacrebleu.metrics.chrf import CHRF

import deepnmt
from deepnmt.cli import main
from deepnmt.decoding.translator import Translator
from deepnmt.errors import InputError

SOURCES, TARGETS = map(list, zip(*reversed_digits(30, seed=7), strict=True))
SHORT = ["--min-length", "2", "--max-length", "6"]


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """In the working directory: train.de, and train.en with a reference for each line, one of each empty."""
    monkeypatch.chdir(tmp_path)
    for name, lines in {"train.de": [*SOURCES, "", "eins"], "train.en": [*TARGETS, "one", ""]}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


def distill(*arguments):
    return main(["distill", *map(str, arguments), "--threads", "1", "--device", "cpu"])


def written(name):
    return [Path(f"{name}.{language}").read_text(encoding="utf-8").splitlines() for language in ("de", "en")]


def test_the_student_gets_the_best_translations(digits_model, texts, capsys):
    assert distill(digits_model, "--source", "train.de", "--out", "kd/train", "--beam", "3") == 0
    source, target = written("kd/train")
    assert source == [*SOURCES, "eins"]  # an empty line has no pair
    assert target == Translator(digits_model).translate(source, beam=3)
    assert (
        "31 pairs in kd/train.en (the teacher's) and kd/train.de (1 line without a translation left out)"
        in capsys.readouterr().err
    )


def test_of_the_n_best_the_student_gets_the_one_most_like_the_reference(random_model, texts):
    assert distill(random_model, "--source", "train.de", "--reference", "train.en", "--out", "kd", *SHORT) == 0
    source, target = written("kd")
    found = Translator(random_model).translate_nbest(source, beam=4, nbest=4, min_length=2, max_length=6)
    chrf, changed = CHRF(), 0
    for hypotheses, reference, chosen in zip(found, [*TARGETS, ""], target, strict=True):
        likeness = [chrf.sentence_score(each.text, [reference]).score for each in hypotheses]
        assert chosen == hypotheses[likeness.index(max(likeness))].text
        changed += chosen != hypotheses[0].text
    assert changed > 5


@pytest.mark.parametrize(("command", "translations"), [("distill", "target"), ("backtranslate", "source")])
def test_files_of_one_language_are_named_by_their_sides(random_model, texts, command, translations):
    """A teacher writes the target of its student, and back-translation the source."""
    shutil.copytree(random_model, "same")
    shutil.copy("same/tokenizer.source.json", "same/tokenizer.target.json")
    text = {"distill": ["--source", "train.de"], "backtranslate": ["train.de", "--beam", "2"]}[command]
    assert main([command, "same", *text, "--out", "out", *SHORT, "--threads", "1", "--device", "cpu"]) == 0
    given = {"source", "target"} - {translations}
    assert Path(f"out.{given.pop()}").read_text(encoding="utf-8").splitlines() == [*SOURCES, "eins"]
    assert Path(f"out.{translations}").read_text(encoding="utf-8").splitlines() != [*SOURCES, "eins"]


def test_an_ensemble_teaches_and_ranks_share_the_work(random_model, texts, monkeypatch):
    shutil.copytree(random_model, "second")
    options = ["--source", "train.de", "--reference", "train.en", "--nbest", "3", "--chunk", "4", *SHORT]
    assert distill(random_model, "second", *options, "--out", "one") == 0
    for rank in (2, 0, 1):
        monkeypatch.setitem(os.environ, "RANK", str(rank))
        monkeypatch.setitem(os.environ, "WORLD_SIZE", "3")
        assert distill(random_model, "second", *options, "--out", "three") == 0
    assert written("three") == written("one")


def test_an_interrupted_call_finds_its_place_in_the_reference(random_model, texts, monkeypatch):
    options = ["--source", "train.de", "--reference", "train.en", "--chunk", "6", *SHORT]
    assert distill(random_model, *options, "--out", "whole") == 0
    translate, calls = Translator.translate_nbest, []

    def killed_in_the_third_chunk(self, *arguments, **settings):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return translate(self, *arguments, **settings)

    monkeypatch.setattr(Translator, "translate_nbest", killed_in_the_third_chunk)
    assert distill(random_model, *options, "--out", "parts") == 130
    assert distill(random_model, *options, "--out", "parts") == 0
    assert len(calls) == 3 + 4  # six chunks, of which two were done
    assert written("parts") == written("whole")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", "nowhere"], "nowhere does not exist"),
        (["--source", "train.de", "--reference", "short.en"], "short.en has 1 lines but train.de has 32"),
        (["--source", "train.de", "--reference", "empty.en"], "empty.en is empty"),
        (["--source", "train.de", "--nbest", "4"], "--nbest 4 needs a reference"),
        (["--source", "train.de", "--reference", "train.en", "--nbest", "9"], "nbest"),
    ],
)
def test_distill_refuses_before_it_writes(random_model, texts, arguments, message, capsys, unchanged):
    (texts / "short.en").write_text("one\n")
    (texts / "empty.en").touch()
    with unchanged(texts):
        assert distill(random_model, *arguments, "--out", "new/kd") == 2
    assert message in capsys.readouterr().err


def test_neither_the_source_nor_the_reference_is_overwritten(random_model, texts, capsys, unchanged):
    (texts / "other.de").write_text("".join(f"{line}\n" for line in [*SOURCES, "", "eins"]), encoding="utf-8")
    with unchanged(texts):
        assert distill(random_model, "--source", "other.de", "--reference", "train.en", "--out", "train") == 2
    assert "--out train would overwrite train.en" in capsys.readouterr().err


def test_distillation_is_by_search(random_model, texts):
    with pytest.raises(InputError, match="omit sampling"):
        deepnmt.distill(random_model, "train.de", "kd", sampling=True)
