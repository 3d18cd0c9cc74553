"""Checkpoints written by OpenNMT-py's own code, with its logits: `tests/conversion/opennmt`."""

import gzip
import json
import os
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import deepnmt
from deepnmt.cli import main
from deepnmt.data.learning import given
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.errors import InputError
from deepnmt.model.conversion import convert_model
from deepnmt.model.conversion.opennmt import CLASSES
from deepnmt.model.conversion.reading import read_checkpoint

STORED = Path(__file__).parent / "opennmt"
EXPECTED = json.loads((STORED / "expected.json").read_text(encoding="utf-8"))
SOURCE, TARGET = (Path(__file__).parent / "marian" / f"{side}.spm" for side in ("source", "target"))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """The stored checkpoints as OpenNMT-py wrote them."""
    folder = tmp_path_factory.mktemp("opennmt")
    for path in STORED.glob("*.pt.gz"):
        (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    return folder


def convert(checkpoint, out, **options):
    pieces = [SOURCE] if "relative" in checkpoint.name else [SOURCE, TARGET]
    given = {"toolkit": "opennmt-py", "source_lang": "en", "target_lang": "de", "tokenizer": pieces, **options}
    return deepnmt.convert(checkpoint, out, **given)


@pytest.fixture(scope="module")
def models(checkpoints):
    for name in EXPECTED:
        convert(checkpoints / f"{name}.pt", checkpoints / name)
    return checkpoints


def stored_vocabulary(path):
    """The target symbols of a checkpoint, by their numbers there."""
    vocabulary = read_checkpoint(path, CLASSES)["vocab"]["tgt"]
    return vocabulary if isinstance(vocabulary, list) else vocabulary.fields[0][1].vocab.itos


@pytest.mark.parametrize("name", EXPECTED)
def test_logits_are_those_of_opennmt(models, checkpoints, name):
    model, pair = deepnmt.load_model(models / name), TokenizerPair.load(models / name)
    symbols = [{"<blank>": "<pad>"}.get(symbol, symbol) for symbol in stored_vocabulary(checkpoints / f"{name}.pt")]
    order = [pair.target.pieces.index(symbol) for symbol in symbols]
    for example in EXPECTED[name]:
        source, target = pair.source.encode(example["source"]), pair.target.encode(example["target"])
        with torch.no_grad():
            (found,) = model(torch.tensor([source]), torch.tensor([[pair.target.eos_id, *target]]))
        found, expected = found[:, order], torch.tensor(example["logits"])
        if name == "v2":  # log probabilities
            found = found.log_softmax(-1)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", EXPECTED)
def test_text_has_the_probability_that_opennmt_gives_it(models, checkpoints, name):
    """From raw text: the source has no end, the target starts with <s> and ends with </s>."""
    examples = EXPECTED[name]
    translator, symbols = deepnmt.Translator(models / name), stored_vocabulary(checkpoints / f"{name}.pt")
    found = translator.likelihoods([e["source"] for e in examples], [e["target"] for e in examples])
    for example, likelihood in zip(examples, found, strict=True):
        rows = torch.tensor(example["logits"]).log_softmax(-1)
        expected = [float(row[symbols.index(piece)]) for row, piece in zip(rows, likelihood.pieces, strict=True)]
        assert likelihood.log_probs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", EXPECTED)
def test_text_is_translated(models, name):
    translator = deepnmt.Translator(models / name)
    texts, settings = ["green tree 7 house", ""], {"min_length": 2, "max_length": 6, "alignments": True}
    (first, *_), (empty, *_) = translator.translate_nbest(texts, beam=3, **settings)
    assert 2 <= len(first.pieces) <= 6 and first.text and empty.text == ""
    assert first.alignment.source_words == ["green", "tree", "7", "house"]
    assert first.alignment.weights.sum(1) == pytest.approx(1.0)


def test_sources_end_in_new_data_and_hence_in_fine_tuning(models):
    """Only the converted model itself has seen no end of a source."""
    of_model = TokenizerPair.load(models / "v2")
    assert (of_model.source.ending, of_model.target.ending) == ([], [2])
    preprocessors = of_model.source.preprocessor, of_model.target.preprocessor
    assert given([models / "v2"], preprocessors, ()).source.ending == [2]
    with pytest.raises(InputError, match="line 2 has an empty source"):
        deepnmt.Translator(models / "v2").likelihoods(["house", ""], ["DOG", "DOG"])


def test_settings_are_kept(models):
    configs = {name: deepnmt.load_model(models / name).config for name in EXPECTED}
    assert [configs[name].positions for name in ("v2", *(f"v3-{n}" for n in ("sinusoidal", "relative", "rotary")))] == [
        "sinusoidal-hf", "sinusoidal", "relative", "rotary",
    ]  # fmt: skip
    assert (configs["v3-rotary"].activation, configs["v3-rotary"].norm_kind) == ("swiglu", "rms")
    assert configs["v3-rotary"].encoder.norm_eps == 0.01
    assert configs["v2"].decoder.norm_eps == 1e-6
    assert configs["v3-relative"].share_embeddings and configs["v3-sinusoidal"].tie_output
    config = configs["v2"]
    assert (config.dropout, config.ffn_dropout, config.attention_dropout) == (0.2, 0.2, 0.3)
    assert not config.share_embeddings and not config.tie_output


def test_weights_in_safetensors(checkpoints, models, tmp_path):
    stored = read_checkpoint(checkpoints / "v3-sinusoidal.pt", ())
    model, generator = stored.pop("model"), stored.pop("generator")
    torch.save(stored, tmp_path / "c[1].pt")
    with pytest.raises(InputError, match=r"has no weights, and there is no c\[1\].safetensors beside it"):
        convert(tmp_path / "c[1].pt", tmp_path / "MODEL")
    save_file({name: tensor.clone() for name, tensor in model.items()}, tmp_path / "c[1].00.safetensors")
    save_file({f"generator.{n}": tensor.clone() for n, tensor in generator.items()}, tmp_path / "c[1].01.safetensors")
    convert(tmp_path / "c[1].pt", tmp_path / "MODEL")
    whole = {**model, **{f"generator.{name}": tensor for name, tensor in generator.items()}}
    torch.save(stored, tmp_path / "d.pt")
    save_file({name: tensor.clone() for name, tensor in whole.items()}, tmp_path / "d.safetensors")
    convert(tmp_path / "d.pt", tmp_path / "OTHER")
    for folder in (tmp_path / "MODEL", tmp_path / "OTHER"):
        weights = (folder / "model.safetensors", models / "v3-sinusoidal" / "model.safetensors")
        assert weights[0].read_bytes() == weights[1].read_bytes()


def test_without_subwords_a_model_has_no_tokenisers(checkpoints, tmp_path, capsys):
    command = ["convert", str(checkpoints / "v2.pt"), "--from", "opennmt-py", "--out", str(tmp_path / "MODEL")]
    assert main(command) == 0
    assert "no tokenisers; to translate text, convert again with --codes or --tokenizer" in capsys.readouterr().out


class TestRefusals:
    @pytest.fixture
    def stored(self, checkpoints):
        return read_checkpoint(checkpoints / "v3-sinusoidal.pt", ())

    def refusal(self, tmp_path, stored):
        torch.save(stored, tmp_path / "c.pt")
        with pytest.raises(InputError) as refused:
            convert_model(tmp_path / "c.pt", "opennmt-py")
        assert "\n" not in str(refused.value)
        return str(refused.value).replace(str(tmp_path / "c.pt"), "FILE")

    @pytest.mark.parametrize(
        ("setting", "value"),
        [
            ("encoder_type", "brnn"),
            ("decoder_type", "rnn"),
            ("model_task", "lm"),
            ("self_attn_type", "average"),
            ("copy_attn", True),
            ("pos_ffn_activation_fn", "gated-gelu"),
            ("parallel_residual", True),
            ("relative_positions_buckets", 32),
            ("rotary_theta", 500000),
            ("sliding_window", 4),
            ("num_experts", 4),
            ("generator_function", "sparsemax"),
        ],
    )
    def test_settings_by_name(self, tmp_path, stored, setting, value):
        setattr(stored["opt"], setting, value)
        assert self.refusal(tmp_path, stored) == f"FILE uses {setting} = {value}, which deepnmt does not support"

    def test_positions(self, tmp_path, stored):
        stored["opt"].max_relative_positions = -2
        assert "uses position_encoding with max_relative_positions = -2" in self.refusal(tmp_path, stored)
        stored["opt"].position_encoding = False
        assert "uses ALiBi (max_relative_positions = -2 without position_encoding)" in self.refusal(tmp_path, stored)
        stored["opt"].max_relative_positions = 0
        assert "uses no positions (max_relative_positions = 0 " in self.refusal(tmp_path, stored)

    def test_a_mixture_of_norms(self, tmp_path, stored):
        stored["opt"].layer_norm = "rms"
        assert "uses RMSNorm in the layers but not after them, as in version 3.1, " in self.refusal(tmp_path, stored)

    def test_source_features(self, tmp_path, stored):
        stored["model"]["encoder.embeddings.make_embedding.emb_luts.1.weight"] = torch.zeros(3, 2)
        assert self.refusal(tmp_path, stored) == "FILE uses source features, which deepnmt does not support"

    def test_unknown_weights_and_lora(self, tmp_path, stored):
        stored["model"]["encoder.transformer.0.self_attn.linear_keys.lora_A"] = torch.zeros(2, 2)
        assert "self_attn.k_proj.lora_A, which deepnmt does not support" in self.refusal(tmp_path, stored)
        stored["generator"] = None
        assert self.refusal(tmp_path, stored) == (
            "FILE is not a checkpoint of a whole model: it needs model and generator"
        )

    def test_shapes_that_do_not_fit(self, tmp_path, stored):
        name = "decoder.transformer_layers.0.self_attn.linear_keys.weight"
        for shape in ((), (3, 8), (0, 8)):
            stored["model"][name] = torch.zeros(shape)
            assert "the shapes of its weights do not match" in self.refusal(tmp_path, stored)
        for heads in (0, 3):
            stored["opt"].heads = heads
            assert self.refusal(tmp_path, stored) == f"FILE: heads = {heads} does not divide the width 8"

    def test_vocabularies(self, tmp_path, stored):
        stored["vocab"]["tgt"] = [symbol for symbol in stored["vocab"]["tgt"] if symbol != "</s>"]
        assert self.refusal(tmp_path, stored) == "FILE: the target vocabulary has no <s> or </s>"
        stored["vocab"]["tgt"] = None
        assert self.refusal(tmp_path, stored) == "FILE: vocab has no list of symbols for tgt"
        stored["vocab"]["decoder_start_token"] = "<de>"
        assert "decoder_start_token = <de>" in self.refusal(tmp_path, stored)
        stored["vocab"] = [("src", None)]
        assert self.refusal(tmp_path, stored) == (
            "FILE is not a checkpoint of OpenNMT-py 2 or 3: it needs opt and vocab"
        )

    def test_objects_that_are_no_vocabulary(self, tmp_path, stored, monkeypatch):
        vocabulary = type("Vocab", (), {"__module__": "torchtext.vocab"})
        for name in ("torchtext", "torchtext.vocab"):
            monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(Vocab=vocabulary))
        stored["vocab"]["src"] = vocabulary()
        for fields in ([], None, [("src", None)]):
            stored["vocab"]["src"].fields = fields
            assert self.refusal(tmp_path, stored) == "FILE: vocab has no list of symbols for src"

    def test_a_vocabulary_with_a_symbol_twice(self, tmp_path, stored):
        stored["vocab"]["src"][-1] = stored["vocab"]["src"][-2]
        torch.save(stored, tmp_path / "c.pt")
        with pytest.raises(InputError, match=r"c.pt: a vocabulary lists a symbol twice"):
            convert(tmp_path / "c.pt", tmp_path / "MODEL")

    def test_pickled_code_is_not_executed(self, tmp_path, stored):
        class Malicious:
            def __reduce__(self):
                return os.system, (f"touch {tmp_path / 'owned'}",)

        stored["vocab"]["tgt"] = Malicious()
        assert "asks for posix.system, which is not data" in self.refusal(tmp_path, stored)
        assert not (tmp_path / "owned").exists()

    def test_options(self, checkpoints, tmp_path):
        checkpoint, out = checkpoints / "v2.pt", tmp_path / "MODEL"
        with pytest.raises(InputError, match="`source_dict` is not used with opennmt-py, whose checkpoint has the voc"):
            convert(checkpoint, out, source_dict="dict.txt")
        with pytest.raises(InputError, match=r"also give `codes` or `tokenizer`$"):
            convert(checkpoint, out, tokenizer=[])
        (tmp_path / "codes").write_text("#version: 0.2\nh e\n", encoding="utf-8")
        with pytest.raises(InputError, match="no symbol that ends in @@, as those of subword-nmt do"):
            convert(checkpoint, out, tokenizer=[], codes=[tmp_path / "codes"])
        assert not out.exists()

    def test_export(self, models, tmp_path):
        with pytest.raises(InputError, match="exports end every source with </s>"):
            deepnmt.export(models / "v2", tmp_path / "EXPORT", to="ctranslate2")
