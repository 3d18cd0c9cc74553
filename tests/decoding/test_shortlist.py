"""A lexical shortlist: what it may change, and what it may not."""

import json
import shutil

import pytest
import torch
from digits import reversed_digits

from deepnmt.api.shortlist import make_shortlist
from deepnmt.cli import main
from deepnmt.data.dataset import CorpusWriter, Side, train_file_name
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.data.vocabulary import EOS
from deepnmt.decoding import translator as translator_module
from deepnmt.decoding.prepared import prepare
from deepnmt.decoding.rules import Rules
from deepnmt.decoding.shortlist import FILE, Shortlist
from deepnmt.decoding.translator import Translator
from deepnmt.errors import InputError
from deepnmt.model.storage import load_model
from deepnmt.serving.limits import Limits
from deepnmt.serving.loading import load_models
from deepnmt.serving.prometheus import Metrics

SOURCES, TARGETS = map(list, zip(*reversed_digits(8, seed=5), strict=True))
SETTINGS = {
    "beam": {"beam": 4, "nbest": 3},
    "greedy": {"beam": 1},
    "sampling": {"sampling": True, "nbest": 2, "seed": 3},
    "mbr": {"mbr": "chrf", "samples": 8, "nbest": 2},
    "rules": {"beam": 3, "no_repeat_ngram": 2, "min_length": 4, "prefixes": TARGETS},
}


