"""A tiny model that Marian 1.12 trained on a CPU, with its translations: `tests/conversion/marian`."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch

import deepnmt
from deepnmt.cli import main
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.errors import InputError
from deepnmt.flat_yaml import read_flat_yaml
from deepnmt.model.storage import load_meta
from deepnmt.serving.limits import Limits
from deepnmt.serving.loading import load_models
from deepnmt.serving.prometheus import Metrics

STORED = Path(__file__).parent / "marian"
EXPECTED = json.loads((STORED / "expected.json").read_text(encoding="utf-8"))
GUIDE = (Path(__file__).parents[2] / "docs" / "opus-mt.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Named as a download would be."""
    out = tmp_path_factory.mktemp("marian") / "opus-mt-en-de"
    return shutil.copytree(STORED, out)


@pytest.fixture(scope="module")
def model(folder):
    out = folder.with_name("MODEL")
    deepnmt.convert(folder, out, source_lang="en", target_lang="de")
    return out


@pytest.mark.parametrize(("beam", "penalty"), [(1, 0.0), (4, 1.0)])
def test_translations_and_scores_are_marians(model, beam, penalty):
    translator = deepnmt.Translator(model)
    expected = EXPECTED[f"beam {beam}, normalize {penalty:g}"]
    found = translator.translate_nbest(EXPECTED["source"], beam=beam, length_penalty=penalty, patience=100.0)
    compared = 0
    for text, (best, *_), (pieces, log_prob, score) in zip(EXPECTED["source"], found, expected, strict=True):
        if len(pieces.split()) < 2 * len(translator.tokenizers[0].source.encode(text)):  # not cut off by Marian
            assert best.pieces == pieces.split()
            assert best.log_prob == pytest.approx(log_prob, rel=1e-5, abs=2e-4)
            assert best.score == pytest.approx(score, rel=1e-5, abs=2e-4)
            compared += 1
    assert compared >= 25


