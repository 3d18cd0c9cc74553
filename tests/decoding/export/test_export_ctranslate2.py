"""`deepnmt export --to ctranslate2`: CTranslate2 produces the same tokens as the model."""

import json
import zipfile
from dataclasses import replace

import pytest
import torch
from digits import digit_tokenizers, reversed_digits
from exportable import examples, random_model, save

from deepnmt.cli import main
from deepnmt.data.sentence_pieces import SentencePieces
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.decoding import export as exporting
from deepnmt.decoding.export import ctranslate2 as writing
from deepnmt.decoding.export.argos import SUFFIX
from deepnmt.decoding.export.comparison import compare, random_sources
from deepnmt.decoding.translator import Translator
from deepnmt.errors import RunError
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.folding import folded
from deepnmt.model.storage import load_model
from deepnmt.model.sublayers import SUBLAYERS
from deepnmt.model.transformer import Transformer

ctranslate2 = pytest.importorskip("ctranslate2", reason="pip install ctranslate2")

TEXTS = [source for source, _ in reversed_digits(100, seed=7, longest=3)]
SHAPES = [
    {"norm": "pre"},
    {"norm": "post", "activation": "swiglu", "tie_output": False, "target_vocab_size": 60},
    {"norm": "pre", "positions": "learned", "max_positions": 9, "activation": "gelu", "share_embeddings": True},
    {"norm": "post", "share_embeddings": True},
    {"norm": "pre", "dims": (16, 24)},
    {"norm": "post", "norm_kind": "rms", "scale_embeddings": False, "activation": "swish"},
    {"norm": "pre", "norm_kind": "rms"},
    {"norm": "post", "output_bias": True, "start_id": 1, "first_position": 0, "positions": "sinusoidal-hf"},
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())))
def test_log_probabilities_of_every_shape_are_the_models(shape, tmp_path):
    agreement = exporting.export(save(tmp_path / "MODEL", random_model(**shape)), tmp_path / "OUT", "ctranslate2")
    assert agreement.positions > 150
    assert 0 < agreement.max_difference < 1e-5


@pytest.mark.parametrize("kind", SUBLAYERS)
def test_a_scheme_around_sublayers_is_folded_or_refused(kind, tmp_path, capsys):
    model = save(tmp_path / "MODEL", random_model(sublayer=SUBLAYERS[kind].Config()))
    status = main(["export", str(model), "--to", "ctranslate2", "--out", str(tmp_path / "OUT")])
    told = capsys.readouterr()
    if kind in ("pre", "post") or SUBLAYERS[kind].folds_into:
        assert status == 0 and "log probabilities within" in told.out
    else:
        assert status == 2 and not (tmp_path / "OUT").exists()
        assert (
            f"it does not support encoder.sublayer = {kind} (export it --to onnx, or train with pre or post)"
            in told.err
        )


@pytest.mark.parametrize("to", ["ctranslate2", "huggingface"])
def test_a_model_that_was_folded_before_is_exported_and_another_epsilon_refused(to, tmp_path, capsys):
    model = random_model(sublayer=SUBLAYERS["deepnorm"].Config())
    save(tmp_path / "MODEL", folded(model))
    assert exporting.export(tmp_path / "MODEL", tmp_path / "OUT", to).max_difference < 1e-4
    config = replace(model.config, decoder=replace(model.config.decoder, norm_eps=0.01))
    save(tmp_path / "OTHER", Transformer(config))
    assert main(["export", str(tmp_path / "OTHER"), "--to", to]) == 2
    assert "it does not support decoder.norm_eps = 0.01" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["ctranslate2", "huggingface"])
def test_sentences_to_check_may_be_longer_than_the_format_allows(to, tmp_path):
    model = save(tmp_path / "MODEL", random_model(norm="post"))
    agreement = exporting.export(model, tmp_path / "OUT", to, ["eins " * 1500])
    assert agreement.positions > 800


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_translations_are_the_models_greedily_and_by_beam_search(norm, unsure, tmp_path, capsys):
    """CTranslate2 returns an empty translation only if asked, and may return an unknown symbol; we differ in both."""
    model, out = unsure(norm), tmp_path / "OUT"
    assert main(["export", str(model), "--to", "ctranslate2", "--out", str(out)]) == 0
    assert "sentences, log probabilities within" in capsys.readouterr().out
    ours, theirs = Translator(model), ctranslate2.Translator(str(out))
    pieces = SentencePieces.read(out / "source.spm")._processor.encode(TEXTS, out_type=str)
    for beam, penalty in ((1, 0.0), (4, 0.0), (4, 0.6), (4, 1.0)):
        expected = ours.translate_nbest(TEXTS, beam=beam, length_penalty=penalty, allow_unknown=True, max_length=60)
        found = theirs.translate_batch(
            pieces,
            beam_size=beam,
            length_penalty=penalty,
            min_decoding_length=0,
            max_decoding_length=60,
        )
        assert [result.hypotheses[0] for result in found] == [hypotheses[0].pieces for hypotheses in expected]


