"""Models and tokenisers of Hugging Face become ours: the same logits, the same translations, the same ids."""

import json
import os
import shutil
import unicodedata
import warnings
from dataclasses import replace
from functools import cache

import pytest
import safetensors.torch
import sentencepiece
import torch

import deepnmt
from deepnmt.data.conversion.m2m100 import M2M100_LANGUAGES
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.decoding.config import SearchConfig
from deepnmt.decoding.prepared import PreparedModel
from deepnmt.decoding.rules import Rules, prefix_table
from deepnmt.decoding.search import Beams, search
from deepnmt.errors import InputError

transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs transformers")
from foreign_models import mixed_lines, write_fsmt, write_m2m100, write_marian  # noqa: E402

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
EOS, PAD = 2, 1
STEPS = 80
LENGTHS = (6, 3, 4, 9, 1, 2)
WRITERS = {
    "marian": lambda folder: write_marian(folder, STEPS),
    "marian, relu, unscaled": lambda folder: write_marian(folder, activation_function="relu", scale_embedding=False),
    "marian, two vocabularies": lambda folder: write_marian(folder, separate=True),
    "marian, several targets": lambda folder: write_marian(folder, tags=(">>deu<<", ">>nld<<")),
    "m2m100": lambda folder: write_m2m100(folder, STEPS),
    "nllb": lambda folder: write_m2m100(folder, nllb=True),
    "fsmt": lambda folder: write_fsmt(folder, STEPS),
}
TRAINED = ("marian", "m2m100", "fsmt")


class Both:
    """A folder of Hugging Face, its model, and what `convert` makes of it."""

    def __init__(self, name, tmp):
        self.folder = WRITERS[name](tmp / "theirs")
        self.is_marian = name.startswith("marian")
        self.theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(self.folder).eval()
        self.model_folder = tmp / "MODEL"
        self.ours = deepnmt.convert(self.folder, self.model_folder)
        self.pair = TokenizerPair.load(self.model_folder)
        self.numbers = {side: self._numbers(getattr(self.pair, side)) for side in ("source", "target")}

    def _numbers(self, tokenizer):
        """Their number of each of our symbols."""
        if not self.is_marian:
            return list(range(tokenizer.vocab_size))
        name = "vocab.json" if tokenizer is self.pair.source or self.pair.shared else "target_vocab.json"
        theirs = json.loads((self.folder / name).read_text(encoding="utf-8"))
        return [theirs["<pad>"], *(theirs[piece] for piece in tokenizer.pieces[1:])]

    def their_ids(self, ids, side):
        return torch.tensor(self.numbers[side])[ids]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return cache(lambda name: Both(name, tmp_path_factory.mktemp("folder")))


@pytest.fixture(params=WRITERS)
def both(request, made):
    return made(request.param)


def sources(both):
    generator = torch.Generator().manual_seed(0)
    rows = [[*torch.randint(8, 20, (length,), generator=generator).tolist(), EOS] for length in LENGTHS]
    return torch.tensor([row + [PAD] * (max(LENGTHS) + 1 - len(row)) for row in rows])


@torch.no_grad()
def test_logits_are_those_of_transformers(both):
    source = sources(both)
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(4, both.pair.target.vocab_size, (len(source), 7), generator=generator)
    target[:, 0] = EOS
    theirs = both.their_ids(target, "target")
    theirs[:, 0] = both.theirs.config.decoder_start_token_id
    given = both.their_ids(source, "source")
    expected = both.theirs(
        input_ids=given, attention_mask=(source != PAD).long(), decoder_input_ids=theirs, use_cache=False
    ).logits
    symbols = torch.arange(1 if both.is_marian else 0, both.pair.target.vocab_size)
    found = both.ours(source, target)
    torch.testing.assert_close(found[..., symbols], expected[..., both.their_ids(symbols, "target")], rtol=0, atol=1e-4)
    if both.is_marian:
        assert (found.log_softmax(-1)[..., 0] < -50).all(), "what only starts a sentence is never predicted"


