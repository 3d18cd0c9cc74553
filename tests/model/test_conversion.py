"""Checkpoints of the authors' trainer and of fairseq become our models; rubbish and traps are refused."""

import argparse
import json
import os
import re
import sys
import types
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from model_variants import DIM, padded, scrambled, sentences, tiny_config
from pytest import fixture, mark, raises

from deepnmt.errors import InputError
from deepnmt.model.config import StackConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.conversion import convert_model

AUTHORS = Path(__file__).parent / "authors"
convert_dlcl, convert_fairseq = (partial(convert_model, toolkit=toolkit) for toolkit in ("dlcl", "fairseq"))
STACKS = ("encoder", "decoder")


def authors_state(model):
    """Our weights under the names of the authors' state dict, as they lie in their modules."""
    ours, theirs = dict(model.named_parameters()), OrderedDict()
    config = model.config
    theirs["encoder.embed_tokens.weight"] = ours["source_embedding.tokens.weight"]
    shared = config.share_embeddings
    theirs["decoder.embed_tokens.weight"] = ours[f"{'source' if shared else 'target'}_embedding.tokens.weight"]
    if not config.tie_output:
        theirs["decoder.embed_out"] = ours["output.weight"]
    for side, ours_side in (("encoder", "source"), ("decoder", "target")):
        theirs[f"{side}.version"] = torch.tensor([2.0])
        if config.positions == "learned":
            theirs[f"{side}.embed_positions.weight"] = ours[f"{ours_side}_embedding.positions.weight"]
        else:
            theirs[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
    for name, tensor in ours.items():
        if match := re.fullmatch(r"(encoder|decoder)\.layers\.(\d+)\.(.+)\.(weight|bias)", name):
            side, layer, part, kind = match.groups()
            theirs.update(authors_layer(ours, side, layer, part, kind, tensor))
        elif name.split(".")[0] in STACKS:
            renamed = name.replace("final_norm", "layer_norm").replace("connection.norms", "history.layer_norms")
            theirs[renamed.replace("connection", "history")] = tensor
    return OrderedDict((name, tensor.detach().clone()) for name, tensor in theirs.items())


def authors_layer(ours, side, layer, part, kind, tensor):
    prefix = f"{side}.layers.{layer}"
    plain = {
        "attention.input": f"self_attn.in_proj_{kind}",
        "attention.output": f"self_attn.out_proj.{kind}",
        "cross_attention.output": f"encoder_attn.out_proj.{kind}",
        "feed_forward.expand": f"fc1.{kind}",
        "feed_forward.contract": f"fc2.{kind}",
        "around_attention.norm": f"layer_norms.0.{kind}",
        "around_cross_attention.norm": f"layer_norms.1.{kind}",
        "around_feed_forward.norm": f"layer_norms.{1 if side == 'encoder' else 2}.{kind}",
    }
    if part in plain:
        return {f"{prefix}.{plain[part]}": tensor}
    if part == "cross_attention.query":
        key_value = ours[f"{prefix}.cross_attention.key_value.{kind}"]
        if tensor.shape[1:] != key_value.shape[1:]:  # only fairseq's own names have this
            parts = (tensor, *key_value.chunk(2))
            return {f"{prefix}.encoder_attn.{p}_proj.{kind}": part for p, part in zip("qkv", parts, strict=True)}
        return {f"{prefix}.encoder_attn.in_proj_{kind}": torch.cat([tensor, key_value])}
    return {}


def authors_arguments(model, **more):
    arguments = {"arch": "dense_relative_transformer_wmt_en_de", "dropout": 0.1, "attention_dropout": 0.2}
    for side in STACKS:
        stack = getattr(model.config, side)
        arguments |= {
            f"{side}_attention_heads": stack.num_heads,
            f"{side}_layers": stack.num_layers,
            f"{side}_learnable": getattr(stack.connection, "learned", True),
        }
        arguments["normalize_learned_weight"] = getattr(stack.connection, "softmax", False)
        arguments["history_window_size"] = getattr(stack.connection, "window", None) or -1
    return argparse.Namespace(**{**arguments, "relu_dropout": 0.3, "history_dropout": 0.0, **more})


def checkpoint(model, state=None, **arguments):
    return {
        "args": authors_arguments(model, **arguments),
        "model": authors_state(model) if state is None else state,
        "optimizer_history": [
            {"criterion_name": "LabelSmoothedCrossEntropyCriterion", "num_updates": 7, "lr_scheduler_state": {}}
        ],
        "extra_state": {"epoch": 3, "batch_offset": 0, "val_loss": 4.5},
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.ones(2), "step": 7}}, "param_groups": [{"lr": 1e-3}]},
    }


