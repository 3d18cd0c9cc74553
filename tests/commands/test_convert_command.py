"""`deepnmt convert` as its user meets it."""

import argparse
import re
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from pytest import fixture, mark, raises

import deepnmt
from deepnmt.cli import main
from deepnmt.commands.convert import FORMATS
from deepnmt.data.subword_nmt import read_dictionary
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.errors import InputError
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.conversion import FORMATS as CONVERTERS
from deepnmt.model.storage import load_meta, save_model
from deepnmt.model.sublayers.deepnorm import DeepNormConfig
from deepnmt.model.transformer import Transformer

AUTHORS = Path(__file__).parents[1] / "model" / "authors"
PIECES = Path(__file__).parents[1] / "conversion" / "marian" / "source.spm"


@fixture
def convert(capsys):
    def call(*arguments):
        status = main(["convert", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@fixture
def text_files(tmp_path):
    """A dictionary of fairseq for 46 symbols (the stored models have 50 ids), and codes for some of them."""
    (tmp_path / "codes").write_text("#version: 0.2\nh e\nl l\nhe ll\nhell o</w>\n", encoding="utf-8")
    symbols = ["hello", "w@@", "o@@", "r@@", "l@@", "d", "a", "b", ".", *(f"madeupword{i:04}" for i in range(37))]
    (tmp_path / "dict.txt").write_text("".join(f"{symbol} {90 - i}\n" for i, symbol in enumerate(symbols)))
    return [
        "--source-dict",
        tmp_path / "dict.txt",
        "--codes",
        tmp_path / "codes",
        "--source-lang",
        "en",
        "--target-lang",
        "de",
    ]


def test_every_format_has_a_converter():
    assert FORMATS.keys() == CONVERTERS.keys()


def test_npz_becomes_a_model_that_gives_the_authors_numbers(convert, tmp_path):
    status, out, err = convert(AUTHORS / "dlcl_post.npz", "--from", "dlcl", "--out", tmp_path / "MODEL")
    assert (status, err) == (0, "")
    heading, encoder, decoder, note = out.splitlines()
    assert heading == f"{tmp_path / 'MODEL'}: 83,380 parameters, post-norm"
    assert encoder == "encoder  5 layers, dlcl, width 32, ffn 64, 4 heads"
    assert decoder == "decoder  3 layers, dlcl, width 32, ffn 64, 4 heads"
    assert "no tokenisers" in note
    model = deepnmt.load_model(tmp_path / "MODEL")
    with np.load(AUTHORS / "dlcl_post.npz") as stored, torch.no_grad():
        logits = model(torch.from_numpy(stored["source"]), torch.from_numpy(stored["target_input"]))
        np.testing.assert_allclose(logits.numpy(), stored["logits"], rtol=0, atol=1e-5)
    assert load_meta(tmp_path / "MODEL")["converted_from"]["file"] == "dlcl_post.npz"


@fixture
def checkpoint(tmp_path):
    """A torch checkpoint of the authors' model."""
    with np.load(AUTHORS / "dlcl_pre.npz") as stored:
        state = {k.removeprefix("param/"): torch.from_numpy(stored[k]) for k in stored.files if k.startswith("param/")}
    arguments = argparse.Namespace(encoder_attention_heads=4, decoder_attention_heads=4)
    torch.save({"args": arguments, "model": state}, tmp_path / "checkpoint.pt")
    return tmp_path / "checkpoint.pt"


def test_torch_checkpoint_with_text_files_becomes_a_model_that_translates(convert, tmp_path, checkpoint, text_files):
    status, out, err = convert(checkpoint, "--from", "dlcl", "--out", tmp_path / "MODEL", *text_files)
    assert (status, err) == (0, "")
    assert "no tokenisers" not in out
    tokenizers = TokenizerPair.load(tmp_path / "MODEL")
    assert tokenizers.shared
    assert tokenizers.source.encode("hello world.") == [4, 5, 6, 7, 8, 9, 12]
    assert tokenizers.target.decode([4, 5, 6, 7, 8, 9, 12, 2]) == "hello world."
    assert len(deepnmt.Translator(tmp_path / "MODEL").translate(["hello world.", ""], beam=2)) == 2


@fixture
def sentencepiece_dict(tmp_path):
    """A dictionary of fairseq for 46 symbols: pieces of the model, and a rare character that the text had."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(PIECES))
    symbols = [*map(processor.id_to_piece, range(47, 2, -1)), "\u20ac"]
    (tmp_path / "dict.txt").write_text("".join(f"{symbol} 9\n" for symbol in symbols), encoding="utf-8")
    return tmp_path / "dict.txt"


@mark.parametrize("toolkit", ["dlcl", "fairseq"])
def test_sentencepiece_model_segments_and_the_dictionary_numbers(convert, checkpoint, sentencepiece_dict, toolkit):
    tmp_path = checkpoint.parent
    command = [checkpoint, "--from", toolkit, "--out", tmp_path / "MODEL", "--source-dict", sentencepiece_dict]
    languages = ["--source-lang", "en", "--target-lang", "de"]
    status, out, err = convert(*command, *languages, "--tokenizer", PIECES)
    assert (status, err) == (0, "")
    assert "no tokenisers" not in out
    tokenizers = TokenizerPair.load(tmp_path / "MODEL")
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *read_dictionary(sentencepiece_dict)]
    for text, pieces in {
        "small tree": ["\u2581small", "\u2581tree"],
        "Isn't": ["\u2581", "<unk>", "s", "<unk>", "'", "t"],  # not split by Moses
        "\u20ac tree": ["\u2581", "\u20ac", "\u2581tree"],
    }.items():
        ids = tokenizers.source.encode(text)
        assert [symbols[number] for number in ids] == pieces
        assert "<unk>" in pieces or tokenizers.target.decode(ids) == text
    assert len(deepnmt.Translator(tmp_path / "MODEL").translate(["small tree", ""], beam=2)) == 2


def test_a_file_needs_its_format_and_only_those_of_files_are_offered(convert, tmp_path):
    status, _, err = convert(AUTHORS / "dlcl_pre.npz", "--out", tmp_path / "MODEL")
    assert status == 2
    assert err.endswith("is a file; name its format with --from dlcl or fairseq or opennmt-py or sockeye\n")


def test_subword_options_that_do_not_fit_are_refused(convert, tmp_path, text_files):
    command = [AUTHORS / "dlcl_pre.npz", "--from", "dlcl", "--out", tmp_path / "MODEL"]

    def refusal(*arguments):
        status, out, err = convert(*command, *arguments)
        assert (status, out, (tmp_path / "MODEL").exists()) == (2, "", False)
        return err.removeprefix("deepnmt: ").strip()

    languages = ["--source-lang", "en", "--target-lang", "de"]
    assert refusal("--tokenizer", PIECES, *languages) == "to convert tokenisers, also give --source-dict"
    assert refusal("--lowercase").startswith("to convert tokenisers, also give --source-dict, --codes or --tokenizer")
    assert refusal("--from", "nllb", "--pretokenizer", "moses", "--lowercase") == (
        "--pretokenizer and --lowercase are not used with nllb, whose folder has tokenisers"
    )
    assert refusal(*text_files, "--tokenizer", PIECES) == "give either --codes or --tokenizer, not both"
    given = ["--source-dict", tmp_path / "dict.txt", *languages, "--tokenizer"]  # with symbols of subword-nmt
    assert refusal(*given, PIECES, PIECES, PIECES) == "--tokenizer takes one value for both sides, or one per side"
    assert refusal(*given, tmp_path / "nowhere.model") == f"{tmp_path / 'nowhere.model'} does not exist"
    assert refusal(*given, tmp_path / "codes").startswith(f"{tmp_path / 'codes'} is not a SentencePiece model")
    message = f"{PIECES} has only 3 of the 46 symbols of the vocabulary: it belongs to another model"
    assert refusal(*given, PIECES) == message


def test_an_existing_folder_is_kept_unless_it_is_a_model_to_overwrite(convert, tmp_path):
    out = tmp_path / "MODEL"
    command = [AUTHORS / "dlcl_pre.npz", "--from", "dlcl", "--out", out]
    assert convert(*command)[0] == 0
    status, _, err = convert(*command)
    assert (status, err) == (2, f"deepnmt: {out} already exists; choose another --out or pass --overwrite\n")
    (out / "old").write_text("")
    assert convert(*command, "--overwrite")[0] == 0
    assert not (out / "old").exists()

    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("")
    status, _, err = convert(*command[:-1], precious, "--overwrite")
    assert status == 2
    assert err == f"deepnmt: {precious} is not a MODEL folder and will not be overwritten; choose another --out\n"
    assert (precious / "thesis.tex").exists()


def test_a_model_is_not_converted_again(convert, tmp_path):
    assert convert(AUTHORS / "dlcl_post.npz", "--from", "dlcl", "--out", tmp_path / "MODEL")[0] == 0
    status, _, err = convert(tmp_path / "MODEL", "--out", tmp_path / "again")
    assert (status, (tmp_path / "again").exists()) == (2, False)
    assert (
        err
        == f"deepnmt: {tmp_path / 'MODEL'} is a MODEL folder already; `deepnmt export` writes it for other toolkits\n"
    )


def test_a_refusal_leaves_nothing_behind(convert, tmp_path, text_files):
    (tmp_path / "dict.txt").write_text("a@@ 1\n")
    status, out, err = convert(AUTHORS / "dlcl_pre.npz", "--from", "dlcl", "--out", tmp_path / "MODEL", *text_files)
    assert (status, out) == (2, "")
    assert err == (
        "deepnmt: the source vocabulary has 5 symbols, including special ones, but the embedding of "
        f"{AUTHORS / 'dlcl_pre.npz'} has 50 rows: it belongs to another model\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["codes", "dict.txt"]


def test_half_of_what_a_tokeniser_needs_is_refused_before_the_work(convert, tmp_path):
    status, _, err = convert("nowhere.pt", "--from", "dlcl", "--out", tmp_path / "MODEL", "--source-dict", "d")
    assert (status, err) == (
        2,
        "deepnmt: to convert tokenisers, also give --codes or --tokenizer, --source-lang, --target-lang\n",
    )


@mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.pt", "--from", "dlcl", "--out", "MODEL"], "nowhere.pt does not exist"),
        (
            ["nowhere.pt", "--from", "tensor2tensor", "--out", "MODEL"],
            "argument --from: invalid choice: 'tensor2tensor'",
        ),
        (["nowhere.pt", "--out", "MODEL"], "nowhere.pt does not exist"),
        (["nowhere.pt", "--from", "dlcl"], "the following arguments are required: --out"),
    ],
)
def test_refusals(convert, arguments, message):
    status, out, err = convert(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"deepnmt: {message}")
    assert err.count("\n") == 1


@mark.parametrize(
    ("content", "message"),
    [
        (b"a 1\nb\n", "line 2: 'b' is not a symbol and its count"),
        (b"a 1\n\nb 2\n", "line 2: '' is not a symbol and its count"),
        (b"a 1\na 2\n", "line 2: 'a' repeats line 1"),
        (b"\xff 1\n", "not valid UTF-8 at byte 1"),
        (b"", "is empty"),
    ],
)
def test_dictionary_refusals_name_the_line(tmp_path, content, message):
    (tmp_path / "dict.txt").write_bytes(content)
    with raises(InputError, match=message) as refused:
        read_dictionary(tmp_path / "dict.txt")
    assert str(tmp_path / "dict.txt") in str(refused.value)


def test_dictionary_keeps_its_order_and_odd_symbols(tmp_path):
    (tmp_path / "dict.txt").write_text("the 9\n\u2028 8\n# 7\nnew@@ 6 #fairseq:overwrite\n", encoding="utf-8")
    assert read_dictionary(tmp_path / "dict.txt") == ["the", "\u2028", "#", "new@@"]
    with raises(InputError, match="nowhere does not exist"):
        read_dictionary(tmp_path / "nowhere")


def test_folding_that_cannot_be_verified_writes_nothing(convert, tmp_path):
    stack = StackConfig(num_layers=1, dim=8, ffn_dim=8, num_heads=2, sublayer=DeepNormConfig())
    model = Transformer(ModelConfig(source_vocab_size=9, target_vocab_size=9, encoder=stack, decoder=stack))
    torch.nn.init.constant_(model.output_weight, float("nan"))
    save_model(tmp_path / "MODEL", model)
    status, out, err = convert(tmp_path / "MODEL", "--fold", "--out", tmp_path / "PLAIN")
    assert (status, out, (tmp_path / "PLAIN").exists()) == (1, "", False)
    assert "folding changes its logits by nan" in err


def test_a_folded_model_is_plain_and_gives_the_same_logits(convert, tmp_path):
    stack = StackConfig(num_layers=2, dim=8, ffn_dim=8, num_heads=2, sublayer=DeepNormConfig())
    config = ModelConfig(source_vocab_size=9, target_vocab_size=9, encoder=stack, decoder=stack)
    save_model(tmp_path / "MODEL", Transformer(config), {"step": 7})
    status, out, _ = convert(tmp_path / "MODEL", "--fold", "--out", tmp_path / "PLAIN")
    assert status == 0
    assert re.match(rf"logits agree with those of {tmp_path / 'MODEL'} to \de-1[4-9] of the largest\n", out)
    assert "post\nencoder  2 layers, residual, width 8" in out
    meta = load_meta(tmp_path / "PLAIN")
    assert (meta["step"], meta["folded_from"]["encoder"]["sublayer"]) == (7, {"kind": "deepnorm"})
    source, target = torch.randint(3, 9, (2, 4, 5))
    with torch.no_grad():
        logits = [deepnmt.load_model(tmp_path / name)(source, target) for name in ("MODEL", "PLAIN")]
    torch.testing.assert_close(*logits)

    status, _, err = convert(tmp_path / "MODEL", "--fold", "--from", "dlcl", "--out", tmp_path / "AGAIN")
    assert (status, err.split(": ")[1]) == (
        2,
        "--fold converts a MODEL folder and takes no options but --out and --overwrite\n",
    )
    status, _, err = convert(tmp_path / "PLAIN", "--fold", "--out", tmp_path / "AGAIN")
    assert (status, (tmp_path / "AGAIN").exists()) == (2, False)
    assert f"{tmp_path / 'PLAIN'} has no sub-layers that can be folded" in err
