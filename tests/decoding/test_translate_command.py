"""`deepnmt translate`, `backtranslate` and `evaluate` as a user meets them."""

import fcntl
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from digits import digit_tokenizers, reversed_digits, tiny_model

import deepnmt
from deepnmt.api.synthetic import _merge_if_last
from deepnmt.cli import main
from deepnmt.data.tokenizer import LanguageTags, Tokenizer, TokenizerPair
from deepnmt.decoding.translator import Translator
from deepnmt.errors import InputError
from deepnmt.model.storage import save_model

PAIRS = reversed_digits(40, seed=5)
SOURCES, TARGETS = map(list, zip(*PAIRS, strict=True))


def run(*arguments) -> int:
    threads = [] if "--threads" in arguments else ["--threads", 1]
    return main([str(argument) for argument in (*arguments, *threads)])


@pytest.fixture
def feed(monkeypatch):
    return lambda content: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.de"
    path.write_text("\n".join([*SOURCES, "", "  ", "eins"]) + "\n", encoding="utf-8")
    return path


def test_a_pipe_goes_in_and_comes_out_line_by_line(digits_model, feed, capsysbinary):
    feed("\n".join([SOURCES[0], "", SOURCES[1]]).encode())
    assert run("translate", digits_model) == 0
    output, errors = capsysbinary.readouterr()
    assert output.decode().split("\n") == [TARGETS[0], "", TARGETS[1], ""]
    assert b"3 lines" in errors


