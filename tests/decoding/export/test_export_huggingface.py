"""`deepnmt export --to huggingface`: transformers loads the folder and agrees with the model."""

import json
import os
import random
import unicodedata

import pytest
import torch
from digits import digit_tokenizers, reversed_digits
from exportable import examples, random_model, save

from deepnmt.cli import main
from deepnmt.data.learning import cut, piece_counts, train
from deepnmt.data.prepare_settings import SubwordSettings
from deepnmt.data.sentence_pieces import SentencePieces
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import EOS
from deepnmt.decoding import export as exporting
from deepnmt.decoding.export import huggingface as writing
from deepnmt.decoding.export.comparison import compare, random_sources
from deepnmt.decoding.translator import Translator
from deepnmt.errors import RunError
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.storage import load_model

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", reason="pip install transformers")

MARIAN, M2M100, OURS = "MarianMTModel", "M2M100ForConditionalGeneration", "DeepnmtForConditionalGeneration"
TEXTS = [source for source, _ in reversed_digits(40, seed=7, longest=3)]
SHAPES = [
    (MARIAN, {"norm": "post", "share_embeddings": True}),
    (MARIAN, {"norm": "post", "share_embeddings": True, "tie_output": False, "activation": "gelu"}),
    (MARIAN, {"norm": "post", "positions": "learned", "max_positions": 9, "target_vocab_size": 60}),
    (MARIAN, {"norm": "post", "output_bias": True, "start_id": 1, "first_position": 0, "activation": "swish"}),
    (M2M100, {"norm": "pre", "share_embeddings": True}),
    (M2M100, {"norm": "pre", "tie_output": False}),
    (OURS, {"norm": "pre", "target_vocab_size": 60}),
    (OURS, {"norm": "post", "dims": (16, 24), "norm_kind": "rms"}),
    (OURS, {"norm": "pre", "share_embeddings": True, "activation": "swiglu", "positions": "learned"}),
    (OURS, {"norm": "pre", "connections": (DlclConfig(groups=4, norm_embedding=True), DlclConfig(softmax=True))}),
    (OURS, {"norm": "post", "connections": (DlclConfig(norm_embedding=True, window=2), DlclConfig(norm=False))}),
]
MIXTURES = [
    (OURS, {"norm": norm, "connections": (CONNECTIONS[kind].Config(**options), None)})
    for kind, options in {
        "dense": {},
        "average": {},
        "fusion": {},
        "sparse-dlcl": {"block": 2},
        "denseformer": {},
    }.items()
    for norm in ("pre", "post")
]


@pytest.mark.parametrize(("name", "shape"), [*SHAPES, *MIXTURES])
def test_logits_of_every_shape_are_the_models(name, shape, tmp_path):
    agreement = exporting.export(save(tmp_path / "MODEL", random_model(**shape)), tmp_path / "OUT", "huggingface")
    assert json.loads((tmp_path / "OUT" / "config.json").read_text())["architectures"] == [name]
    assert agreement.positions > 150
    assert agreement.max_difference < 1e-5


def opened(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
    return tokenizer, model.eval()


@pytest.fixture
def no_cache(monkeypatch, tmp_path):
    """transformers copies the modelling file somewhere before it imports it."""
    for module in (transformers.dynamic_module_utils, transformers.utils):
        monkeypatch.setattr(module, "HF_MODULES_CACHE", str(tmp_path / "modules"))


@pytest.mark.parametrize(("kind", "name"), [("pre", M2M100), ("post", MARIAN), ("dlcl", OURS)])
def test_translations_are_the_models_greedily_and_by_beam_search(
    kind, name, unsure, digits_model, no_cache, tmp_path, capsys
):
    model = digits_model if kind == "dlcl" else unsure(kind)
    assert main(["export", str(model), "--to", "huggingface", "--out", str(tmp_path / "OUT")]) == 0
    assert "sentences, logits within" in capsys.readouterr().out
    tokenizer, exported = opened(tmp_path / "OUT")
    assert type(exported).__name__ == name
    ours, given = Translator(model), tokenizer(TEXTS, return_tensors="pt", padding=True)
    for beam, penalty in ((1, 1.0), (4, 0.6)):
        expected = ours.translate_nbest(TEXTS, beam=beam, length_penalty=penalty, max_length=60)
        search = {"length_penalty": penalty} if beam > 1 else {"length_penalty": None, "early_stopping": None}
        found = exported.generate(**given, num_beams=beam, max_new_tokens=61, **search)
        assert tokenizer.batch_decode(found, skip_special_tokens=True) == [best.text for best, *_ in expected]


def test_the_example_of_the_page_translates_as_we_do(unsure, tmp_path, monkeypatch):
    exporting.export(unsure("post"), tmp_path / "MODEL-huggingface", "huggingface")
    monkeypatch.chdir(tmp_path)
    (example,) = examples("Hugging Face")
    page = {}
    exec(example, page)
    texts = [*TEXTS[:20], " fu\u0308nf\u00a0\u00a0drei"]
    assert page["translate"](texts) == Translator(unsure("post")).translate(texts)


def test_a_model_that_was_trained_on_in_transformers_is_saved_and_opened_again(no_cache, tmp_path):
    """Marian forgets its table of positions unless told; docs/export.md tells."""
    for shape in ({"norm": "post"}, {"norm": "pre"}, {"connections": (DlclConfig(), None)}):
        folder = tmp_path / "-".join(shape)
        exporting.export(
            save(folder / "MODEL", random_model(share_embeddings=True, **shape)), folder / "OUT", "huggingface"
        )
        tokenizer, model = opened(folder / "OUT")
        batch = tokenizer(TEXTS[:4], text_target=TEXTS[:4], return_tensors="pt", padding=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model(**batch)
        before.loss.backward()
        optimizer.step()
        after = model(**batch)
        assert after.loss < before.loss
        model._keys_to_ignore_on_save = None
        model.save_pretrained(folder / "again")
        again = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "again", trust_remote_code=True)
        torch.testing.assert_close(again.eval()(**batch).logits, after.logits)


def mixed_lines(count):
    """Words of many scripts, composed and decomposed, odd spaces, symbols, and what looks like special tokens."""
    draw = random.Random(1)
    ranges = ((0x20, 0x7F), (0xA0, 0x250), (0x370, 0x500), (0x5D0, 0x6D4), (0x900, 0x980), (0x1E00, 0x1FFF))
    scripts = [*ranges, (0x2000, 0x2070), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0x1F300, 0x1F600)]
    odd = ["</s>", "<unk>", "<pad>", "\t", " \u3000 ", "\u2581", "\u00a0", "ﬁ", "İ", "e\u0302\u0323", "a"]
    for _ in range(count):
        words = ["".join(chr(draw.randrange(*script)) for _ in range(5)) for script in draw.choices(scripts, k=3)]
        line = " ".join([*words, draw.choice(odd), draw.choice(TEXTS), draw.choice(odd)])
        yield unicodedata.normalize(draw.choice(("NFC", "NFD", "NFKD")), line)