def test_the_folder_describes_itself(model):
    meta, config = load_meta(model), deepnmt.load_model(model).config
    assert meta["decoding"] == {"beam": 12, "length_penalty": 0.0}
    assert meta["converted_from"] == {"format": "marian", "file": "opus-mt-en-de"}
    assert (config.positions, config.first_position, config.start_id, config.norm) == ("sinusoidal", 0, 0, "post")
    pieces = TokenizerPair.load(model).source.pieces
    assert pieces[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert "\u2581\\" in pieces and '"' in pieces  # plain and quoted in the YAML


def test_five_commands_from_a_download_to_a_served_model(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, "opus-mt-en-de")
    pairs = [(text, best[0]) for text, best in zip(EXPECTED["source"], EXPECTED["beam 4, normalize 1"], strict=True)]
    for name, lines in (
        ("mine.en", [text for text, _ in pairs]),
        ("mine.de", [pieces.replace(" ", "").replace("\u2581", " ").strip() for _, pieces in pairs]),
    ):
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        Path(name.replace("mine", "valid")).write_text("".join(f"{line}\n" for line in lines[:3]), encoding="utf-8")
    Path("news.en").write_text("the small house\n\ngreen tree\n", encoding="utf-8")
    commands = re.search(r"```\n(deepnmt convert.*?)```", GUIDE, re.DOTALL)[1].replace("\\\n", "").strip().split("\n")
    assert len(commands) == 5
    quick = {
        "prepare": ["--keep", "overlap", "--workers", "1"],
        "train": ["training.max_steps=3", "training.validate_every=3", "training.tensorboard=false", "--device", "cpu"],
        "translate": ["--device", "cpu"],
    }
    for command in commands[:4]:
        _, name, *arguments = shlex.split(command)
        assert main([name, *arguments, *quick.get(name, [])]) == 0, capsys.readouterr().err
    assert len(Path("news.de").read_text(encoding="utf-8").splitlines()) == 3
    tuned, before = deepnmt.load_model("RUN/model"), deepnmt.load_model("MODEL")
    assert tuned.config == replace(before.config, dropout=tuned.config.dropout)
    assert any(not torch.equal(a, b) for a, b in zip(tuned.parameters(), before.parameters(), strict=True))
    _, name, path, *options = shlex.split(commands[4])
    assert (name, options) == ("serve", ["--precision", "int8"])
    models = load_models([path], "cpu", "int8", Limits(), Metrics())
    assert models.languages() == {"en": ["de"], "de": []}
    models.close()


def changed(folder, tmp_path, **arrays):
    """A copy whose .npz has other arrays; None takes one out."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    with np.load(folder / "model.npz") as stored:
        content = {name: stored[name] for name in stored.files} | arrays
    np.savez(copy / "model.npz", **{name: array for name, array in content.items() if array is not None})
    return copy


def test_a_sentencepiece_model_as_vocabulary(folder, tmp_path):
    spm = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    rows = spm.get_piece_size()
    shapes = {"Wemb": np.random.default_rng(0).normal(size=(rows, 16)), "decoder_ff_logit_out_b": np.zeros((1, rows))}
    copy = changed(folder, tmp_path, **{name: array.astype(np.float32) for name, array in shapes.items()})
    (copy / "decoder.yml").write_text("vocabs:\n  - source.spm\n  - source.spm\nbeam-size: 2\n", encoding="utf-8")
    converted = deepnmt.convert(copy, tmp_path / "MODEL", source_lang="en", target_lang="de")
    pair = TokenizerPair.load(tmp_path / "MODEL")
    text = EXPECTED["source"][0]
    ids = pair.source.encode(text)
    assert [pair.source.piece(number) for number in ids] == spm.encode(text, out_type=str)
    assert pair.shared
    table = converted.source_embedding.tokens.weight
    np.testing.assert_array_equal(table[ids].detach(), shapes["Wemb"][spm.encode(text)].astype(np.float32))


def settings(text):
    return {"special:model.yml": np.frombuffer(text.encode() + b"\0", np.int8)}


POST = "type: transformer\ntransformer-heads: 2\ntransformer-postprocess: dan\n"
REFUSALS = {
    "an unknown array": ({"encoder_l1_gate_W": np.ones((2, 2))}, "uses the parameter encoder_l1_gate_W, which deepnmt"),
    "a missing array": ({"decoder_l1_self_Wq": None}, "decoder.layers.0.attention"),
    "no settings": ({"special:model.yml": None}, "is not a Marian model: it has no special:model.yml"),
    "another type": (settings("type: s2s\n"), "uses type = s2s, which deepnmt does not support"),
    "ssru": (settings(POST + "transformer-decoder-autoreg: rnn\n"), "transformer-decoder-autoreg = rnn"),
    "another norm": (settings(POST.replace("dan", "rda")), "which is neither pre-norm nor post-norm"),
    "an activation": (settings(POST + "transformer-ffn-activation: prelu\n"), "activation_fn = prelu"),
    "a vocabulary of another size": ({"Wemb": np.ones((50, 16), np.float32)}, "has 50 rows, but the vocabulary has 79"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_not_understood_is_refused_by_name(folder, tmp_path, case):
    arrays, message = REFUSALS[case]
    copy = changed(folder, tmp_path, **arrays)
    with pytest.raises(InputError, match=re.escape(message)):
        deepnmt.convert(copy, tmp_path / "MODEL", source_lang="en", target_lang="de")
    assert not (tmp_path / "MODEL").exists()


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("source.spm", "source.spm does not exist"),
        ("vocab.yml", "vocab.yml does not exist"),
        ("model.npz", "is not a supported model: it has no config.json, .npz file or params.best"),
    ],
)
def test_missing_files_are_named(folder, tmp_path, removed, message):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / removed).unlink()
    with pytest.raises(InputError, match=message):
        deepnmt.convert(copy, tmp_path / "MODEL", source_lang="en", target_lang="de")


def test_a_damaged_vocabulary_is_refused_by_name(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "decoder.yml").write_text("vocabs:\n  - vocab.spm\n  - vocab.spm\n")
    (copy / "vocab.spm").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"vocab\.spm is not a SentencePiece model"):
        deepnmt.convert(copy, tmp_path / "MODEL", source_lang="en", target_lang="de")


def test_languages_must_be_said(folder, tmp_path):
    with pytest.raises(InputError, match="does not name its languages: give --source-lang and --target-lang"):
        deepnmt.convert(folder, tmp_path / "MODEL", source_lang="en")


class TestYaml:
    def test_equals_a_whole_parser(self):
        yaml = pytest.importorskip("yaml", reason="comparing with PyYAML")
        symbols = ["plain", '"', "'", ":", "a:b", "#", "- x", "\\", "[]", "é", "\t", "null", "0", "~"]
        texts = [
            yaml.safe_dump({symbol: str(n) for n, symbol in enumerate(symbols)}, allow_unicode=unicode, width=10**6)
            for unicode, symbols in ((False, [*symbols, "\a", "\xa0"]), (True, symbols))
        ]
        for text in [*texts, (STORED / "vocab.yml").read_text(encoding="utf-8")]:
            expected = {str(key): str(value) for key, value in yaml.load(text, yaml.BaseLoader).items()}
            assert read_flat_yaml(text, "here") == expected

    def test_lists(self):
        text = "models:\n  - a.npz\nvocabs:\n  - v.yml\n  - 'w v.yml'\nempty:\n  []\nnone: []\nbeam-size: 6\n"
        lists = {"models": ["a.npz"], "vocabs": ["v.yml", "w v.yml"], "empty": [], "none": []}
        assert read_flat_yaml(text, "here") == lists | {"beam-size": "6"}

    @pytest.mark.parametrize("text", ["key\n", "a: 1\n  b: 2\n", "  - x\n", "a: 1\n  - x\n", '"a\n'])
    def test_deeper_yaml_is_refused_with_its_line(self, text):
        with pytest.raises(InputError, match=r"here, line \d: .* is neither an entry nor a list item"):
            read_flat_yaml(text, "here")
