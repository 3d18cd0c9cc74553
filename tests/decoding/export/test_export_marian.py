"""`deepnmt export --to marian`: the folder as Marian, Bergamot, CTranslate2 and `deepnmt convert` read it."""

import os
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from digits import digit_tokenizers, reversed_digits
from exportable import ROOT, examples, random_model, save, unsure_model

import deepnmt
from deepnmt.cli import main
from deepnmt.data.sentence_pieces import ListedPieces
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.decoding import export as exporting
from deepnmt.decoding.export import bergamot
from deepnmt.decoding.export import marian as writing
from deepnmt.decoding.export.comparison import compare, random_sources
from deepnmt.decoding.translator import Translator
from deepnmt.errors import RunError
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.storage import load_model
from deepnmt.model.sublayers import SUBLAYERS

TEXTS = [source for source, _ in reversed_digits(100, seed=7, longest=3)]
MARIANS = {"norm": "post", "heads": (4, 4), "first_position": 0}
SHAPES = [
    {},
    {"share_embeddings": True, "activation": "swish"},
    {"share_embeddings": True, "output_bias": True, "start_id": 0},
    {"tie_output": False, "target_vocab_size": 60},
    {"share_embeddings": True, "tie_output": False, "source_vocab_size": 60, "target_vocab_size": 60},
]


@pytest.fixture(scope="session")
def marians(made_once):
    """A model that has learned to end its sentences, of a shape that 8 bits allow."""
    return made_once("unsure-marian", lambda folder: save(folder, unsure_model(norm="post", first_position=0, dim=64)))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())) or "plain")
def test_log_probabilities_of_every_shape_are_the_models(shape, tmp_path):
    """Also where the decoder starts from a vector that is not zero."""
    agreement = exporting.export(save(tmp_path / "MODEL", random_model(**MARIANS | shape)), tmp_path / "OUT", "marian")
    assert agreement.positions > 150
    assert 0 < agreement.max_difference < 1e-5


@pytest.mark.parametrize("kind", SUBLAYERS)
def test_a_scheme_around_sublayers_is_folded_or_refused(kind, tmp_path, capsys):
    model = save(tmp_path / "MODEL", random_model(**MARIANS, sublayer=SUBLAYERS[kind].Config()))
    status = main(["export", str(model), "--to", "marian", "--out", str(tmp_path / "OUT")])
    told = capsys.readouterr()
    if "post" in (kind, SUBLAYERS[kind].folds_into):
        assert status == 0 and "log probabilities within" in told.out
    else:
        assert status == 2 and not (tmp_path / "OUT").exists()
        assert told.err.startswith("deepnmt: this model cannot be exported to Marian: ")


def test_a_model_of_marian_comes_back_as_it_was(tmp_path):
    """Bit for bit: its decoder starts from zeros, so nothing is added. The vocabulary has room for more symbols."""
    stored = ROOT / "tests" / "conversion" / "marian"
    deepnmt.convert(stored, tmp_path / "MODEL", source_lang="en", target_lang="de")
    deepnmt.export(tmp_path / "MODEL", tmp_path / "OUT", to="marian")
    before, after = np.load(stored / "model.npz"), np.load(tmp_path / "OUT" / "model.npz")
    assert {*before.files} == {*after.files}
    for name in before.files:
        if "_l1_" in name:
            np.testing.assert_array_equal(after[name], before[name])
    deepnmt.convert(tmp_path / "OUT", tmp_path / "AGAIN", source_lang="en", target_lang="de")
    texts = ["the small house", "a green tree sees the dog", "\u00bf?"]
    options = {"beam": 4, "length_penalty": 1.0}
    first, again = (Translator(tmp_path / name).translate_nbest(texts, **options) for name in ("MODEL", "AGAIN"))
    assert [best.pieces for best, *_ in again] == [best.pieces for best, *_ in first]
    assert [best.score for best, *_ in again] == pytest.approx([best.score for best, *_ in first], abs=1e-5)
    assert deepnmt.export(tmp_path / "AGAIN", tmp_path / "TWICE", to="marian").agreement.max_difference < 1e-5