@pytest.mark.parametrize(
    ("preprocessing", "fallback", "shared"),
    [({}, True, True), ({"lowercase": True}, False, False), ({"normalization": "nfkc"}, True, False)],
)
def test_ids_of_mixed_unicode_are_ours(preprocessing, fallback, shared, tmp_path):
    lines = [line for line in mixed_lines(2000) if "Σ" not in line]  # a rule does not know the end of a word
    words = dict.fromkeys(" ".join(lines[:200]).split(), 1) | dict.fromkeys(" ".join(TEXTS).split(), 50)
    settings = SubwordSettings(byte_fallback=fallback, character_coverage=0.999)
    whole = train(words, settings, vocab_size=2500)
    rare = cut(whole, piece_counts(whole, words), 2)
    models = (rare, rare) if shared else (rare, whole)
    tokenizers = TokenizerPair(
        *(
            Tokenizer(SentencePieces(model), Preprocessor(language, **preprocessing))
            for model, language in zip(models, ("de", "en"), strict=True)
        )
    )
    writing._write_tokenizers(tokenizers, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert [line for line in lines if theirs(line).input_ids != [*tokenizers.source.encode(line), EOS]] == []
    for line in lines[:200]:
        ids = tokenizers.target.encode(line)
        assert theirs(text_target=line).input_ids == [*ids, EOS]
        if 3 not in ids:
            assert theirs.decode([*ids, EOS], skip_special_tokens=True) == tokenizers.target.decode(ids)


def test_one_changed_weight_is_noticed(unsure, tmp_path):
    exporting.export(unsure("post"), tmp_path / "OUT", "huggingface")
    model = load_model(unsure("post"))
    with torch.no_grad():
        model.encoder.layers[0].attention.input.bias[70] += 0.05
    runtime = writing.opened(tmp_path / "OUT", model.config, digit_tokenizers())
    with pytest.raises(RunError, match=r"the logits of Hugging Face .* differ from the model's by"):
        compare(model, runtime, random_sources(model.config), "Hugging Face")


@pytest.mark.parametrize(
    ("shape", "preprocessor", "message"),
    [
        (
            {"connections": (CONNECTIONS["transparent"].Config(), None)},
            {},
            "its modelling file does not support encoder.connection = transparent (export it --to onnx)",
        ),
        (
            {},
            {"pretokenizer": "moses"},
            "it has no pretokenizer, but the source has moses (export --to onnx or --to ctranslate2 and split the "
            "words yourself, or prepare the text with --pretokenizer none); it has no pretokenizer, but the target",
        ),
    ],
)
def test_what_cannot_be_expressed_is_refused_before_anything_is_written(
    shape, preprocessor, message, tmp_path, unchanged, capsys
):
    pieces = digit_tokenizers().source.subwords
    tokenizers = TokenizerPair(*(Tokenizer(pieces, Preprocessor(code, **preprocessor)) for code in ("de", "en")))
    model = save(tmp_path / "MODEL", random_model(**shape), tokenizers)
    with unchanged(tmp_path):
        assert main(["export", str(model), "--to", "huggingface"]) == 2
    assert f"deepnmt: this model cannot be exported to Hugging Face: {message}" in capsys.readouterr().err