def assert_same(converted, model):
    source, target = padded(sentences(6, 4)), padded(sentences(5, 3, seed=2))
    torch.testing.assert_close(converted(source, target), model(source, target), rtol=0, atol=1e-6)


DLCL = DlclConfig()
MODELS = {
    "dlcl, joint vocabulary": tiny_config(DLCL, DLCL),
    "post-norm": tiny_config(DLCL, DLCL, norm="post"),
    "residual": tiny_config(),
    "residual decoder": tiny_config(DLCL),
    "separate embeddings": tiny_config(DLCL, DLCL, share_embeddings=False, source_vocab_size=17),
    "untied output": tiny_config(DLCL, DLCL, share_embeddings=False, tie_output=False),
    "learned positions": tiny_config(DLCL, DLCL, positions="learned", max_positions=30),
    "softmax": tiny_config(DlclConfig(softmax=True), DlclConfig(softmax=True)),
    "softmax in a window": tiny_config(DlclConfig(softmax=True, window=2), DlclConfig(softmax=True, window=2)),
    "grouped weights": tiny_config(DlclConfig(groups=4), DlclConfig(groups=4)),
    "a weight per dimension": tiny_config(DlclConfig(groups=DIM), DlclConfig(groups=DIM), norm="post"),
    "embedding normalised": tiny_config(DlclConfig(norm_embedding=True), DlclConfig(norm_embedding=True)),
    "fixed weights": tiny_config(DlclConfig(learned=False), DlclConfig(learned=False)),
    "deep, other heads and ffn": replace(
        tiny_config(DLCL, DLCL), encoder=StackConfig(num_layers=12, dim=DIM, ffn_dim=8, num_heads=2, connection=DLCL)
    ),
}


@mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@mark.parametrize("name", MODELS)
def test_checkpoint_of_the_authors_trainer(tmp_path, name, zipped):
    model = scrambled(MODELS[name], torch.float32)
    path = tmp_path / "checkpoint_best.pt"
    torch.save(checkpoint(model), path, _use_new_zipfile_serialization=zipped)
    converted = convert_dlcl(path)
    assert_same(converted, model)
    expected = replace(model.config, dropout=0.1, attention_dropout=0.2, ffn_dropout=0.3)
    assert converted.config == expected
    assert not converted.training


def test_npz_and_checkpoint_of_the_same_model_agree(tmp_path):
    with np.load(AUTHORS / "dlcl_pre.npz") as stored:
        state = {k.removeprefix("param/"): torch.from_numpy(stored[k]) for k in stored.files if k.startswith("param/")}
    torch.save(
        {"args": argparse.Namespace(encoder_attention_heads=4, decoder_attention_heads=4), "model": state},
        tmp_path / "c.pt",
    )
    a, b = convert_dlcl(AUTHORS / "dlcl_pre.npz"), convert_dlcl(tmp_path / "c.pt")
    for (name, x), y in zip(a.named_parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y), name


def test_weights_outside_a_window_count_unless_softmax_masks_them(tmp_path):
    """Without softmax the authors' window only says where the weights start."""
    model = scrambled(tiny_config(DLCL, DLCL), torch.float32)
    torch.save(checkpoint(model, history_window_size=2), tmp_path / "c.pt")
    converted = convert_dlcl(tmp_path / "c.pt")
    assert converted.config.encoder.connection.window is None
    assert_same(converted, model)


@mark.parametrize("norm", ["pre", "post"])
def test_early_version_has_a_matrix_of_weights_and_norms_from_zero(tmp_path, norm):
    model = scrambled(tiny_config(DLCL, DLCL, norm=norm), torch.float32)
    state = OrderedDict()
    for name, tensor in authors_state(model).items():
        if name.endswith("history.weight"):
            tensor = tensor.squeeze(2)
        early = re.sub(r"history\.layer_norms\.(\d+)", lambda m: f"history.layer_norms.{int(m[1]) - 1}", name)
        state[early] = tensor
    torch.save(checkpoint(model, state), tmp_path / "c.pt")
    assert_same(convert_dlcl(tmp_path / "c.pt"), model)


def test_half_precision_weights_become_single(tmp_path):
    model = scrambled(tiny_config(DLCL, DLCL), torch.float32)
    state = OrderedDict((name, tensor.half()) for name, tensor in authors_state(model).items())
    torch.save(checkpoint(model, state), tmp_path / "c.pt")
    assert {p.dtype for p in convert_dlcl(tmp_path / "c.pt").parameters()} == {torch.float32}


@mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_meters_that_fairseq_pickles_are_skipped_without_fairseq(tmp_path, monkeypatch, zipped):
    class AverageMeter:
        pass

    AverageMeter.__module__, AverageMeter.__qualname__ = "fairseq.meters", "AverageMeter"
    meters = types.ModuleType("fairseq.meters")
    meters.AverageMeter = AverageMeter
    model = scrambled(tiny_config(DLCL, DLCL), torch.float32)
    stored = checkpoint(model)
    stored["extra_state"]["train_meters"] = OrderedDict(train_loss=AverageMeter())
    stored["extra_state"]["train_meters"]["train_loss"].avg = 4.5
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "fairseq", types.ModuleType("fairseq"))
        patch.setitem(sys.modules, "fairseq.meters", meters)
        torch.save(stored, tmp_path / "c.pt", _use_new_zipfile_serialization=zipped)
    assert_same(convert_dlcl(tmp_path / "c.pt"), model)


class Malicious:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@mark.parametrize("where", ["args", "model", "extra_state"])
@mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_pickled_code_is_not_executed(tmp_path, zipped, where):
    marker = tmp_path / "owned"
    stored = checkpoint(scrambled(tiny_config(), torch.float32))
    stored[where] = Malicious(f"touch {marker}")
    path = tmp_path / "c.pt"
    torch.save(stored, path, _use_new_zipfile_serialization=zipped)
    with raises(InputError) as refusal:
        convert_dlcl(path)
    assert not marker.exists()
    message = f"{path} cannot be loaded safely: its pickle asks for posix.system, which is not data"
    assert str(refusal.value) == message


@fixture
def stored():
    return checkpoint(scrambled(tiny_config(DLCL, DLCL), torch.float32))


def refusal(tmp_path, stored, convert=convert_dlcl):
    path = tmp_path / "c.pt"
    torch.save(stored, path)
    with raises(InputError) as refused:
        convert(path)
    assert str(path) in str(refused.value)
    return str(refused.value).replace(str(path), "FILE")


