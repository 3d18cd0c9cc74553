"""`deepnmt export`: what onnxruntime makes of the graphs is what the model says, or there are no graphs."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from digits import digit_tokenizers, reversed_digits, tiny_model
from exportable import ROOT, examples
from toy_learning import padded

from deepnmt.cli import main
from deepnmt.data.learning import cut, piece_counts
from deepnmt.data.sentence_pieces import SentencePieces
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import EOS
from deepnmt.decoding import export as exporting
from deepnmt.decoding.export import onnx
from deepnmt.decoding.export.comparison import check_choices, compare, max_difference, random_sources
from deepnmt.decoding.translator import Translator
from deepnmt.errors import RunError
from deepnmt.files import sha256
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import CONNECTIONS, manifold_hyper
from deepnmt.model.storage import load_model, save_model
from deepnmt.model.sublayers import SUBLAYERS
from deepnmt.model.transformer import Transformer

for package in onnx.NEEDS:
    pytest.importorskip(package, reason="pip install 'deepnmt[onnx]'")
import onnxruntime  # noqa: E402

GRAPHS = ("encoder.onnx", "decoder_step.onnx")
TOLD = "deepnmt: tracing 4 layers, some seconds each\ndeepnmt: comparing the export with the model\n"
DIGITS = ("dlcl", "residual")  # the schemes of the digits model, which is exported once for all tests
# Tracing takes seconds per layer, so schemes made of the same operations as another are traced once.
SAME_OPERATIONS = {
    "dlcl": {"dense", "average", "fusion", "denseformer", "sparse-dlcl", "transparent-dlcl"},  # weighted sums
    "manifold-hyper": {"hyper"},
    "pre": {"mix"},  # some layers pre-norm, others post-norm
    "rezero": {"layer-scale"},  # a learned factor
}
CASES = [  # the connections and the sub-layers of encoder and decoder, and settings that are rare in models
    (
        ("transparent", "aggregated"),
        ("post", "deepnorm"),
        {
            "positions": "learned",
            "max_positions": 9,
            "activation": "gelu",
            "first_position": 0,
            "scale_embeddings": False,
            "output_bias": True,
            "start_id": 0,
        },
    ),
    (
        ("coordinated", "dynamic-dlcl"),
        ("admin", "b2t"),
        {"positions": "relative", "tie_output": False, "activation": "swiglu"},
    ),
    (("dynamic-dense", "attention-residual"), ("scaled", "rezero"), {"positions": "rotary"}),
    (("manifold-hyper", "residual"), ("peri", "sub-ln"), {}),
]


def scrambled(kinds: tuple[str, str], around: tuple[str, str], settings: dict) -> Transformer:
    """Nothing at a special value, so that every weight matters."""
    torch.manual_seed(0)
    # One layer already has two outputs to mix; transparent attention needs several readers.
    layers = (1, 2) if kinds[0] in ("transparent", "coordinated") else (1, 1)
    stacks = {
        side: StackConfig(
            num_layers=count,
            dim=dim,
            ffn_dim=20,
            num_heads=4,
            connection=CONNECTIONS[kind].Config(),
            sublayer=SUBLAYERS[sublayer].Config(),
        )
        for side, kind, sublayer, count, dim in zip(
            ("encoder", "decoder"), kinds, around, layers, (16, 24), strict=True
        )
    }
    model = Transformer(ModelConfig(source_vocab_size=14, target_vocab_size=14, **stacks, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def exported(digits_model, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("exports") / "digits"
    assert main(["export", str(digits_model), "--to", "onnx", "--out", str(out)]) == 0
    return out


@pytest.fixture
def instead(monkeypatch, exported):
    """The exporter errs: whatever the model, it writes these graphs, which are those of the digits model."""

    def write_graphs(model, folder):
        for name in GRAPHS:
            shutil.copy(exported / name, folder / name)

    monkeypatch.setattr(onnx, "write_graphs", write_graphs)


@pytest.mark.parametrize(("kinds", "around", "settings"), CASES, ids=["-".join(kinds) for kinds, _, _ in CASES])
@torch.no_grad()
def test_steps_in_onnxruntime_are_the_whole_pass_in_torch(kinds, around, settings, tmp_path, monkeypatch):
    """Any batch size and lengths: nothing of the example it was traced on is left."""
    monkeypatch.setattr(manifold_hyper, "ROUNDS", 2)  # each is traced
    model = scrambled(kinds, around, settings)
    onnx.write_graphs(model, tmp_path)
    check_steps(model, tmp_path)


def test_steps_of_a_trained_model_are_the_whole_pass_too(exported, digits_model):
    model = load_model(digits_model)
    assert (model.config.encoder.connection.kind, model.config.decoder.connection.kind) == DIGITS
    check_steps(model, exported)


@torch.no_grad()
def check_steps(model, folder):
    runtime, tolerance = onnx.opened(folder, model.config, None), 0.0
    for lengths in [(1,), (6,), (3, 8, 1), (2, 2, 7, 4, 5)]:
        source = padded([torch.randint(3, 14, (length,)).tolist() for length in lengths])
        target = torch.randint(3, 14, (len(lengths), 9))
        inputs = torch.cat([torch.full((len(lengths), 1), EOS), target[:, :-1]], 1)
        expected = model(source, inputs)
        tolerance = 1e-5 * float(expected.abs().max())
        torch.testing.assert_close(runtime(source, target), expected, rtol=0, atol=tolerance)
    assert compare(model, runtime, random_sources(model.config), "ONNX").max_difference < tolerance


def test_the_operations_of_every_scheme_are_traced():
    traced = {*DIGITS, "pre", *(kind for kinds, around, _ in CASES for kind in kinds + around)}
    assert SAME_OPERATIONS.keys() <= traced
    assert traced.union(*SAME_OPERATIONS.values()) == CONNECTIONS.keys() | SUBLAYERS.keys()


def test_the_folder_says_what_it_is(exported, digits_model):
    about = json.loads((exported / "export.json").read_text())
    assert about["config"] == json.loads((digits_model / "config.json").read_text())
    assert about["weights_sha256"] == sha256(digits_model / "model.safetensors")
    assert about["checked"]["positions"] > 200
    assert 0 < about["checked"]["max_difference"] < 1e-4
    for side in ("source", "target"):
        original = getattr(TokenizerPair.load(digits_model), side)
        assert json.loads((exported / f"vocabulary.{side}.json").read_text()) == original.pieces
        assert SentencePieces.read(exported / f"{side}.model").pieces == original.pieces
    step = onnxruntime.InferenceSession(exported / "decoder_step.onnx")
    shapes = {given.name: given.shape for given in step.get_inputs()}
    assert shapes["tokens"] == ["batch"]
    assert shapes["memory_values_1"] == ["batch", "source_length", 4, 16]
    assert shapes["past_keys_0"] == ["batch", "past_length", 4, 16]


def test_graphs_do_not_tell_where_they_were_made(exported):
    for name in GRAPHS:
        content = (exported / name).read_bytes()
        assert str(ROOT).encode() not in content
        assert b"stack_trace" not in content


def test_the_page_translates_as_we_do_without_torch_or_deepnmt_and_quantised(exported, digits_model, tmp_path):
    example, quantise = examples("ONNX")
    assert example.count('"MODEL-onnx"') == 1
    shutil.copytree(exported, tmp_path / "MODEL-onnx")
    program = f"""