def test_real_pipes(digits_model):
    """One subprocess: text in, text out, nothing else on standard output, and an early end of the reader is fine."""
    command = [sys.executable, "-m", "deepnmt", "translate", str(digits_model), "--threads", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdin.write(f"{SOURCES[0]}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline().decode() == f"{TARGETS[0]}\n"  # before the input ends
        process.stdout.close()
        process.stdin.write(f"{SOURCES[1]}\n".encode())
        process.stdin.flush()
        assert process.wait(60) == 141  # although the input is still open


def test_files_equal_the_library(digits_model, source, tmp_path):
    output = tmp_path / "deep" / "out.en"
    assert run("translate", digits_model, "--input", source, "--output", output, "--chunk", 7) == 0
    lines = output.read_text(encoding="utf-8").split("\n")
    assert lines == [*Translator(digits_model).translate(SOURCES), "", "", "eins", ""]
    assert [path.name for path in output.parent.iterdir()] == ["out.en"]


@pytest.mark.parametrize("options", [[], ["--nbest", 2, "--alignments"], ["--sampling", "--temperature", 2, "--json"]])
def test_an_interrupted_job_resumes_to_the_identical_file(random_model, source, tmp_path, monkeypatch, capsys, options):
    options = ["--chunk", 8, "--min-length", 3, "--max-length", 8, *options]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert run("translate", random_model, "--input", source, "--output", whole, *options) == 0

    original, calls = Translator.translate_nbest, []

    def interrupted(self, *arguments, **settings):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(self, *arguments, **settings)

    command = ["translate", random_model, "--input", source, "--output", resumed, *options]
    monkeypatch.setattr(Translator, "translate_nbest", interrupted)
    assert run(*command) == 130
    assert not resumed.exists()
    calls[:] = [1] * 10
    assert run(*command) == 0
    assert len(calls) == 10 + 3, "three chunks were done before"
    assert "resuming after line 24" in capsys.readouterr().err
    assert resumed.read_bytes() == whole.read_bytes()


def test_a_full_device_is_named(digits_model, source, capsys):
    assert run("translate", digits_model, "--input", source, "--output", "/dev/full") == 1
    assert capsys.readouterr().err == "deepnmt: No space left on device: /dev/full\n"


@pytest.mark.parametrize("changed", ["options", "prefixes"])
def test_another_job_does_not_continue_one(random_model, source, tmp_path, monkeypatch, changed):
    prefixes, output, original = tmp_path / "prefixes", tmp_path / "out", Translator.translate_nbest
    command = ["translate", random_model, "--input", source, "--output", output, "--chunk", 8, "--prefixes", prefixes]

    def failing(self, texts, **settings):
        if texts[0] == SOURCES[16]:
            raise KeyboardInterrupt
        return original(self, texts, **settings)

    prefixes.write_text("eins\n" * len(source.read_bytes().splitlines()))
    monkeypatch.setattr(Translator, "translate_nbest", failing)
    assert run(*command, "--beam", 1, "--max-length", 6) == 130
    monkeypatch.setattr(Translator, "translate_nbest", original)
    if changed == "prefixes":
        prefixes.write_text(prefixes.read_text().replace("eins", "zwei"))
    length = 6 if changed == "prefixes" else 3
    assert run(*command, "--beam", 1, "--max-length", length) == 0
    beginnings = prefixes.read_text().split("\n")[: len(SOURCES)]
    expected = Translator(random_model).translate(SOURCES, prefixes=beginnings, beam=1, max_length=length)
    assert output.read_text(encoding="utf-8").split("\n")[: len(SOURCES)] == expected


def test_columns_and_json_say_the_same(digits_model, feed, capsysbinary):
    feed(f"{SOURCES[0]}\n\n".encode())
    assert run("translate", digits_model, "--nbest", 3, "--alignments") == 0
    rows = [line.split("\t") for line in capsysbinary.readouterr().out.decode().splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "1", "2"]
    assert rows[0][2] == TARGETS[0]
    assert rows[3][2:] == ["", ""]
    feed(f"{SOURCES[0]}\n\n".encode())
    assert run("translate", digits_model, "--nbest", 3, "--alignments", "--json") == 0
    objects = [json.loads(line) for line in capsysbinary.readouterr().out.decode().splitlines()]
    assert [found["line"] for found in objects] == [1, 2]
    for row, hypothesis in zip(rows, objects[0]["hypotheses"], strict=False):
        assert row[1:3] == [f"{hypothesis['score']:.4f}", hypothesis["text"]]
        assert row[3] == " ".join(f"{s}-{t}" for s, t in hypothesis["alignment"]["links"])
    feed(f"{SOURCES[0]}\n".encode())
    assert run("translate", digits_model, "--scores", "--input", "-", "--output", "-") == 0
    score, text = capsysbinary.readouterr().out.decode().rstrip("\n").split("\t")
    assert (score, text) == tuple(rows[0][1:3])


def test_prefixes_come_from_a_file(digits_model, source, tmp_path, capsysbinary, feed):
    prefixes, packed = tmp_path / "prefixes", tmp_path / "two.gz"
    prefixes.write_text("neun\n\n")
    two = f"{SOURCES[0]}\n{SOURCES[1]}".encode()  # without a final line end
    packed.write_bytes(gzip.compress(two))
    for given in ("-", packed):
        feed(two)
        assert run("translate", digits_model, "--prefixes", prefixes, "--input", given) == 0
        first, second = capsysbinary.readouterr().out.decode().splitlines()
        assert first.startswith("neun")
        assert second == TARGETS[1]
    assert run("translate", digits_model, "--prefixes", prefixes, "--input", source) == 2
    assert f"prefixes has 2 lines but {source} has ".encode() in capsysbinary.readouterr().err
    for count, message in ((1, b"has more lines than the input (1)"), (3, b"has only 2 lines, fewer than the input")):
        feed(b"eins\n" * count)
        assert run("translate", digits_model, "--prefixes", prefixes) == 2
        assert message in capsysbinary.readouterr().err


def test_a_named_pipe_is_written_to_and_stays(digits_model, source, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(pipe.read_text)
        assert run("translate", digits_model, "--input", source, "--output", pipe) == 0
        assert read.result().splitlines() == Translator(digits_model).translate(source.read_text().splitlines())
    assert pipe.is_fifo()


def test_a_file_name_need_not_be_unicode(digits_model, source, tmp_path):
    odd = source.rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xe9"))
    assert run("translate", digits_model, "--input", odd, "--output", tmp_path / "out") == 0


def test_the_beam_of_the_model_bounds_the_n_best(digits_model, source, tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(digits_model, folder)
    meta = json.loads((folder / "meta.json").read_text())
    for decoding, status in (({"beam": 8}, 0), ({"beam": 2}, 2), ({"beem": 2}, 2), (5, 2)):
        (folder / "meta.json").write_text(json.dumps(meta | {"decoding": decoding}))
        assert run("translate", folder, "--input", source, "--output", tmp_path / "out", "--nbest", 6) == status
    errors = capsys.readouterr().err
    assert "nbest must be between 1 and the beam (2), not 6" in errors
    assert "meta.json: decoding.beem; did you mean beam?" in errors
    assert "meta.json: decoding must be a table of settings, not 5" in errors


def test_a_notebook_has_no_binary_standard_output(digits_model, source, monkeypatch):
    text = io.StringIO()
    monkeypatch.setattr(sys, "stdout", text)
    monkeypatch.setattr(sys, "stdin", None)
    assert deepnmt.translate_file(digits_model, source) == len(text.getvalue().splitlines()) == len(SOURCES) + 3


def test_invalid_input_is_translated_with_a_warning_that_names_the_line(digits_model, feed, capsysbinary):
    feed(b"eins\n\xff\xfe\x00zwei\n" + b"drei. " * 200 + b"\nvier\r\n\xe2\x80\xa8\n")
    assert run("translate", digits_model, "--max-source-length", 20) == 0
    output, errors = capsysbinary.readouterr()
    assert output.count(b"\n") == 5
    assert b"line 2 of standard input is not valid UTF-8" in errors
    assert b"line 3 of standard input has" in errors
    assert output.splitlines()[3] == b"vier"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere"], "the model folder /nowhere does not exist"),
        (["MODEL", "--input", "/nowhere.txt"], "/nowhere.txt does not exist"),
        (["MODEL", "--beam", "0"], "--beam 0 must be at least 1"),
        (["MODEL", "--beam", "x"], "argument --beam: invalid int value"),
        (["MODEL", "--precision", "int3"], "unknown precision 'int3'"),
        (["MODEL", "--threads", "0"], "threads must be at least 1"),
        (["MODEL", "--chunk", "0"], "--chunk 0 must be at least 1"),
        (["MODEL", "--input", "SOURCE", "--output", "SOURCE"], "is an input: name another file"),
        (["MODEL", "--prefixes", "SOURCE", "--output", "SOURCE"], "is an input: name another file"),
        (["MODEL", "--input", "SOURCE", "--output", "/"], "/ is a folder"),
        (["MODEL", "--nbest", "9"], "nbest must be between 1 and the beam (4), not 9"),
        (["MODEL", "--top-k", "9"], "--top-k 9 has no effect without sampling"),
        (["MODEL", "--device", "meta"], "device meta does not work here"),
    ],
)
def test_refusals_are_one_sentence(digits_model, source, arguments, message, capsys, feed):
    feed(b"eins\n")
    names = {"MODEL": digits_model, "SOURCE": source}
    assert run("translate", *(names.get(argument, argument) for argument in arguments)) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.strip().splitlines()) == 1
    assert source.read_text(encoding="utf-8").startswith(SOURCES[0])


def test_backtranslation_is_parallel_text_for_prepare(digits_model, source, tmp_path):
    assert run("backtranslate", digits_model, source, "--out", tmp_path / "bt" / "news", "--seed", 3, "--chunk", 8) == 0
    assert sorted(path.name for path in (tmp_path / "bt").iterdir()) == ["news.de", "news.en"]
    synthetic = (tmp_path / "bt" / "news.en").read_text(encoding="utf-8").splitlines()
    given = (tmp_path / "bt" / "news.de").read_text(encoding="utf-8").splitlines()
    assert given == [*SOURCES, "eins"]  # empty lines have no pair
    expected = Translator(digits_model).translate(given, sampling=True, seed=3)
    assert synthetic == expected


@pytest.mark.parametrize("drawn", [[], ["--mbr", "chrf", "--samples", 6]], ids=["sampling", "mbr"])
def test_backtranslation_does_not_depend_on_the_number_of_ranks(
    random_model, source, tmp_path, monkeypatch, capsys, drawn
):
    options = ["--chunk", 6, "--min-length", 2, "--max-length", 6, "--device", "cpu", *drawn]
    assert run("backtranslate", random_model, source, "--out", tmp_path / "one", *options) == 0
    for rank in (2, 0, 1):
        monkeypatch.setitem(os.environ, "RANK", str(rank))
        monkeypatch.setitem(os.environ, "WORLD_SIZE", "3")
        assert not (tmp_path / "three.en").exists()
        assert run("backtranslate", random_model, source, "--out", tmp_path / "three", *options) == 0
    for side in ("en", "de"):
        assert (tmp_path / f"three.{side}").read_bytes() == (tmp_path / f"one.{side}").read_bytes()
    assert not list(tmp_path.glob("*shard*"))
    assert "2 of 3 ranks are still translating" in capsys.readouterr().err


def test_ranks_that_finish_together_leave_nothing_unmerged(tmp_path):
    """The rank that finds the lock taken waits, and looks again."""
    text, finals = tmp_path / "mono", (tmp_path / "bt.en", tmp_path / "bt.de")
    text.write_text("eins\nzwei\n")
    shards = [tmp_path / "shard-0", tmp_path / "shard-1"]
    for shard, line in zip(shards, ("one\n", "two\n"), strict=True):
        shard.write_text(line)
    lock = (tmp_path / ".bt.en.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    with ThreadPoolExecutor(2) as ranks:
        waiting = [ranks.submit(_merge_if_last, text, shards, finals, 1) for _ in range(2)]
        time.sleep(0.1)
        assert not any(rank.done() for rank in waiting)
        lock.close()
        assert sorted(rank.result() is None for rank in waiting) == [False, True]
    assert [final.read_text() for final in finals] == ["one\ntwo\n", "eins\nzwei\n"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bt.de", "bt.en", "mono"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--out", "new/bt"], "nowhere does not exist"),
        (["mono.de", "--out", "mono"], "--out mono would overwrite mono.de"),
        (["mono.de", "--out", "taken"], "taken.en is a folder"),
        (["mono.de", "--out", "new/bt", "--chunk", "0"], "--chunk 0 must be at least 1"),
        (["mono.de", "--out", "new/bt", "--temperature", "-1"], "temperature"),
        (["mono.de", "--out", "new/bt", "--beam", "4", "--temperature", "0.5"], "has no effect without sampling"),
        (["mono.de", "--out", "new/bt", "--target-lang", "fr"], "the model has no target language 'fr' (it has en)"),
        (["empty.de", "--out", "new/bt"], "empty.de is empty"),
    ],
)
def test_backtranslate_refuses_before_it_writes(
    digits_model, tmp_path, monkeypatch, arguments, message, capsys, unchanged
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mono.de").write_text("eins\n")
    (tmp_path / "empty.de").touch()
    (tmp_path / "taken.en").mkdir()
    with unchanged(tmp_path):
        assert run("backtranslate", digits_model, *arguments) == 2
    assert message in capsys.readouterr().err


def test_backtranslation_has_one_translation_per_line(digits_model, source, tmp_path):
    with pytest.raises(InputError, match="one translation per line: omit nbest"):
        deepnmt.backtranslate(digits_model, source, tmp_path / "bt", nbest=2)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [("LOCAL_RANK", "x", "must be whole numbers"), ("RANK", "2", "RANK = 2 is not below WORLD_SIZE = 2")],
)
def test_what_torchrun_sets_is_checked(digits_model, source, tmp_path, monkeypatch, variable, value, message):
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="device cuda: torch sees no GPU"):
            deepnmt.backtranslate(digits_model, source, tmp_path / "bt", device="cuda")
    monkeypatch.setitem(os.environ, variable, value)
    with pytest.raises(InputError, match=message):
        deepnmt.backtranslate(digits_model, source, tmp_path / "bt")