@pytest.mark.parametrize("both", TRAINED, indirect=True)
@pytest.mark.parametrize("beam", [1, 4])
@torch.no_grad()
def test_translations_are_those_of_transformers_token_for_token(both, beam):
    source, length = sources(both), 30
    forced = both.pair.target.opening(both.pair.target.tags[1])[0] if both.pair.target.languages else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = both.theirs.generate(
            input_ids=both.their_ids(source, "source"),
            attention_mask=(source != PAD).long(),
            num_beams=beam,
            length_penalty=0.6,
            early_stopping=True,
            max_new_tokens=length + 1,
            forced_bos_token_id=forced,
            suppress_tokens=both.their_ids(torch.tensor([PAD] if both.is_marian else [0, PAD]), "target").tolist(),
            do_sample=False,
        )
    prepared = PreparedModel(both.ours)
    rules = Rules(
        max_lengths=torch.full((len(source),), length),
        eos=EOS,
        banned=(0, PAD, *range(both.pair.target.vocab_size, both.ours.config.target_vocab_size)),
        prefix=None if forced is None else prefix_table([[forced]] * len(source)),
        free=int(forced is not None),
    )
    config = SearchConfig(beam=beam, length_penalty=0.6, stop_early=False)
    found = search(prepared.step, prepared.start(source, beam), Beams(rules, config))
    end = both.theirs.config.eos_token_id
    assert sum(end in row[1:] for row in expected.tolist()) >= 4, "sentences that end by themselves"
    for row, (best, *_) in zip(expected.tolist(), found, strict=True):
        if end in row[1:]:  # at the longest length one search must end, the other is cut off
            symbols = torch.tensor([*best.symbols, EOS])
            assert both.their_ids(symbols, "target").tolist() == row[1 : row.index(end, 1) + 1]


@pytest.mark.parametrize("both", [name for name in WRITERS if "relu" not in name], indirect=True)
def test_ids_of_mixed_unicode_are_those_of_transformers(both):
    lines, pair, announced = mixed_lines(10_000), both.pair, ""
    if both.is_marian or not pair.source.languages:
        tokenizer = transformers.AutoTokenizer.from_pretrained(both.folder)
        if pair.source.languages:
            pair, announced = pair.for_languages("en", "nld"), ">>nld<<"
    else:
        first, second = ("de", "en") if (both.folder / "vocab.json").exists() else ("deu_Latn", "eng_Latn")
        kind = "M2M100Tokenizer" if (both.folder / "vocab.json").exists() else "NllbTokenizer"
        tokenizer = getattr(transformers, kind).from_pretrained(both.folder, src_lang=first)
        pair = pair.for_languages(first, second)
        if kind == "NllbTokenizer":
            # Theirs imitates SentencePiece, and differs from it after spaces at the end and marks after spaces.
            assert_as_sentencepiece(both.folder / "sentencepiece.bpe.model", lines, pair.source)
            lines = [" ".join(unicodedata.normalize("NFKC", line).split()) for line in lines]
    expected = [ids[:-1] for ids in tokenizer([announced + line for line in lines])["input_ids"]]
    found = [[both.numbers["source"][number] for number in ids] for ids in pair.source.encode_batch(lines)]
    different = [case for case in zip(lines, expected, found, strict=True) if case[1] != case[2]]
    assert not different, f"{len(different)} lines, such as {different[0]}"


def assert_as_sentencepiece(model, lines, tokenizer):
    encoded = sentencepiece.SentencePieceProcessor(model_file=str(model)).encode(lines)
    expected = [[number + 1 if number else 3 for number in ids] for ids in encoded]  # <unk> is 0 there, and 3 here
    assert [ids[1:] for ids in tokenizer.encode_batch(lines)] == expected


def test_the_languages_of_m2m100():
    from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

    assert FAIRSEQ_LANGUAGE_CODES["m2m100"] == M2M100_LANGUAGES


class Malicious:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