import sys
sys.modules["torch"] = sys.modules["deepnmt"] = None
{example}
texts = json.loads(sys.argv[1])
print(json.dumps(translate(texts)))
{quantise}
encoder, step = (onnxruntime.InferenceSession(folder / f"{{name}}.int8.onnx") for name in ("encoder", "decoder_step"))
print(json.dumps(translate(texts)))
"""
    texts = [source for source, _ in reversed_digits(20, seed=7)] + ["fu\u0308nf  drei", "¿eins?"]
    command = [sys.executable, "-W", "error", "-c", program, json.dumps(texts)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    _, same, quantised = ran.stdout.splitlines()
    expected = Translator(digits_model).translate(texts, beam=1)
    assert json.loads(same) == expected
    assert sum(map(str.__eq__, json.loads(quantised), expected)) >= 20, "of a model that is sure, int8 says the same"


def test_ids_are_right_where_sentencepiece_numbers_otherwise(tmp_path):
    """A vocabulary with a cut-off has pieces that are never used, and no ids for them."""
    whole = digit_tokenizers().source.subwords.model
    model = cut(whole, piece_counts(whole, {"drei": 9, "acht": 9}), 5)
    tokenizers = TokenizerPair(*(Tokenizer(SentencePieces(model), Preprocessor(language)) for language in ("de", "en")))
    assert tokenizers.source.vocab_size < 57
    onnx._write_tokenizer(tmp_path, "source", tokenizers.source)
    symbols = json.loads((tmp_path / "vocabulary.source.json").read_text())
    pieces = SentencePieces.read(tmp_path / "source.model")._processor.encode("drei acht null", out_type=str)
    assert [symbols.index(piece) if piece in symbols else 3 for piece in pieces] == tokenizers.source.encode(
        "drei acht null"
    )


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("encoder.connection.weight", (-1, 1)),
        ("encoder.layers.1.attention.input.bias", 5),
        ("decoder.layers.1.feed_forward.expand.bias", 5),
    ],
)
def test_a_graph_that_differs_by_one_number_is_not_kept(name, place, instead, digits_model, tmp_path, capsys):
    model = load_model(digits_model)
    with torch.no_grad():
        model.get_parameter(name)[place] += 0.01
    save_model(tmp_path / "MODEL", model)
    TokenizerPair.load(digits_model).save(tmp_path / "MODEL")
    assert main(["export", str(tmp_path / "MODEL"), "--to", "onnx"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(
        r"deepnmt: export failed: the logits of ONNX in a batch of \d sentences of up to \d tokens differ from the "
        r"model's by up to \S+, which is more than 1e-04\n",
        captured.err.removeprefix(TOLD),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["MODEL"]


def test_an_earlier_export_survives_one_that_fails(instead, exported, random_model, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(exported, out)
    before = (out / "export.json").read_bytes()
    assert main(["export", str(random_model), "--to", "onnx", "--out", str(out), "--overwrite"]) == 1
    assert capsys.readouterr().err.startswith(f"{TOLD}deepnmt: export failed: ")
    assert (out / "export.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_good_export_stands_beside_the_model_and_replaces_an_earlier_one(instead, digits_model, tmp_path, capsys):
    model, out = tmp_path / "MODEL", tmp_path / "MODEL-onnx"
    shutil.copytree(digits_model, model)
    (tmp_path / "text").write_text("eins zwei\n\nfünf drei sieben\n", encoding="utf-8")
    assert main(["export", f"{model}/", "--to", "onnx", "--check", str(tmp_path / "text")]) == 0
    captured = capsys.readouterr()
    first, second = captured.out.splitlines()
    assert captured.err == TOLD
    assert first.startswith(f"{out}: decoder_step.onnx 0.4 MB, encoder.onnx 0.4 MB")
    given = len(random_sources(load_model(model).config)) + 2
    assert f"tokens of {given} sentences, logits within" in second

    (out / "old").write_text("")
    assert main(["export", str(model), "--to", "onnx", "--overwrite"]) == 0
    assert not (out / "old").exists()
    assert (out / "encoder.onnx").is_file()


@torch.no_grad()
def test_the_comparison_runs_every_sentence_in_several_batches(digits_model, exported):
    model = load_model(digits_model)
    sources = random_sources(model.config)
    assert {len(ids) for ids in sources} >= {1, 2, 3} and max(map(len, sources)) > 15
    assert all(ids[-1] == EOS for ids in sources)
    runtime = onnx.opened(exported, model.config, None)
    agreement = compare(model, runtime, sources, "ONNX")
    assert agreement.sentences == len(sources)
    assert agreement.positions >= sum(map(len, sources))
    with pytest.raises(RunError, match="differ from the model's"):
        compare(tiny_model(digit_tokenizers(), seed=2).eval(), runtime, sources, "ONNX")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([2.00003, 2.00001], None),
        ([1.99999, 2.000005], "chooses a different token"),
        ([2.0002, 1.99998], "differ from the model's by up to 1.7e-04"),
        ([float("nan"), 1.0], "by up to nan"),
        ([2.0], "have the shape"),
    ],
)
def test_a_difference_is_a_logit_or_a_choice(found, message):
    expected, logits = torch.tensor([[2.00003, 1.99998]]), torch.tensor([found])
    with pytest.raises(RunError, match=message) if message else nullcontext():
        assert max_difference(expected, logits, "ONNX") < 1e-4
        check_choices(expected, logits, "ONNX")


def test_a_tie_of_the_model_is_no_difference():
    check_choices(torch.tensor([[2.0, 2.000001]]), torch.tensor([[2.000002, 2.0]]), "ONNX")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "the model folder nowhere does not exist"),
        (["nowhere", "--to", "tflite"], "argument --to: invalid choice: 'tflite'"),
        (["nowhere", "--check", "missing.txt"], "missing.txt does not exist"),
        (["nowhere", "--check", "."], ". is a folder, not a text file"),
        (["nowhere", "--check", sys.executable], f"{sys.executable} is a binary file, not text"),
        ([], "the following arguments are required: MODEL"),
    ],
)
def test_refusals(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "--to", "onnx", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"deepnmt: {message}")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_kept_unless_it_is_an_export_to_overwrite(digits_model, tmp_path, capsys):
    command = ["export", str(digits_model), "--to", "onnx", "--out", str(tmp_path)]
    (tmp_path / "mine").write_text("")
    assert main(command) == 2
    expected = f"deepnmt: {tmp_path} already exists; choose another --out or pass --overwrite\n"
    assert capsys.readouterr().err == expected
    assert main([*command, "--overwrite"]) == 2
    expected = f"deepnmt: {tmp_path} is not an export and will not be overwritten; choose another --out\n"
    assert capsys.readouterr().err == expected


def test_a_tokeniser_of_another_model_is_refused(digits_model, tmp_path, capsys):
    model = scrambled(("residual", "residual"), ("pre", "pre"), {})
    save_model(tmp_path / "MODEL", model)
    assert main(["export", str(tmp_path / "MODEL"), "--to", "onnx"]) == 2
    assert "tokenizer.source.json does not exist" in capsys.readouterr().err
    TokenizerPair.load(digits_model).save(tmp_path / "MODEL")
    assert main(["export", str(tmp_path / "MODEL"), "--to", "onnx"]) == 2
    expected = f"deepnmt: {tmp_path / 'MODEL'}: the source tokeniser has 57 symbols, the model only 14\n"
    assert capsys.readouterr().err == expected


def test_missing_packages_are_named_with_their_extra(digits_model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(exporting, "find_spec", lambda name: None if name != "onnx" else True)
    assert main(["export", str(digits_model), "--to", "onnx", "--out", str(tmp_path / "out")]) == 2
    expected = "deepnmt: deepnmt export --to onnx needs onnxruntime, onnxscript: pip install 'deepnmt[onnx]'\n"
    assert capsys.readouterr().err == expected
