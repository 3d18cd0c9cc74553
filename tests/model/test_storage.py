"""A MODEL folder: what is written is what is read, what is damaged is refused, what is old still loads."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from model_variants import CASE_IDS, CASES, case_config, padded, scrambled, sentences, tiny_config
from pytest import fixture, mark, raises
from safetensors.torch import load_file, save_file

from deepnmt import __version__
from deepnmt.errors import InputError
from deepnmt.files import write_json
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.storage import load_meta, load_model, save_model

STORED = Path(__file__).parent / "stored"


@mark.parametrize(("variant", "norm", "stack"), CASES, ids=CASE_IDS)
def test_what_is_saved_is_what_is_loaded(tmp_path, variant, norm, stack):
    model = scrambled(case_config(variant, norm, stack), torch.float32)
    save_model(tmp_path / "MODEL", model)
    loaded = load_model(tmp_path / "MODEL")
    assert loaded.config == model.config
    assert not loaded.training
    for (name, ours), theirs in zip(model.named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
        assert ours.requires_grad == theirs.requires_grad, name
    source, target = padded(sentences(6, 4)), padded(sentences(5, 3, seed=2))
    assert torch.equal(model(source, target), loaded(source, target))


@mark.parametrize(
    "changes",
    [
        {"share_embeddings": False, "source_vocab_size": 30},
        {"tie_output": False},
        {"positions": "learned", "max_positions": 9},
        {"activation": "swiglu"},
    ],
    ids=str,
)
def test_every_way_to_make_a_model_survives(tmp_path, changes):
    model = scrambled(tiny_config(**changes), torch.float32)
    save_model(tmp_path, model)
    loaded = load_model(str(tmp_path))
    source, target = padded(sentences(6, 4)), padded(sentences(5, 3, seed=2))
    assert loaded.config == model.config
    assert torch.equal(model(source, target), loaded(source, target))


def test_a_table_with_several_uses_is_stored_once_and_stays_one(tmp_path):
    model = scrambled(tiny_config(), torch.float32)
    save_model(tmp_path, model)
    assert not [name for name in load_file(tmp_path / "model.safetensors") if name.startswith("target_embedding")]
    loaded = load_model(tmp_path)
    assert loaded.source_embedding.tokens.weight is loaded.output_weight


def test_meta_says_the_format_the_version_and_what_the_caller_knows(tmp_path):
    save_model(tmp_path, scrambled(tiny_config(), torch.float32), {"step": 7})
    assert load_meta(tmp_path) == {"format": 1, "deepnmt": __version__, "step": 7}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "meta.json", "model.safetensors"]


def test_whoever_can_read_the_config_can_read_the_weights(tmp_path):
    save_model(tmp_path, scrambled(tiny_config(), torch.float32))
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_loading_draws_no_random_numbers(tmp_path):
    """They would be overwritten, and drawing them is most of the time that loading takes."""
    save_model(tmp_path, scrambled(tiny_config(DlclConfig(), positions="learned"), torch.float32))
    torch.manual_seed(12345)
    before = torch.get_rng_state()
    load_model(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


@fixture
def folder(tmp_path):
    save_model(tmp_path / "MODEL", scrambled(tiny_config(DlclConfig()), torch.float32))
    return tmp_path / "MODEL"


def refusal(folder):
    with raises(InputError) as refused:
        load_model(folder)
    return str(refused.value).replace(str(folder), "MODEL")


class TestRefusals:
    @mark.parametrize("name", ["meta.json", "config.json"])
    def test_missing_table(self, folder, name):
        (folder / name).unlink()
        assert refusal(folder) == f"MODEL is not a MODEL folder: it has no {name}"

    def test_missing_folder(self, tmp_path):
        assert refusal(tmp_path / "nowhere") == "the model folder MODEL does not exist"

    def test_run_in_place_of_its_model(self, tmp_path):
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "meta.json").touch()
        told = refusal(tmp_path)
        assert told == "MODEL is not a MODEL folder: it has no meta.json (a RUN; its model is MODEL/model)"

    def test_a_run_that_has_not_finished_has_checkpoints(self, tmp_path):
        run = tmp_path / "run"
        run.mkdir()
        write_json(run / "last.json", {"checkpoint": "checkpoints/step-5"})
        hint = "(MODEL has not finished training; its last checkpoint is MODEL/checkpoints/step-5)"
        assert refusal(run) == f"MODEL is not a MODEL folder: it has no meta.json {hint}"
        with raises(InputError, match=r"run/model does not exist \(.*its last checkpoint is .*/checkpoints/step-5\)$"):
            load_model(run / "model")

    def test_missing_weights(self, folder):
        (folder / "model.safetensors").unlink()
        assert refusal(folder).startswith("MODEL/model.safetensors cannot be read: ")

    @mark.parametrize("name", ["meta.json", "config.json"])
    @mark.parametrize("content", ["", "{", '{"format": 1', "\ufeff{", "[1]", "null"])
    def test_damaged_table(self, folder, name, content):
        (folder / name).write_text(content)
        assert refusal(folder).startswith((f"MODEL/{name} is not JSON: ", f"MODEL/{name} is not a JSON object"))

    @mark.parametrize("name", ["meta.json", "config.json"])
    def test_table_that_is_not_text(self, folder, name):
        (folder / name).write_bytes(b"\xff\xfe\x00")
        assert refusal(folder).startswith(f"MODEL/{name} is not JSON: ")

    @mark.parametrize("version", [2, 0, "1", None])
    def test_other_format(self, folder, version):
        (folder / "meta.json").write_text(json.dumps({"format": version}))
        expected = f"MODEL/meta.json has format {version!r}, but this version of deepnmt reads 1: "
        assert refusal(folder).startswith(expected)

    @mark.parametrize("keep", [0, 4, 8, 100, -1])
    def test_damaged_weights(self, folder, keep):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:keep])
        assert refusal(folder).startswith("MODEL/model.safetensors cannot be read: ")

    def test_pickle_in_place_of_weights(self, folder):
        torch.save({"x": torch.ones(2)}, folder / "model.safetensors")
        assert refusal(folder).startswith("MODEL/model.safetensors cannot be read: ")

    def change(self, folder, change):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    def test_missing_tensor(self, folder):
        self.change(folder, lambda tensors: tensors.pop("encoder.connection.weight"))
        assert refusal(folder) == "MODEL/model.safetensors lacks tensor encoder.connection.weight"

    def test_unknown_tensor(self, folder):
        self.change(folder, lambda tensors: tensors.update(extra=torch.ones(2)))
        assert refusal(folder) == "MODEL/model.safetensors has an unknown tensor extra"

    def test_wrong_shape(self, folder):
        self.change(folder, lambda tensors: tensors.update({"encoder.connection.weight": torch.ones(2, 2, 1)}))
        expected = "MODEL/model.safetensors: encoder.connection.weight has shape (2, 2, 1) instead of (4, 4, 1)"
        assert refusal(folder) == expected

    def test_config_that_says_something_else(self, folder):
        table = json.loads((folder / "config.json").read_text())
        table["encoder"]["num_layer"] = 3
        (folder / "config.json").write_text(json.dumps(table))
        assert refusal(folder) == "MODEL/config.json: unknown setting encoder.num_layer; did you mean num_layers?"
        table["encoder"] = {**table["encoder"], "num_layers": "3"}
        del table["encoder"]["num_layer"]
        (folder / "config.json").write_text(json.dumps(table))
        assert refusal(folder) == "MODEL/config.json: encoder.num_layers must be a whole number, not '3'"


@mark.parametrize("version", sorted(path.name for path in STORED.iterdir()))
def test_a_model_of_every_format_version_still_loads_and_says_the_same(version):
    folder = STORED / version
    model = load_model(folder)
    with np.load(folder / "expected.npz") as expected, torch.no_grad():
        logits = model(torch.from_numpy(expected["source"]), torch.from_numpy(expected["target_input"]))
        np.testing.assert_allclose(logits.numpy(), expected["logits"], rtol=0, atol=1e-5)
    assert f"v{load_meta(folder)['format']}" == version


def test_the_stored_model_uses_what_a_config_can_hold():
    config = load_model(STORED / "v1").config
    assert config.encoder.connection.kind == "dlcl"
    assert config.decoder.connection.kind == "transparent"
    assert config != replace(config, norm="pre")