def test_ctranslate2_converts_the_folder_and_translates_as_we_do(marians, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
    pytest.importorskip("yaml", reason="CTranslate2 reads Marian's settings with PyYAML")
    out = tmp_path / "OUT"
    exporting.export(marians, out, "marian")
    # Its converter takes tables as .yml and computes other sinusoids, unless the file has some.
    spm = {
        side: sentencepiece.SentencePieceProcessor(model_file=str(out / f"{side}.spm")) for side in ("source", "target")
    }
    for side, processor in spm.items():
        symbols = (f'"{processor.id_to_piece(number)}": {number}\n' for number in range(len(processor)))
        (out / f"{side}.yml").write_text("".join(symbols), encoding="utf-8")
    positions = load_model(marians).source_embedding.positions(torch.arange(200)).numpy()
    np.savez(out / "model.npz", **np.load(out / "model.npz"), Wpos=positions)
    converter = ctranslate2.converters.MarianConverter(
        str(out / "model.npz"), [str(out / f"{side}.yml") for side in spm]
    )
    theirs = ctranslate2.Translator(converter.convert(str(tmp_path / "CT2")))
    pieces = spm["source"].encode(TEXTS, out_type=str)
    for beam, penalty in ((1, 0.0), (4, 0.6)):
        expected = Translator(marians).translate(TEXTS, beam=beam, length_penalty=penalty, max_length=60)
        options = {"min_decoding_length": 0, "max_decoding_length": 60, "disable_unk": True}
        found = theirs.translate_batch(pieces, beam_size=beam, length_penalty=penalty, **options)
        assert [spm["target"].decode_pieces(result.hypotheses[0]) for result in found] == expected


def share_of_equals(found: list[str], model: Path) -> float:
    """How many greedy translations are ours, apart from those that are cut off as too long."""
    translator = Translator(model)
    lengths = map(len, translator.tokenizers[0].source.encode_batch(TEXTS))
    compared = [
        theirs == ours.text
        for theirs, (ours, *_), length in zip(found, translator.translate_nbest(TEXTS, beam=1), lengths, strict=True)
        if len(ours.pieces) < 2 * length
    ]
    assert len(compared) > 80
    return sum(compared) / len(compared)


def run(command: list[str], folder: Path) -> list[str]:
    """Another program may abort: not inside ours."""
    given = "".join(f"{text}\n" for text in TEXTS).encode()
    return (
        subprocess.run(command, cwd=folder, input=given, capture_output=True, timeout=60).stdout.decode().splitlines()
    )


def test_marian_translates_as_we_do(marians, tmp_path):
    if find_spec("pymarian") is None:
        pytest.skip("needs Marian: pip install pymarian")
    exporting.export(marians, tmp_path / "OUT", "marian")
    options = "--config OUT/decoder.yml --beam-size 1 --cpu-threads 1 --quiet --quiet-translation"
    script = f"import sys, pymarian; print(pymarian.Translator('{options}').translate(sys.stdin.read()))"
    assert share_of_equals(run([sys.executable, "-c", script], tmp_path), marians) == 1


@pytest.mark.parametrize(("precision", "equal"), [("float32", 1.0), ("int8shiftAll", 0.8)])
def test_bergamot_translates_as_we_do(precision, equal, marians, tmp_path):
    """In 8 bits only most sentences, since the model is sure of nothing."""
    modules = Path(os.environ.get("NODE_PATH", "node_modules")).resolve()
    if not (shutil.which("node") and (modules / "@browsermt" / "bergamot-translator").is_dir()):
        pytest.skip("needs node, and npm install @browsermt/bergamot-translator in NODE_PATH")
    (tmp_path / "node_modules").symlink_to(modules)
    out = tmp_path / "MODEL-marian"
    exporting.export(marians, out, "marian")
    if precision == "float32":
        arrays = np.load(out / "model.npz")
        kinds = {np.dtype(np.float32): bergamot.FLOAT32, np.dtype(np.int8): bergamot.INT8}
        items = {name: (kinds[array.dtype], array.shape, array.tobytes()) for name, array in arrays.items()}
        bergamot.write_binary(out / bergamot.BINARY, items)
    (script,) = examples("Marian and Bergamot", language="js")
    (tmp_path / "translate.mjs").write_text(script.replace("int8shiftAll", precision), encoding="utf-8")
    assert share_of_equals(run(["node", "translate.mjs"], tmp_path), marians) >= equal


def test_ids_are_ours_also_if_a_list_and_its_sentencepiece_model_differ(tmp_path):
    """The list lacks some pieces, which are unknown then, and has symbols that are no pieces."""
    pair = digit_tokenizers()
    pieces = pair.source.pieces[4:]
    listed = ListedPieces(pair.source.subwords.model, [*reversed(pieces[3:]), "<other>", "more", "words"])
    pair = TokenizerPair(*(replace(side, subwords=listed) for side in (pair.source, pair.target)))
    model = random_model(**MARIANS, share_embeddings=True)
    assert exporting.export(save(tmp_path / "MODEL", model, pair), tmp_path / "OUT", "marian").positions > 150
    spm = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "OUT" / "source.spm"))
    table = np.load(tmp_path / "OUT" / "model.npz")["Wemb"]
    assert len(table) == len(spm) and len(table) % 8 == 0
    ours = model.source_embedding.tokens.weight.detach()
    for text in [*TEXTS[:20], "".join(pieces), "fu\u0308nf\u00a0 x"]:
        ids = pair.source.encode(text)
        np.testing.assert_array_equal(table[spm.encode(text)], ours[ids] - ours[2])
    assert any(3 in pair.source.encode(text) for text in ["".join(pieces)])
    assert (spm.eos_id(), spm.unk_id(), spm.bos_id(), spm.pad_id()) == (0, 1, -1, -1)