class TestRefusals:
    @mark.parametrize(
        "name",
        [
            "encoder.layers.0.relative_keys",
            "decoder.layers.1.layer_norms.3.weight",
            "encoder.layers.0.self_attn.gate",
            "encoder.history.gate",
            "ensemble.weight",
            "decoder.embed_tokens.bias",
        ],
    )
    def test_unknown_tensor_by_name(self, tmp_path, stored, name):
        stored["model"][name] = torch.ones(2)
        assert refusal(tmp_path, stored) == f"FILE uses the parameter {name}, which deepnmt does not support"

    def test_missing_tensor_by_name(self, tmp_path, stored):
        del stored["model"]["encoder.embed_tokens.weight"]
        assert refusal(tmp_path, stored) == "FILE lacks encoder.embed_tokens.weight"

    def test_missing_weight_inside_a_layer_by_our_name(self, tmp_path, stored):
        del stored["model"]["encoder.layers.1.fc1.bias"]
        assert refusal(tmp_path, stored) == "FILE lacks tensor encoder.layers.1.feed_forward.expand.bias"

    def test_missing_setting_by_name(self, tmp_path, stored):
        del stored["args"].encoder_attention_heads
        message = "FILE has no setting encoder_attention_heads, which is needed to rebuild the model"
        assert refusal(tmp_path, stored) == message

    def test_settings_that_are_not_numbers(self, tmp_path, stored):
        stored["args"].decoder_attention_heads = [4]
        assert refusal(tmp_path, stored) == "FILE: decoder_attention_heads = [4] is not a number"

    def test_tensors_of_another_rank(self, tmp_path, stored):
        for name, rank in {"decoder.layers.0.fc2.weight": 2, "encoder.history.weight": 3}.items():
            wrong = {**stored, "model": stored["model"] | {name: torch.tensor(1.0)}}
            assert refusal(tmp_path, wrong) == f"FILE: {name} has 0 dimensions instead of {rank}"
        name = "decoder.layers.0.encoder_attn.in_proj_bias"
        stored["model"][name] = torch.tensor(1.0)
        assert refusal(tmp_path, stored) == f"FILE uses the parameter {name}, which deepnmt does not support"

    def test_projections_of_different_widths(self, tmp_path):
        model = scrambled(tiny_config(), torch.float32)
        stored = checkpoint(model, fairseq_state(model))
        stored["model"]["decoder.layers.0.encoder_attn.k_proj.weight"] = torch.ones(DIM, 3)
        expected = "FILE: the parts of decoder.layers.0.cross_attention.key_value.weight have different shapes"
        assert refusal(tmp_path, stored, convert_fairseq) == expected

    def test_impossible_shape(self, tmp_path, stored):
        stored["args"].encoder_attention_heads = 3
        assert refusal(tmp_path, stored) == f"FILE: num_heads = 3 does not divide dim = {DIM}"

    def test_missing_layer(self, tmp_path, stored):
        for name in [name for name in stored["model"] if name.startswith("encoder.layers.1.")]:
            del stored["model"][name]
        assert refusal(tmp_path, stored) == "FILE has no layers encoder.layers.0, 1, ... in a row"

    def test_mixed_norm_placement(self, tmp_path, stored):
        del stored["model"]["decoder.layer_norm.weight"], stored["model"]["decoder.layer_norm.bias"]
        assert "pre-norm in one stack and post-norm in the other" in refusal(tmp_path, stored)

    def test_wrong_shape(self, tmp_path, stored):
        stored["model"]["decoder.layers.0.fc1.bias"] = torch.ones(3)
        expected = "FILE: decoder.layers.0.feed_forward.expand.bias has shape (3,) instead of (24,)"
        assert refusal(tmp_path, stored) == expected

    @mark.parametrize("content", [{"model": {}}, {"args": 3, "model": {}}, {"args": None, "model": 3}, [1], "text"])
    def test_other_torch_files(self, tmp_path, content):
        expected = "FILE is not a fairseq checkpoint: it needs model, and args or cfg"
        assert refusal(tmp_path, content) == expected

    def test_files_that_are_not_torchs(self, tmp_path):
        for content in (b"", b"not a checkpoint\n", b"eins zwei", b"PK\x03\x04 broken", bytes(range(256))):
            path = tmp_path / "c.pt"
            path.write_bytes(content)
            with raises(InputError, match="cannot be loaded safely"):
                convert_dlcl(path)

    def test_missing_files_and_folders(self, tmp_path):
        for name in ("nowhere.pt", "nowhere.npz"):
            with raises(InputError, match=f"{name} does not exist"):
                convert_dlcl(tmp_path / name)
        with raises(InputError, match="is a folder; name the checkpoint in it"):
            convert_dlcl(tmp_path)

    def test_npz_of_something_else(self, tmp_path):
        for name, arrays in {
            "other": {"x": np.ones(2)},
            "meta": {"meta": np.array("[1]")},
            "json": {"meta": np.array("{")},
        }.items():
            np.savez(tmp_path / f"{name}.npz", **arrays)
            with raises(InputError, match=f"{name}.npz is not an .npz of model parameters"):
                convert_dlcl(tmp_path / f"{name}.npz")
        for content in (b"", b"PK\x03\x04 broken", b"text"):
            (tmp_path / "broken.npz").write_bytes(content)
            with raises(InputError, match=r"broken.npz is not an .npz of model parameters"):
                convert_dlcl(tmp_path / "broken.npz")

    def test_a_damaged_npz(self, tmp_path):
        arrays = np.random.default_rng(0).integers(9, size=(50, 50))
        np.savez_compressed(tmp_path / "c.npz", **{"param/x": arrays})
        content = bytearray((tmp_path / "c.npz").read_bytes())
        content[200:220] = bytes(20)
        (tmp_path / "c.npz").write_bytes(content)
        with raises(InputError, match=r"c.npz is not an .npz of model parameters: Error -3"):
            convert_dlcl(tmp_path / "c.npz")

    def test_pickled_arrays_in_an_npz(self, tmp_path):
        marker = tmp_path / "owned"
        trap = np.array([Malicious(f"touch {marker}")], dtype=object)
        np.savez(tmp_path / "c.npz", **{"meta": np.array("{}"), "param/encoder.embed_tokens.weight": trap})
        with raises(InputError, match=r"c.npz is not an .npz of model parameters"):
            convert_dlcl(tmp_path / "c.npz")
        assert not marker.exists()

    def test_npz_without_heads(self, tmp_path):
        with np.load(AUTHORS / "dlcl_pre.npz") as stored:
            arrays = {name: stored[name] for name in stored.files} | {"meta": np.array(json.dumps({}))}
        np.savez(tmp_path / "c.npz", **arrays)
        with raises(InputError, match="has no setting encoder_attention_heads"):
            convert_dlcl(tmp_path / "c.npz")


