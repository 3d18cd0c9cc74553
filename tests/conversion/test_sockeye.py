"""Two tiny models that Sockeye 3.1.34 trained on a CPU, with their logits and translations: `tests/conversion/sockeye`.

3,000 sentences of up to seven words were split with `codes`, and then

    sockeye-train --source train.en --target train.de -vs valid.en -vt valid.de -o pre --use-cpu \
        --num-layers 2:1 --transformer-attention-heads 2:4 --transformer-model-size 8 --num-embed 8 \
        --transformer-feed-forward-num-hidden 16 --max-seq-len 31 --batch-type word --batch-size 800 \
        --max-updates 1000 --checkpoint-interval 100 --initial-learning-rate 0.01 --seed 1

without dropout; for `post` with

    --num-layers 1:1 --transformer-attention-heads 4:2 --transformer-preprocess "" --transformer-postprocess drn \
        --transformer-positional-embedding-type learned --transformer-activation-type swish1 \
        --transformer-feed-forward-use-glu --weight-tying-type none

expected.json has the output of `sockeye-translate --output-type translation_with_score`; logits.npz what the model
computes from three padded sentences, with Sockeye's ids.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch

import deepnmt
from deepnmt.cli import main
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.errors import InputError
from deepnmt.model.conversion.sockeye import _read_tables
from deepnmt.model.storage import load_meta

STORED = Path(__file__).parent / "sockeye"
PIECES = Path(__file__).parent / "marian" / "source.spm"
EXPECTED = json.loads((STORED / "expected.json").read_text(encoding="utf-8"))
LANGUAGES = {"source_lang": "en", "target_lang": "de"}
CODES = {**LANGUAGES, "codes": [STORED / "codes"], "pretokenizer": ["none"]}


def our_ids(theirs):
    """<pad> <unk> <s> </s> to ours."""
    return torch.from_numpy(np.where(theirs < 4, np.array([1, 3, 0, 2])[theirs.clip(max=3)], theirs).astype(np.int64))


@pytest.mark.parametrize("name", ["pre", "post"])
def test_logits_are_sockeyes(tmp_path, name):
    model = deepnmt.convert(STORED / name, tmp_path / "MODEL")
    with np.load(STORED / "logits.npz") as stored, torch.no_grad():
        source, target, expected = (stored[f"{name}/{array}"] for array in ("source", "target", "logits"))
        logits = model(our_ids(source), our_ids(target))[..., our_ids(np.arange(expected.shape[-1]))]
    seen = target != 0
    np.testing.assert_allclose(logits.numpy()[seen], expected[seen], rtol=0, atol=2e-5)
    assert not (tmp_path / "MODEL" / "tokenizer.source.json").exists()


@pytest.mark.parametrize(("name", "beam"), [("pre", 1), ("post", 1), ("post", 5)])
def test_translations_and_scores_are_sockeyes(tmp_path, name, beam):
    deepnmt.convert(STORED / name, tmp_path / "MODEL", **CODES)
    found = deepnmt.Translator(tmp_path / "MODEL").translate_nbest(EXPECTED["source"], beam=beam, length_penalty=1.0)
    expected = EXPECTED[name][f"beam {beam}"]
    assert [" ".join(best.pieces) for best, *_ in found] == [pieces for pieces, _ in expected]
    assert [-best.score for best, *_ in found] == pytest.approx([score for _, score in expected], abs=1e-5)
    assert [best.text for best, *_ in found] == [pieces.replace("@@ ", "") for pieces, _ in expected]


def test_the_command_recognises_the_folder(tmp_path, capsys):
    options = ["--codes", STORED / "codes", "--pretokenizer", "none", "--source-lang", "en", "--target-lang", "de"]
    assert main(["convert", *map(str, [STORED / "post", "--out", tmp_path / "MODEL", *options])]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'MODEL'}: 3,240 parameters, post-norm\n")
    assert load_meta(tmp_path / "MODEL")["converted_from"] == {"format": "sockeye", "file": "post"}
    config = deepnmt.load_model(tmp_path / "MODEL").config
    assert (config.positions, config.max_positions, config.activation) == ("learned", 32, "swiglu")
    assert (config.share_embeddings, config.tie_output, config.encoder.norm_eps) == (False, False, 1e-6)
    assert not TokenizerPair.load(tmp_path / "MODEL").shared


@pytest.mark.parametrize("name", ["pre", "post"])
def test_ctranslate2_computes_with_the_epsilon_of_the_model(tmp_path, name):
    pytest.importorskip("ctranslate2")
    deepnmt.convert(STORED / name, tmp_path / "MODEL", **CODES)
    written = deepnmt.export(tmp_path / "MODEL", tmp_path / "OUT", to="ctranslate2", sentences=EXPECTED["source"])
    assert written.agreement.max_difference < 2e-5


@pytest.fixture
def folder(tmp_path):
    """A copy to change."""
    return shutil.copytree(STORED / "pre", tmp_path / "pre")


def change_config(folder, pattern, replacement):
    path = folder / "config"
    text, count = re.subn(pattern, replacement, path.read_text(encoding="utf-8"))
    assert count
    path.write_text(text, encoding="utf-8")


def change_state(folder, change):
    state = torch.load(folder / "params.best")
    change(state)
    torch.save(state, folder / "params.best")


def write_vocabularies(folder, symbols):
    for side in ("src", "trg"):
        numbers = {symbol: number for number, symbol in enumerate(symbols)}
        (folder / f"vocab.{side}.0.json").write_text(json.dumps(numbers), encoding="utf-8")


def test_sentencepiece_models_segment_and_the_folder_numbers(folder, tmp_path):
    size = len(json.loads((folder / "vocab.src.0.json").read_text(encoding="utf-8")))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(PIECES))
    pieces = [processor.id_to_piece(number) for number in range(size + 1, 2, -1)]
    write_vocabularies(folder, ["<pad>", "<unk>", "<s>", "</s>", *pieces[: size - 5], f"<pad{size - 1}>"])
    deepnmt.convert(folder, tmp_path / "MODEL", **LANGUAGES, tokenizer=[PIECES])
    pair = TokenizerPair.load(tmp_path / "MODEL")
    ids = pair.source.encode("small tree")
    assert pair.shared
    assert [pieces[number - 4] for number in ids] == ["\u2581small", "\u2581tree"]
    assert pair.target.decode(ids) == "small tree"


def test_another_file_of_parameters(folder, tmp_path):
    (folder / "params.best").rename(folder / "params.00007")
    model = deepnmt.convert(folder / "params.00007", tmp_path / "MODEL", toolkit="sockeye")
    best = deepnmt.convert(STORED / "pre", tmp_path / "BEST")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), best.parameters(), strict=True))
    assert load_meta(tmp_path / "MODEL")["converted_from"]["file"] == "params.00007"


def test_other_outputs_and_copies_are_ignored(folder, tmp_path):
    """Of vocabulary selection, of the length ratio, and of modules traced by early versions."""
    names = ("nvs.project_vocab.weight", "length_ratio.layers.0.bias", "traced_encoder.layers.0.ff.ff1.weight")
    change_state(folder, lambda state: state.update({name: torch.ones(2, 2) for name in names}))
    model = deepnmt.convert(folder, tmp_path / "MODEL")
    best = deepnmt.convert(STORED / "pre", tmp_path / "BEST")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), best.parameters(), strict=True))


def test_half_precision_is_read(folder, tmp_path):
    change_state(folder, lambda state: state.update({name: tensor.half() for name, tensor in state.items()}))
    model = deepnmt.convert(folder, tmp_path / "MODEL")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", ["pre", "post"])
def test_settings_equal_those_of_a_whole_parser(name):
    yaml = pytest.importorskip("yaml", reason="comparing with PyYAML")

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda loader, tag, node: loader.construct_mapping(node, deep=True))
    Loader.add_constructor("tag:yaml.org,2002:python/tuple", lambda loader, node: ())

    def entries(table, prefix=""):
        for key, value in table.items():
            if isinstance(value, dict):
                yield from entries(value, f"{prefix}{key}.")
            elif not isinstance(value, list):
                yield f"{prefix}{key}", json.dumps(value).strip('"')

    path = STORED / name / "config"
    assert _read_tables(path) == dict(entries(yaml.load(path.read_text(encoding="utf-8"), Loader)))


CONFIGS = {
    "source factors": (r"num_source_factors: 1", "num_source_factors: 2", "config_data.num_source_factors = 2"),
    "target factors": (r"num_target_factors: 1", "num_target_factors: 3", "config_data.num_target_factors = 3"),
    "ssru": ("decoder_type: transformer", "decoder_type: ssru_transformer", "decoder_type = ssru_transformer"),
    "lhuc": ("use_lhuc: false", "use_lhuc: true", "config_encoder.use_lhuc = true"),
    "prepended": (
        "block_prepended_cross_attention: false",
        "block_prepended_cross_attention: true",
        "config_decoder.block_prepended_cross_attention = true",
    ),
    "a gate": ("use_glu: false", "use_glu: true", "act_type = relu and use_glu = true"),
    "an activation": ("act_type: relu", "act_type: tanh", "act_type = tanh and use_glu = false"),
    "positions": ("(embedding_type): fixed", r"\1: none", "positional_embedding_type = none"),
    "a norm": (
        "postprocess_sequence: dr",
        "postprocess_sequence: drn",
        "preprocess_sequence = 'n' and postprocess_sequence = 'drn', which is neither pre-norm nor post-norm",
    ),
    "stacks that differ": (
        "(?s)(preprocess_sequence): n(.*preprocess)",
        r"\1: ''\2",
        "preprocess_sequence = 'n' in the encoder and '' in the decoder; deepnmt needs the same in both",
    ),
    "heads": ("attention_heads: 4", "attention_heads: 0", "config_decoder.attention_heads = 0 must be at least 1"),
    "other heads": ("attention_heads: 4", "attention_heads: 3", "does not divide into 3 heads"),
    "another file": ("(?s).+", "hello: world", "is not the config of a Sockeye model"),
    "an alias": ("(?s)config_encoder: .*?config_l", "config_encoder: *id001\nconfig_l", "it has no config_encoder."),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_settings_that_deepnmt_does_not_support_are_refused_by_name(folder, tmp_path, case):
    pattern, replacement, message = CONFIGS[case]
    change_config(folder, pattern, replacement)
    with pytest.raises(InputError, match=re.escape(message)):
        deepnmt.convert(folder, tmp_path / "MODEL")
    assert not (tmp_path / "MODEL").exists()


STATES = {
    "an unknown parameter": (
        {"encoder.layers.0.lhuc.weight": torch.ones(8)},
        "uses the parameter encoder.layers.0.lhuc.weight, which deepnmt does not support",
    ),
    "a gate that the config lacks": ({"encoder.layers.0.ff.linear.bias": torch.ones(16)}, "encoder.layers.0.ff.linear"),
    "int8": (
        {"output_layer.weight": torch.ones(56, 8, dtype=torch.int8)},
        "output_layer.weight has type torch.int8; quantised models are not supported",
    ),
    "other positions": (
        {"decoder.pos_embedding.weight": torch.ones(32, 8)},
        "decoder.embed_positions.weight are not the sinusoids of Sockeye 3",
    ),
    "positions of odd width": (
        {"decoder.pos_embedding.weight": torch.ones(32, 7)},
        "decoder.embed_positions.weight are not the sinusoids of Sockeye 3",
    ),
    "another vocabulary": (
        {"output_layer.weight": torch.ones(57, 8)},
        "decoder.output_projection.weight has 57 rows, but the vocabulary has 56 symbols",
    ),
    "a vector": (
        {"encoder.layers.0.self_attention.ff_in.weight": torch.ones(24)},
        "encoder.layers.0.self_attention.ff_in.weight of shape (24,) does not divide into 2 heads",
    ),
    "a tensor without data": (
        {"output_layer.bias": torch.ones(56, device="meta")},
        "output_layer.bias of its model is not a tensor",
    ),
    "no tensor": ({"output_layer.bias": 3}, "output_layer.bias of its model is not a tensor"),
}


@pytest.mark.parametrize("case", STATES)
def test_parameters_that_do_not_fit_are_refused_by_name(folder, tmp_path, case):
    tensors, message = STATES[case]
    change_state(folder, lambda state: state.update(tensors))
    with pytest.raises(InputError, match=re.escape(message)):
        deepnmt.convert(folder, tmp_path / "MODEL")
    assert not (tmp_path / "MODEL").exists()


def test_learned_positions_of_two_lengths_are_refused(tmp_path):
    folder = shutil.copytree(STORED / "post", tmp_path / "post")
    change_state(folder, lambda state: state.update({"decoder.pos_embedding.weight": torch.ones(40, 8)}))
    message = "learned positions with max_seq_len_source = 32 and max_seq_len_target = 40; deepnmt needs one length"
    with pytest.raises(InputError, match=message):
        deepnmt.convert(folder, tmp_path / "MODEL")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("version", "2.3.22", "is a model of Sockeye 2.3.22; deepnmt supports those of Sockeye 3"),
        ("params.best", "damaged", "params.best cannot be loaded safely"),
        ("config", None, "config does not exist"),
        ("vocab.trg.0.json", None, "vocab.trg.0.json does not exist"),
        ("vocab.trg.0.json", '{"<pad>": "0"}', "is not a vocabulary: it must map each symbol to a number"),
        ("vocab.src.0.json", '{"<s>": 0}', "must number its symbols from 0, beginning with <pad> <unk> <s> </s>"),
    ],
)
def test_files_that_are_missing_or_damaged_are_named(folder, tmp_path, file, content, message):
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(InputError, match=message):
        deepnmt.convert(folder, tmp_path / "MODEL")


def test_parameters_for_mxnet_are_refused_with_the_remedy(folder, tmp_path):
    """As the first models of Sockeye 3 have them."""
    (folder / "version").write_text("3.0.4\n")
    np.savez(folder / "arrays.npz", **{"encoder.layers.0.ff.ff1.weight": np.ones(3)})
    (folder / "arrays.npz").replace(folder / "params.best")
    with pytest.raises(
        InputError, match=r"cannot be loaded safely: .*; if it has MXNet's parameters, convert them with"
    ):
        deepnmt.convert(folder, tmp_path / "MODEL")


def test_parameters_of_deepspeed_are_refused_with_the_remedy(folder, tmp_path):
    (folder / "params.best").unlink()
    (folder / "params.00001").mkdir()
    (folder / "params.best").symlink_to("params.00001")
    with pytest.raises(
        InputError, match=r"params.best is a folder, as DeepSpeed writes it; .*convert_deepspeed --model"
    ):
        deepnmt.convert(folder, tmp_path / "MODEL")


def test_the_folder_has_the_dictionaries(tmp_path):
    with pytest.raises(InputError, match="`source_dict` is not used with sockeye, whose checkpoint has the vocabular"):
        deepnmt.convert(STORED / "pre", tmp_path / "MODEL", **CODES, source_dict="dict.txt")
    with pytest.raises(InputError, match="to convert tokenisers, also give `codes` or `tokenizer`"):
        deepnmt.convert(STORED / "pre", tmp_path / "MODEL", **LANGUAGES)