def test_the_example_of_the_page_translates_as_we_do(unsure, tmp_path, monkeypatch):
    exporting.export(unsure("pre"), tmp_path / "MODEL-ctranslate2", "ctranslate2")
    monkeypatch.chdir(tmp_path)
    (example,) = examples("CTranslate2")
    page = {}
    exec(example.replace('compute_type="int8"', 'compute_type="float32"'), page)
    texts = [*TEXTS[:20], " fu\u0308nf\u00a0\u00a0drei"]
    assert page["translate"](texts) == Translator(unsure("pre")).translate(texts, min_length=1)
    exec(example, page)
    assert len(page["translate"](texts)) == len(texts)


def test_one_changed_weight_is_noticed(unsure, tmp_path):
    exporting.export(unsure("pre"), tmp_path / "OUT", "ctranslate2")
    model = load_model(unsure("pre"))
    tokenizers = TokenizerPair.load(unsure("pre"))
    runtime = writing.opened(tmp_path / "OUT", model.config, tokenizers)
    compare(model, runtime, random_sources(model.config), "CTranslate2")
    with torch.no_grad():
        model.decoder.layers[0].feed_forward.expand.bias[5] += 0.05
    with pytest.raises(RunError, match=r"the log probabilities of CTranslate2 .* differ from the model's by"):
        compare(model, runtime, random_sources(model.config), "CTranslate2")


@pytest.mark.parametrize("kind", [kind for kind in CONNECTIONS if kind != "residual"])
def test_a_mixture_of_layers_is_refused_before_anything_is_written(kind, tmp_path, unchanged, capsys):
    model = save(tmp_path / "MODEL", random_model(connections=(CONNECTIONS[kind].Config(), None)))
    with unchanged(tmp_path):
        assert main(["export", str(model), "--to", "ctranslate2"]) == 2
    others = "--to onnx or --to huggingface" if CONNECTIONS[kind].is_mixture else "--to onnx"
    assert capsys.readouterr().err == (
        "deepnmt: this model cannot be exported to CTranslate2: it supports only residual connections, but this "
        f"model has encoder.connection = {kind} (export it {others}, or train a model with connection = residual)\n"
    )


def test_without_ctranslate2_the_export_is_written_and_said_to_be_unchecked(unsure, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    assert main(["export", str(unsure("pre")), "--to", "ctranslate2", "--out", str(tmp_path / "OUT")]) == 0
    assert "not verified against" in capsys.readouterr().out
    assert json.loads((tmp_path / "OUT" / "export.json").read_text())["checked"] is None
    assert ctranslate2.Translator(str(tmp_path / "OUT"))


def test_an_argos_package_has_what_argos_translate_reads(unsure, tmp_path, capsys):
    """As argostranslate 1.11 uses it: one folder, a SentencePiece model that encodes and joins, a model beside it."""
    out = tmp_path / f"de-en{SUFFIX}"
    command = ["export", str(unsure("post")), "--to", "ctranslate2", "--argos", "--out", str(out)]
    assert main(command) == 0
    with zipfile.ZipFile(out) as package:
        package.extractall(tmp_path / "packages")
    (folder,) = (tmp_path / "packages").iterdir()
    metadata = json.loads((folder / "metadata.json").read_text())
    assert {name: metadata[name] for name in ("from_code", "from_name", "to_code", "to_name")} == {
        "from_code": "de",
        "from_name": "German",
        "to_code": "en",
        "to_name": "English",
    }
    pieces = SentencePieces.read(folder / "sentencepiece.model")._processor
    found = ctranslate2.Translator(str(folder / "model")).translate_batch(
        pieces.encode(TEXTS, out_type=str),
        min_decoding_length=0,
        replace_unknowns=True,
        beam_size=4,
        length_penalty=0.2,
    )
    expected = Translator(unsure("post")).translate(TEXTS, beam=4, length_penalty=0.2, allow_unknown=True)
    assert [pieces.decode_pieces(result.hypotheses[0]) for result in found] == expected

    before = out.read_bytes()
    assert main(command) == 2
    assert capsys.readouterr().err.endswith("already exists; choose another --out or pass --overwrite\n")
    assert out.read_bytes() == before
    assert main([*command, "--overwrite"]) == 0
    (tmp_path / "letter").write_text("mine")
    assert main([*command[:-1], str(tmp_path / "letter"), "--overwrite"]) == 2
    assert (tmp_path / "letter").read_text() == "mine"


@pytest.mark.parametrize("positions", ["relative", "rotary"])
def test_positions_of_self_attention_are_refused(positions, tmp_path, unchanged, capsys):
    model = save(tmp_path / "MODEL", random_model(positions=positions))
    with unchanged(tmp_path):
        assert main(["export", str(model), "--to", "ctranslate2"]) == 2
    assert f"it does not support positions = '{positions}' (export it --to onnx)" in capsys.readouterr().err


def test_an_argos_package_needs_plain_sentencepiece(tmp_path, unchanged, capsys):
    pieces = digit_tokenizers().source.subwords
    moses = TokenizerPair(*(Tokenizer(pieces, Preprocessor(language, "moses")) for language in ("de", "en")))
    model = save(tmp_path / "MODEL", random_model(), moses)
    with unchanged(tmp_path):
        assert main(["export", str(model), "--to", "ctranslate2", "--argos"]) == 2
        assert main(["export", str(model), "--to", "onnx", "--argos"]) == 2
    refused, wrong = capsys.readouterr().err.splitlines()
    assert "cannot be exported to Argos Translate: it has no pretokenizer, but the source has moses" in refused
    assert wrong == "deepnmt: --argos packs an export to ctranslate2, not to onnx"