def items_of(path):
    """The items of a binary file, after marian-dev's src/common/binary.cpp."""
    content = path.read_bytes()
    version, count = struct.unpack_from("<QQ", content)
    assert version == 1
    headers = [struct.unpack_from("<QQQQ", content, 16 + 32 * number) for number in range(count)]
    at, names, shapes, items = 16 + 32 * count, [], [], {}
    for length, *_ in headers:
        names.append(content[at : at + length - 1].decode())
        at += length
    for _, _, rank, _ in headers:
        shapes.append(struct.unpack_from(f"<{rank}i", content, at))
        at += 4 * rank
    at += 8 + struct.unpack_from("<Q", content, at)[0]
    for name, shape, (_, kind, _, length) in zip(names, shapes, headers, strict=True):
        assert at % 256 == 0
        items[name] = kind, shape, content[at : at + length]
        at += length
    assert at == len(content)
    return items


def test_matrices_in_8_bits_are_within_half_a_step(marians, tmp_path):
    exporting.export(marians, tmp_path / "OUT", "marian")
    arrays, quantised = np.load(tmp_path / "OUT" / "model.npz"), 0
    items = items_of(tmp_path / "OUT" / bergamot.BINARY)
    assert {*items} == {*arrays.files}
    for name, (kind, shape, content) in items.items():
        array = arrays[name]
        assert shape == array.shape
        if kind == bergamot.INTGEMM8:
            scale = np.frombuffer(content, np.float32, 1, array.size)
            stored = np.frombuffer(content, np.int8, array.size).reshape(shape if name == "Wemb" else shape[::-1])
            np.testing.assert_allclose((stored if name == "Wemb" else stored.T) / scale, array, atol=0.501 / scale[0])
            quantised += 1
        else:
            assert content.startswith(array.tobytes()) and (array.ndim == 1 or len(array) == 1)
    assert quantised == 1 + 1 * 6 + 1 * 10


def test_one_changed_weight_is_noticed(marians, tmp_path):
    exporting.export(marians, tmp_path / "OUT", "marian")
    model = load_model(marians)
    runtime = writing.opened(tmp_path / "OUT", model.config, TokenizerPair.load(marians))
    compare(model, runtime, random_sources(model.config), "Marian")
    with torch.no_grad():
        model.decoder.layers[0].feed_forward.expand.bias[5] += 0.05
    with pytest.raises(RunError, match=r"the log probabilities of Marian .* differ from the model's by"):
        compare(model, runtime, random_sources(model.config), "Marian")


REFUSALS = {
    "its pre-norm does not normalise keys and values when it translates": {"norm": "pre"},
    "it counts positions from 0, but this model counts from 2": {"first_position": None},
    "it adds the first learned position at every step": {"positions": "learned"},
    "its sinusoids are not those of Hugging Face": {"positions": "sinusoidal-hf"},
    "it does not support positions = 'rotary'": {"positions": "rotary"},
    "it has no gelu that is the same in all versions": {"activation": "gelu"},
    "it does not support norm_kind = rms": {"norm_kind": "rms"},
    "it scales embeddings": {"scale_embeddings": False},
    "it needs one num_heads, but this model has 4 in the encoder and 2 in the decoder": {"heads": (4, 2)},
    "it does not support qk_norm = True": {"qk_norm": True},
    "it supports only residual connections": {"connections": (DlclConfig(), None)},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_what_marian_cannot_express_is_refused_before_anything_is_written(reason, tmp_path, unchanged, capsys):
    model = save(tmp_path / "MODEL", random_model(**MARIANS | REFUSALS[reason]))
    with unchanged(tmp_path):
        assert main(["export", str(model), "--to", "marian"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"deepnmt: this model cannot be exported to Marian: {reason}")
    assert told.count("\n") == 1
