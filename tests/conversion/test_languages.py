"""A model with many languages: in `translate`, `prepare` and alignments."""

import json
from pathlib import Path

import pytest
import torch
from foreign_models import pieces_of, sentencepiece_model

import deepnmt
from deepnmt.cli import main
from deepnmt.data.dataset import Dataset
from deepnmt.data.sentence_pieces import ListedPieces
from deepnmt.data.tokenizer import AS_IT_IS, LanguageTags, Preprocessor, Tokenizer, TokenizerPair
from deepnmt.decoding.translator import in_processes
from deepnmt.errors import InputError
from deepnmt.languages import base_language
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.storage import save_model
from deepnmt.model.transformer import Transformer

CODES = ["eng_Latn", "deu_Latn", "jpn_Jpan"]
TEXTS = ["the small house", "", "an old tree grows by a river"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An untrained model as `convert` makes one of NLLB."""
    spm = sentencepiece_model(3, "bpe")
    pieces = ListedPieces(spm, pieces_of(spm))
    tags = dict(zip(CODES, CODES, strict=True))
    pair = TokenizerPair(
        *(
            Tokenizer(pieces, Preprocessor("mul", normalization=AS_IT_IS), CODES, LanguageTags(side, tags))
            for side in ("source", "target")
        )
    )
    torch.manual_seed(0)
    stack = StackConfig(num_layers=1, dim=32, ffn_dim=16, num_heads=2)
    sizes = {"source_vocab_size": pair.source.vocab_size, "target_vocab_size": pair.target.vocab_size}
    out = tmp_path_factory.mktemp("many") / "MODEL"
    model = Transformer(ModelConfig(**sizes, encoder=stack, decoder=stack, share_embeddings=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    save_model(out, model)
    pair.save(out)
    return out


def test_translations_depend_on_both_languages_and_show_no_tag(folder):
    translator, settings = deepnmt.Translator(folder), {"beam": 2, "max_length": 8}
    found = {
        (source, target): translator.for_languages(source, target).translate_nbest(TEXTS, alignments=True, **settings)
        for source in CODES[:2]
        for target in CODES[1:]
    }
    assert len({tuple(hypotheses[0].score for hypotheses in each) for each in found.values()}) == 4
    for (_, target), each in found.items():
        assert each[1][0].text == ""
        for best, *_ in (each[0], each[2]):
            assert best.pieces[0] == target
            assert not any(code in best.text for code in CODES)
            assert not {*CODES} & {*best.alignment.source_words, *best.alignment.target_words}
            assert len(best.alignment.source_words) in (3, 7)


def test_processes_know_the_languages_of_a_batch(folder):
    translator = deepnmt.Translator(folder)
    torch.set_num_threads(2)
    for target in CODES[1:]:
        one = translator.for_languages("eng_Latn", target)
        expected = one.translate_nbest(TEXTS, beam=2, max_length=8)
        with in_processes(translator):
            found = translator.for_languages("eng_Latn", target).translate_nbest(TEXTS, beam=2, max_length=8)
        assert [each[0].pieces for each in found] == [each[0].pieces for each in expected]


@pytest.mark.gpu
@pytest.mark.parametrize("target", CODES[1:])
def test_a_gpu_translates_as_a_cpu_does(folder, target):
    found, expected = (
        deepnmt.Translator(folder, device=device).for_languages("eng_Latn", target).translate_nbest(TEXTS, beam=2)
        for device in ("cuda", "cpu")
    )
    assert [each[0].text for each in found] == [each[0].text for each in expected]
    assert [each[0].score for each in found] == pytest.approx([each[0].score for each in expected], abs=1e-3)


@torch.no_grad()
def test_a_tag_costs_nothing_but_counts_as_a_symbol(folder):
    translator = deepnmt.Translator(folder).for_languages("eng_Latn", "deu_Latn")
    model, target = translator.models[0], translator.tokenizers[0].target
    ((best, *_),) = translator.translate_nbest(TEXTS[:1], beam=2, length_penalty=1.0, max_length=8)
    source = torch.tensor([[*translator.tokenizers[0].source.encode(TEXTS[0]), 2]])
    symbols = [target.pieces.index(piece) for piece in best.pieces]
    log_probs = model(source, torch.tensor([[2, *symbols]])).log_softmax(-1)[0]
    expected = sum(float(log_probs[i, symbol]) for i, symbol in enumerate([*symbols, 2]) if i)
    assert best.log_prob == pytest.approx(expected, abs=1e-4)
    assert best.score == pytest.approx(expected / (len(symbols) + 1), abs=1e-4)

    given = [*target.encode("an old tree"), 2]
    log_probs = model(source, torch.tensor([[2, *given[:-1]]])).log_softmax(-1)[0]
    (found,) = translator.likelihoods(TEXTS[:1], ["an old tree"])
    expected = [float(log_probs[i, symbol]) for i, symbol in enumerate(given) if i]
    assert found.log_probs == pytest.approx(expected, abs=1e-4)


def test_the_layers_of_a_converted_model_are_measured_without_the_tag(folder, tmp_path):
    source, reference = tmp_path / "source", tmp_path / "reference"
    source.write_text("".join(f"{text}\n" for text in TEXTS))
    reference.write_text("an old tree\n" * len(TEXTS))
    report = deepnmt.inspect_layers(
        folder, source, reference, device="cpu", source_lang="eng_Latn", target_lang="deu_Latn"
    )
    translator = deepnmt.Translator(folder).for_languages("eng_Latn", "deu_Latn")
    found = translator.likelihoods(TEXTS, ["an old tree"] * len(TEXTS))
    subwords = sum(len(one.pieces) for one in found)
    assert report.target_subwords == subwords
    assert report.loss == pytest.approx(-sum(one.log_prob for one in found) / subwords, abs=1e-5)


def test_the_command_chooses_and_refuses_languages(folder, tmp_path, capsys):
    (tmp_path / "in").write_text("the house\n", encoding="utf-8")
    command = ["translate", str(folder), "--input", str(tmp_path / "in"), "--device", "cpu", "--max-length", "5"]
    assert main([*command, "--source-lang", "eng_Latn", "--target-lang", "jpn_Jpan"]) == 0
    capsys.readouterr()
    for languages, message in (
        ([], "deepnmt: the model has 3 target languages; choose one with --target-lang\n"),
        (
            ["--source-lang", "eng_Latn", "--target-lang", "deu_Lat"],
            "deepnmt: the model has no target language 'deu_Lat' (it has eng_Latn, deu_Latn, jpn_Jpan); "
            "did you mean deu_Latn?\n",
        ),
    ):
        assert main([*command, *languages]) == 2
        assert capsys.readouterr().err == message


def test_prepared_text_begins_with_the_tags(folder, tmp_path):
    for name, line in (("a", "the small house"), ("b", "an old tree")):
        (tmp_path / name).write_text(f"{line}\n{line} grows\n", encoding="utf-8")
    files = {"source": tmp_path / "a", "target": tmp_path / "b"}
    held_out = {f"valid_{side}": path for side, path in files.items()}
    dataset = deepnmt.prepare(
        **files, **held_out, source_lang="eng_Latn", target_lang="deu_Latn", tokenizer=folder, out=tmp_path / "DATASET",
        keep=["overlap"], workers=1,
    )  # fmt: skip
    pair = Dataset.open(tmp_path / "DATASET").tokenizers
    assert (pair.source.begin, pair.target.begin) == ("eng_Latn", "deu_Latn")
    for corpus in (dataset.train["train"], dataset.valid):
        first = (corpus.source[0], corpus.target[0])
        assert [int(ids[0]) for ids in first] == [*pair.source.opening("eng_Latn"), *pair.target.opening("deu_Latn")]
        assert pair.target.decode(first[1]) == "an old tree"


def test_a_model_is_fine_tuned_in_several_directions(folder, tmp_path):
    for name, line in (("a", "the small house"), ("b", "an old tree")):
        (tmp_path / name).write_text("".join(f"{line} {number}\n" for number in range(20)), encoding="utf-8")
    directions = {
        ("eng_Latn", "deu_Latn"): (tmp_path / "a", tmp_path / "b"),
        ("jpn_Jpan", "eng_Latn"): (tmp_path / "b", tmp_path / "a"),
    }
    data = deepnmt.prepare(directions=directions, hold_out=2, tokenizer=folder, out=tmp_path / "DATASET", workers=1)
    for languages in directions:
        corpus, pair = data.train["-".join(languages)], data.tokenizers.for_languages(*languages)
        firsts = [int(side[0][0]) for side in corpus.sides]
        assert firsts == [*pair.source.opening(languages[0]), *pair.target.opening(languages[1])]
    settings = {"training.max_steps": 2, "training.tensorboard": False, "training.warmup_steps": 1}
    run = deepnmt.train(None, data, tmp_path / "RUN", from_model=folder, overrides=settings, device="cpu")
    assert {"bleu/eng_Latn-deu_Latn", "bleu/jpn_Jpan-eng_Latn", "bleu"} <= set(run.scores)


def test_codes_of_three_letters_are_languages_too():
    assert [base_language(code) for code in ("eng_Latn", "zho_Hans", "deu", "de-AT", "ace_Arab", "German")] == [
        *("en", "zh", "de", "de", "ace", "de"),
    ]


def test_files_of_today_have_no_languages(tmp_path, folder):
    """A tokeniser without languages is stored as before; one with them comes back whole."""
    state = json.loads((Path(folder) / "tokenizer.source.json").read_text(encoding="utf-8"))
    assert state["languages"] == {"of": "source", "tags": dict(zip(CODES, CODES, strict=True))}
    with pytest.raises(InputError, match="no source language 'fi'"):
        TokenizerPair.load(folder).for_languages("fi", "deu_Latn")