def test_a_multilingual_model_translates_back_from_the_language_asked_for(tmp_path, source):
    pair, tags = digit_tokenizers(), {"en": "<en>", "fr": "<fr>"}
    texts = Tokenizer(pair.source.subwords, pair.source.preprocessor, [*tags.values()], LanguageTags("target", tags))
    tagged = TokenizerPair(texts, Tokenizer(pair.target.subwords, pair.target.preprocessor, [*tags.values()]))
    save_model(tmp_path / "model", tiny_model(tagged))
    tagged.save(tmp_path / "model")
    assert run("backtranslate", tmp_path / "model", source, "--out", tmp_path / "bt", "--target-lang", "fr") == 0
    assert (tmp_path / "bt.fr").is_file()


def test_backtranslation_by_beam_is_translation(digits_model, source, tmp_path):
    assert run("backtranslate", digits_model, source, "--out", tmp_path / "bt", "--beam", 3) == 0
    expected = Translator(digits_model).translate([*SOURCES, "eins"], beam=3)
    assert (tmp_path / "bt.en").read_text(encoding="utf-8").splitlines() == expected


def test_evaluate_is_translate_and_score(digits_model, tmp_path, capsys):
    source, reference, output = tmp_path / "test.de", tmp_path / "test.en", tmp_path / "out.en"
    source.write_text("\n".join(SOURCES) + "\n", encoding="utf-8")
    reference.write_text("\n".join(TARGETS) + "\n", encoding="utf-8")
    options = ["--source", source, "--reference", reference, "--metrics", "bleu", "chrf"]
    assert run("evaluate", digits_model, *options, "--output", output, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    hypotheses = output.read_text(encoding="utf-8").splitlines()
    assert hypotheses == Translator(digits_model).translate(SOURCES)

    from deepnmt.evaluation.scores import score

    expected = score(hypotheses, [TARGETS], source_lang="de", target_lang="en", metrics=["bleu", "chrf"])
    assert report["scores"] == expected.as_dict()
    assert report["scores"]["bleu"]["value"] > 80
    assert run("evaluate", digits_model, *options) == 0
    assert expected["bleu"].signature in capsys.readouterr().out


def test_evaluate_refuses_unequal_files_before_translating(digits_model, tmp_path, capsys):
    source, reference = tmp_path / "test.de", tmp_path / "test.en"
    source.write_text("eins\nzwei\n")
    reference.write_text("eins\n")
    assert run("evaluate", digits_model, "--source", source, "--reference", reference) == 2
    errors = capsys.readouterr().err
    assert "test.de" in errors
    assert "test.en" in errors