def some(size, seed=1, count=4):
    """A shortlist of a few random symbols for each source symbol."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(4, size, (size, count), generator=generator, dtype=torch.int32)
    return Shortlist(drawn.masked_fill(drawn % 7 == 0, -1), torch.tensor([5, 9], dtype=torch.int32))


@pytest.fixture(scope="module")
def make(random_model):
    """A translator with a model that is never sure, and a shortlist."""

    def made(precision="fp32", shortlist=None, model=random_model):
        translator = Translator(model, precision=precision)
        translator.shortlist = shortlist and shortlist(translator.tokenizers[0].target.vocab_size)
        return translator

    return made


def whole(size):
    return Shortlist(torch.full((size, 1), -1, dtype=torch.int32), torch.arange(size, dtype=torch.int32))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_whole_vocabulary_as_shortlist_changes_nothing(make, precision, settings):
    expected = make(precision).translate_nbest(SOURCES, **settings)
    assert make(precision, whole).translate_nbest(SOURCES, **settings) == expected


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_translation_is_the_same_alone_and_in_a_batch(make, settings):
    translator = make(shortlist=some)
    together = translator.translate_nbest(SOURCES, **settings)
    assert together != make().translate_nbest(SOURCES, **settings)
    prefixes = settings.get("prefixes")
    for number, (source, found) in enumerate(zip(SOURCES, together, strict=True)):
        one = {**settings, "prefixes": [prefixes[number]]} if prefixes else settings
        (alone,) = translator.translate_nbest([source], **one)
        assert [each.pieces for each in alone] == [each.pieces for each in found]
        assert [each.score for each in alone] == pytest.approx([each.score for each in found], abs=1e-4)


def test_probabilities_are_normalised_over_the_shortlist_of_the_sentence(make):
    translator = make(shortlist=some)
    tokenizers = translator.tokenizers[0]
    ids = {piece: number for number, piece in enumerate(tokenizers.target.pieces)}
    for source, hypotheses in zip(SOURCES, translator.translate_nbest(SOURCES, nbest=2), strict=True):
        sentence = [*tokenizers.source.encode_batch([source])[0], EOS]
        allowed = torch.zeros(len(ids), dtype=torch.bool)
        listed = translator.shortlist.translations[sentence].flatten().tolist()
        allowed[torch.tensor([0, 1, 2, 3, 5, 9, *(symbol for symbol in listed if symbol >= 0)])] = True
        for hypothesis in hypotheses:
            symbols = [ids[piece] for piece in hypothesis.pieces]
            assert allowed[symbols].all()
            logits = translator.models[0](torch.tensor([sentence]), torch.tensor([[EOS, *symbols]]))[0]
            log_probs = logits.masked_fill(~allowed, -torch.inf).log_softmax(1)
            expected = log_probs.gather(1, torch.tensor([[*symbols, EOS]]).T).sum().item()
            assert hypothesis.log_prob == pytest.approx(expected, abs=1e-3)


def test_the_symbols_of_a_prefix_are_allowed(make):
    translator = make(shortlist=lambda size: Shortlist(whole(size).translations, torch.tensor([4], dtype=torch.int32)))
    found = translator.translate(SOURCES, prefixes=TARGETS, beam=2)
    assert all(text.startswith(target) for text, target in zip(found, TARGETS, strict=True))


def test_an_ensemble_uses_the_shortlist_for_each_model(digits_model, make):
    one = make(shortlist=some, model=digits_model)
    two = make(shortlist=some, model=[digits_model, digits_model])
    assert two.translate(SOURCES) == one.translate(SOURCES)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_logits_of_some_symbols_are_those_of_the_whole_projection(digits_model, precision):
    prepared = prepare(load_model(digits_model), precision)
    symbols = torch.arange(1, prepared.model.config.target_vocab_size, 3)
    features = torch.randn(9, prepared.model.config.decoder.dim)
    found, expected = prepared.restricted(symbols).project(features), prepared.project(features)[:, symbols]
    # Integer products are exact, whatever the size.
    assert torch.equal(found, expected) if precision == "int8" else torch.allclose(found, expected, atol=1e-5)


def test_what_a_batch_needs_is_the_union_of_its_sentences():
    shortlist = Shortlist(torch.tensor([[-1, -1]] * 4 + [[10, 11], [11, -1]]), torch.tensor([6]))
    rules = Rules(torch.tensor([3, 3]), EOS, prefix=torch.tensor([[20], [-1]]))
    batch = shortlist.of_batch([[4, 2], [5, 2]], rules, vocab_size=30)
    assert batch.symbols.tolist() == [0, 1, 2, 3, 6, 10, 11, 20]
    assert (batch.mask == 0).int().tolist() == [[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 1, 0]]
    assert batch.rules.prefix.tolist() == [[7], [-1]]


@pytest.fixture(scope="module")
def dataset(digits_model, tmp_path_factory):
    """Training data of the digits model."""
    folder, tokenizers = tmp_path_factory.mktemp("shortlist") / "data", TokenizerPair.load(digits_model)
    sides = zip(*reversed_digits(300, seed=8), strict=True)
    encoded = [
        side.encode_batch(list(text)) for side, text in zip((tokenizers.source, tokenizers.target), sides, strict=True)
    ]
    folder.mkdir()
    with CorpusWriter(folder, train_file_name("digits"), (57, 57)) as writer:
        writer.append(*map(Side.of, encoded))
    tokenizers.save(folder)
    meta = {"format": 1, "train": [{"name": "digits", **writer.counts()}], "valid": None, "test": None}
    (folder / "dataset.json").write_text(json.dumps(meta), encoding="utf-8")
    return folder


@pytest.fixture
def listed(digits_model, dataset, tmp_path):
    """A copy of the digits model with its shortlist: each symbol itself and eight more."""
    folder = tmp_path / "model"
    shutil.copytree(digits_model, folder)
    make_shortlist(folder, dataset, best=8, frequent=4)
    return folder


def test_a_learned_shortlist_keeps_the_translations(listed, digits_model, tmp_path):
    translator = Translator(listed, shortlist=True)
    assert translator.shortlist.translations.shape == (57, 9)
    assert translator.translate(SOURCES) == Translator(digits_model).translate(SOURCES)
    given, out = tmp_path / "given", tmp_path / "out"
    given.write_text("\n".join(SOURCES) + "\n", encoding="utf-8")
    assert main(["translate", str(listed), "--shortlist", "--input", str(given), "--output", str(out)]) == 0
    assert out.read_text(encoding="utf-8").splitlines() == translator.translate(SOURCES)
    (served,) = load_models([str(listed)], "cpu", "fp32", Limits(), Metrics(), shortlist=True)
    assert served.translator.shortlist is not None
    served.queue.close()


def test_shortlists_that_do_not_fit_are_refused(listed, dataset, tmp_path, monkeypatch):
    def refused(message, folder=listed):
        with pytest.raises(InputError, match=message):
            Translator(folder, shortlist=True)

    path = listed / FILE
    whole_file = path.read_bytes()
    path.write_bytes(whole_file[:-5] + bytes([whole_file[-5] ^ 1]) + whole_file[-4:])
    refused("shortlist.safetensors is damaged: its checksum differs; make it again with `deepnmt shortlist`")
    path.write_bytes(whole_file[:-5])
    refused("shortlist.safetensors cannot be read")
    path.unlink()
    refused("has no shortlist.safetensors; make one with `deepnmt shortlist`")
    shutil.copy(listed / "model.safetensors", path)
    refused("is not a shortlist")
    path.write_bytes(whole_file)
    other = tmp_path / "other"
    shutil.copytree(listed, other)
    pieces = json.loads((other / "tokenizer.target.json").read_text(encoding="utf-8"))
    (other / "tokenizer.target.json").write_text(json.dumps(pieces | {"tags": ["<x>"]}), encoding="utf-8")
    with pytest.raises(InputError, match="different target vocabularies; use the model's training dataset"):
        make_shortlist(other, dataset)
    refused("was made for other vocabularies", other)
    with pytest.raises(InputError, match="best = 0 must be at least 1"):
        make_shortlist(listed, dataset, best=0)
    monkeypatch.setattr(translator_module, "choose_device", lambda device: "cuda")
    refused("a shortlist is for the CPU; on cuda omit --shortlist")