def fairseq_state(model):
    """The names of fairseq since 0.9: projections apart, norms named, the output projection stored."""
    state = OrderedDict()
    norms = {"encoder": ["self_attn", "final"], "decoder": ["self_attn", "encoder_attn", "final"]}
    for name, tensor in authors_state(model).items():
        if match := re.fullmatch(r"(.+_attn)\.in_proj_(weight|bias)", name):
            for part, value in zip("qkv", tensor.chunk(3), strict=True):
                state[f"{match[1]}.{part}_proj.{match[2]}"] = value.clone()
        elif match := re.fullmatch(r"(\w+)\.(layers\.\d+)\.layer_norms\.(\d)\.(\w+)", name):
            state[f"{match[1]}.{match[2]}.{norms[match[1]][int(match[3])]}_layer_norm.{match[4]}"] = tensor
        elif name == "decoder.embed_out":
            state["decoder.output_projection.weight"] = tensor
        else:
            state[name] = tensor
    state.setdefault("decoder.output_projection.weight", state["decoder.embed_tokens.weight"])
    return state


def test_a_setting_without_a_value_has_its_default(tmp_path, stored):
    for name in ("dropout", "attention_dropout", "relu_dropout", "history_dropout", "history_window_size"):
        setattr(stored["args"], name, None)
    torch.save(stored, tmp_path / "c.pt")
    config = convert_dlcl(tmp_path / "c.pt").config
    assert (config.dropout, config.attention_dropout, config.ffn_dropout) == (0.1, 0, 0)
    assert config.encoder.connection == DLCL


class TestFairseq:
    @mark.parametrize(
        "changes",
        [
            {},
            {"norm": "post"},
            {"share_embeddings": False, "source_vocab_size": 17},
            {"share_embeddings": False, "tie_output": False},
            {"positions": "learned", "max_positions": 30},
            {"activation": "gelu"},
        ],
        ids=str,
    )
    def test_plain_transformer(self, tmp_path, changes):
        model = scrambled(tiny_config(**changes), torch.float32)
        stored = checkpoint(model, fairseq_state(model), activation_fn=model.config.activation)
        torch.save(stored, tmp_path / "c.pt")
        converted = convert_fairseq(tmp_path / "c.pt")
        assert_same(converted, model)
        assert converted.config == replace(model.config, dropout=0.1, attention_dropout=0.2, ffn_dropout=0.3)

    @mark.parametrize("table", [dict, lambda **entries: argparse.Namespace(**entries)], ids=["table", "Namespace"])
    def test_settings_under_cfg(self, tmp_path, table):
        model = scrambled(tiny_config(), torch.float32)
        stored = checkpoint(model, fairseq_state(model))
        stored["cfg"] = {"_name": None, "model": table(**vars(stored["args"]))}
        stored["args"] = None
        torch.save(stored, tmp_path / "c.pt")
        assert_same(convert_fairseq(tmp_path / "c.pt"), model)

    def test_stacks_of_two_widths(self, tmp_path):
        config = tiny_config(share_embeddings=False)
        wide = StackConfig(num_layers=2, dim=24, ffn_dim=32, num_heads=2)
        model = scrambled(replace(config, encoder=wide), torch.float32)
        torch.save(checkpoint(model, fairseq_state(model)), tmp_path / "c.pt")
        assert_same(convert_fairseq(tmp_path / "c.pt"), model)

    @mark.parametrize("setting", ["no_token_positional_embeddings", "cross_self_attention"])
    def test_refuses_what_no_shape_shows(self, tmp_path, setting):
        model = scrambled(tiny_config(), torch.float32)
        stored = checkpoint(model, fairseq_state(model), **{setting: True})
        message = f"FILE uses {setting}, which deepnmt does not support"
        assert refusal(tmp_path, stored, convert_fairseq) == message

    def test_refuses_other_activations_and_unknown_tensors(self, tmp_path):
        model = scrambled(tiny_config(), torch.float32)
        stored = checkpoint(model, fairseq_state(model), activation_fn="tanh")
        assert "activation_fn = tanh" in refusal(tmp_path, stored, convert_fairseq)
        stored = checkpoint(model, fairseq_state(model))
        stored["model"]["encoder.layernorm_embedding.weight"] = torch.ones(DIM)
        message = "FILE uses the parameter encoder.layernorm_embedding.weight, which deepnmt does not support"
        assert refusal(tmp_path, stored, convert_fairseq) == message