class TestFiles:
    """Weights in other files than one of safetensors, and folders that are refused."""

    @pytest.fixture
    def folder(self, made, tmp_path):
        return shutil.copytree(made("fsmt").folder, tmp_path / "copy")

    def convert(self, folder):
        return deepnmt.convert(folder, folder.with_name("MODEL"))

    @pytest.mark.parametrize("split", [False, True], ids=["whole", "in two"])
    def test_torch_files(self, made, folder, split):
        state = safetensors.torch.load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        if split:
            names = sorted(state)
            files = {f"part-{i}.bin": {name: state[name] for name in names[i::2]} for i in (0, 1)}
            index = {"weight_map": {name: file for file, part in files.items() for name in part}}
            (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index), encoding="utf-8")
        else:
            files = {"pytorch_model.bin": state}
        for name, part in files.items():
            torch.save(part, folder / name)
        for mine, expected in zip(self.convert(folder).parameters(), made("fsmt").ours.parameters(), strict=True):
            assert torch.equal(mine, expected)

    def test_a_pickle_is_not_executed(self, folder, tmp_path):
        (folder / "model.safetensors").unlink()
        torch.save({"x": Malicious(f"touch {tmp_path / 'owned'}")}, folder / "pytorch_model.bin")
        with pytest.raises(InputError, match=r"its pickle asks for posix\.system, which is not data"):
            self.convert(folder)
        assert not (tmp_path / "owned").exists()

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"model_type": "t5"}, "has model_type 't5'; supported are marian, m2m_100, fsmt"),
            ({"activation_function": "gelu_new"}, "activation_fn = gelu_new, which deepnmt does not support"),
            ({"eos_token_id": 5}, "eos_token_id = 5, but deepnmt supports only eos_token_id = 2"),
            ({"normalize_embedding": True}, "deepnmt supports only normalize_embedding = False"),
        ],
        ids=str,
    )
    def test_settings_are_refused_by_name(self, folder, settings, message):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | settings), encoding="utf-8")
        with pytest.raises(InputError, match=message):
            self.convert(folder)
        assert not folder.with_name("MODEL").exists()

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            (
                "model.encoder.layernorm_embedding.weight",
                "uses the parameter encoder.layernorm_embedding.weight, which deepnmt",
            ),
            ("model.encoder.embed_positions.weight", "are not the sinusoids of its class"),
        ],
    )
    def test_tensors_are_refused_by_name(self, folder, name, message):
        state = safetensors.torch.load_file(folder / "model.safetensors")
        safetensors.torch.save_file(state | {name: torch.ones(8, 32)}, folder / "model.safetensors")
        with pytest.raises(InputError, match=message):
            self.convert(folder)

    @pytest.mark.parametrize("name", ["model.safetensors", "merges.txt", "vocab-src.json"])
    def test_missing_files_are_named(self, folder, name):
        (folder / name).unlink()
        with pytest.raises(InputError, match=name):
            self.convert(folder)


def test_a_model_with_several_targets_has_the_chosen_one_as_default(made, tmp_path):
    folder = made("marian, several targets").folder
    deepnmt.convert(folder, tmp_path / "MODEL", source_lang="en", target_lang="deu")
    pair = TokenizerPair.load(tmp_path / "MODEL")
    assert pair.source.encode("the house") == [*pair.source.opening(">>deu<<"), *pair.source.encode("the house")[1:]]
    assert pair.for_languages("en", "nld").source.begin == ">>nld<<"
    undecided = TokenizerPair(replace(pair.source, begin=""), pair.target)  # as earlier versions stored it
    assert undecided.for_languages(None, "deu").source.begin == ">>deu<<"
    with pytest.raises(InputError, match=r"no target language 'de' \(it has deu, nld\); did you mean deu\?"):
        deepnmt.convert(folder, tmp_path / "OTHER", source_lang="en", target_lang="de")


@pytest.mark.parametrize(
    ("name", "file", "change", "message"),
    [
        ("m2m100", "config.json", {"vocab_size": "many"}, r"are not those of m2m100 \(ValueError: .*'many'\)"),
        ("m2m100", "tokenizer_config.json", {"added_tokens_decoder": []}, "are not those of m2m100"),
        ("nllb", "tokenizer.json", {"added_tokens": [{"id": 5}]}, r"are not those of nllb \(KeyError: 'content'\)"),
        ("nllb", "tokenizer.json", {"added_tokens": []}, "lists no languages in tokenizer.json"),
        ("fsmt", "tokenizer_config.json", {"langs": ["en"]}, "are not those of fsmt"),
    ],
)
def test_damaged_tokeniser_files_are_refused(made, tmp_path, name, file, change, message):
    folder = shutil.copytree(made(name).folder, tmp_path / "copy")
    content = json.loads((folder / file).read_text(encoding="utf-8"))
    (folder / file).write_text(json.dumps(content | change), encoding="utf-8")
    if name == "nllb":
        (folder / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match=message):
        deepnmt.convert(folder, tmp_path / "MODEL", toolkit=name)


@pytest.mark.parametrize("name", ["m2m100", "nllb"])
def test_a_converted_model_translates_between_its_languages(made, name):
    first, second = ("en", "de") if name == "m2m100" else ("eng_Latn", "deu_Latn")
    translator = deepnmt.Translator(made(name).model_folder).for_languages(first, second)
    (text,) = translator.translate(["the small house"], beam=2, max_length=5)
    assert second not in text
    assert json.loads((made(name).model_folder / "meta.json").read_text())["languages"]["source"][0] in (
        "af",
        "eng_Latn",
    )
