"""The code in the documentation runs."""

import io
import pkgutil
import re
import shutil
import sys
import tomllib
import types
from dataclasses import fields
from pathlib import Path

import torch
from pytest import fixture, mark

import deepnmt
from deepnmt.cli import main
from deepnmt.config import load_recipe
from deepnmt.model import config as model_config
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.folding import folded
from deepnmt.model.storage import load_model, save_model
from deepnmt.model.sublayers import SUBLAYERS
from deepnmt.model.transformer import Transformer
from deepnmt.reproduction.experiment import Arm, Claim, Experiment, read_experiment
from deepnmt.settings import from_table

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "add-a-connection.md").read_text(encoding="utf-8")
FILE, LINE = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


@fixture
def decaying(monkeypatch):
    """The guide followed: its file is a module, its line stands in the table."""
    name = "deepnmt.model.connections.decaying"
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(FILE, "docs/add-a-connection.md", "exec"), module.__dict__)
    table = eval(f"{{{LINE}}}", module.__dict__)
    for kind, scheme in table.items():
        monkeypatch.setitem(CONNECTIONS, kind, scheme)
        monkeypatch.setitem(model_config.CONNECTION_CONFIGS, kind, scheme.Config)
    (kind,) = table
    return CONNECTIONS[kind]


def tiny(connection, norm):
    stack = StackConfig(num_layers=3, dim=16, ffn_dim=32, num_heads=4, connection=connection)
    return ModelConfig(source_vocab_size=14, target_vocab_size=14, norm=norm, encoder=stack, decoder=stack, dropout=0.0)


@mark.parametrize("norm", ["pre", "post"])
def test_the_scheme_of_the_guide_trains_in_the_normal_transformer(decaying, norm, tmp_path):
    torch.manual_seed(0)
    model = Transformer(tiny(decaying.Config(), norm))
    source, target = torch.randint(4, 14, (8, 6)), torch.randint(4, 14, (8, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(source, target)[:, :-1].flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert model.encoder.connection.logit.item() != 0.0, "the decay is learned"

    save_model(tmp_path, model.eval())
    assert torch.equal(load_model(tmp_path)(source, target), model(source, target))


def test_the_scheme_of_the_guide_is_what_its_equation_says(decaying):
    connection = Transformer(tiny(decaying.Config(start=0.5), "pre")).encoder.connection
    torch.testing.assert_close(connection.matrix()[2], torch.tensor([1 / 7, 2 / 7, 4 / 7, 0]))
    history = connection.begin()
    outputs = [torch.randn(2, 3, 16) for _ in range(3)]
    for output in outputs:
        connection.write(history, output)
    expected = (outputs[0] + 2 * outputs[1] + 4 * outputs[2]) / 7
    torch.testing.assert_close(connection.read(history), expected)


@mark.parametrize("command", re.findall(r"^deepnmt (?:train|inspect size) (.+)$", GUIDE, re.MULTILINE))
def test_the_commands_of_the_guide_name_real_recipes_and_settings(decaying, command):
    name, *overrides = command.partition(" --")[0].split()
    load_recipe(name, overrides)


def test_the_experiment_of_the_guide_is_one(decaying):
    (file,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    experiment = from_table(Experiment, tomllib.loads(file))
    assert [load_recipe(arm.recipe, arm.overrides).model.encoder.connection.kind for arm in experiment.arms] == [
        "residual",
        "decaying",
        "dlcl",
    ]
    assert {claim.text for claim in experiment.claims} == {"decaying is better than residual"}


def test_the_page_about_studies_has_an_experiment_and_every_field(tmp_path):
    page = (ROOT / "docs" / "study.md").read_text(encoding="utf-8").partition("## Your own experiments")[2]
    for name, file in re.findall(r"```toml\n# (\S+): (.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(f"# {file}", encoding="utf-8")
    experiment = read_experiment(tmp_path / "peri.toml")
    encoders = [load_recipe(arm.recipe, experiment.overrides_of(arm)).model.encoder for arm in experiment.arms]
    assert [encoder.connection.kind for encoder in encoders] == ["residual", "dlcl", "dlcl"]
    for field in (*fields(Experiment), *fields(Arm), *fields(Claim)):
        assert f"`{field.name}`" in page, field.name


def test_the_option_of_the_guide_is_an_override(decaying, capsys):
    (override,) = re.findall(r"`(model\.encoder\.connection\.start=\S+)`", GUIDE)
    overrides = ["model.encoder.connection.kind=decaying", override]
    assert load_recipe("en-de-pre-20l", overrides).model.encoder.connection == decaying.Config(start=0.8)
    assert main(["inspect", "size", "en-de-pre-20l", *overrides[:1], "model.encoder.connection.start=2.0"]) == 2
    expected = "deepnmt: model.encoder.connection: connection.start = 2.0 must be above 0 and below 1\n"
    assert capsys.readouterr().err == expected


SUBLAYER_GUIDE = (ROOT / "docs" / "add-a-sublayer.md").read_text(encoding="utf-8")


@fixture
def damped(monkeypatch):
    """The guide to schemes around sub-layers, followed."""
    file, line = re.findall(r"```python\n(.*?)```", SUBLAYER_GUIDE, re.DOTALL)
    name = "deepnmt.model.sublayers.damped"
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(file, "docs/add-a-sublayer.md", "exec"), module.__dict__)
    ((kind, scheme),) = eval(f"{{{line}}}", module.__dict__).items()
    monkeypatch.setitem(SUBLAYERS, kind, scheme)
    monkeypatch.setitem(model_config.SUBLAYER_CONFIGS, kind, scheme.Config)
    return scheme


def test_the_sublayer_of_the_guide_is_stored_folds_and_learns(damped, tmp_path):
    torch.manual_seed(0)
    stack = StackConfig(num_layers=2, dim=16, ffn_dim=32, num_heads=4, sublayer=damped.Config(power=2.0))
    model = Transformer(
        ModelConfig(source_vocab_size=14, target_vocab_size=14, encoder=stack, decoder=stack, dropout=0.0)
    )
    unit, x = model.encoder.layers[0].around_attention, torch.randn(3, 16)
    torch.testing.assert_close(unit(x, lambda z: 4 * z, x), x + unit.norm(x))
    source, target = torch.randint(4, 14, (2, 4, 6))
    model(source, target).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    save_model(tmp_path, model.eval())
    stored = load_model(tmp_path)
    torch.testing.assert_close(stored(source, target), model(source, target))
    plain = folded(stored)
    assert plain.config.sublayer_of(plain.config.encoder).kind == "pre"
    torch.testing.assert_close(plain(source, target), stored(source, target), rtol=1e-4, atol=1e-5)


COMMANDS = re.compile(r"^deepnmt (?:train|inspect size) (.+)$", re.MULTILINE)
DEPTH = (ROOT / "docs" / "depth.md").read_text(encoding="utf-8")


@mark.parametrize("command", [*COMMANDS.findall(SUBLAYER_GUIDE), *COMMANDS.findall(DEPTH)])
def test_the_commands_about_depth_name_real_recipes_and_settings(damped, command):
    name, *overrides = command.partition(" --")[0].split()
    load_recipe(name, overrides)


def test_the_table_of_depth_has_every_scheme_and_its_recipe():
    for kind in [*CONNECTIONS, *SUBLAYERS]:
        assert f"`{kind}`" in DEPTH, kind
    for kind in SUBLAYERS.keys() - {"pre", "post"}:
        assert load_recipe(f"beyond-{kind}").model.encoder.sublayer == SUBLAYERS[kind].Config()
    before = {"residual", "dense", "average", "transparent", "fusion", "coordinated", "aggregated"}
    for kind in CONNECTIONS.keys() - before:
        assert load_recipe(f"beyond-{kind}").model.encoder.connection == CONNECTIONS[kind].Config()


def test_the_python_page_runs_and_shows_every_name(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests" / "model" / "authors" / "dlcl_pre.npz", "checkpoint.npz")
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    names = {}
    exec(compile(code, "docs/python.md", "exec"), names)
    assert names["run"].is_finished and names["run"].model.is_dir()
    assert len(names["found"].hypotheses) == 12
    assert names["logits"].shape == (1, names["target_input"].shape[1], names["pair"].target.vocab_size)
    assert names["encoder"].kind == "dlcl"
    shown = io.StringIO()
    for result in (names["found"].scores, names["curves"], names["report"], deepnmt.inspect_size("demo")):
        result._repr_pretty_(types.SimpleNamespace(text=shown.write), cycle=False)  # as a notebook does
        assert str(result) in shown.getvalue()
    for name in set(deepnmt.__all__) - {"Run"}:
        assert re.search(rf"deepnmt\.{name}\(|`{name}`", page), f"docs/python.md does not show deepnmt.{name}"


def test_the_architecture_page_names_what_exists():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.name for path in (ROOT / "deepnmt").iterdir() if path.is_dir() and (path / "__init__.py").is_file()}
    for room in rooms:
        assert f"  {room}/" in page, f"docs/architecture.md does not name deepnmt/{room}/"
    for file in (ROOT / "deepnmt").glob("*.py"):
        assert file.name in page or file.stem.startswith("__"), file.name


@mark.parametrize("title", ["A batch, from text file to optimiser step", "A sentence, from standard input"])
def test_the_walks_name_each_function_once(title):
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    walk = page.partition(f"## {title}")[2].partition("\n## ")[0]
    names = re.findall(r"`([a-z_]+(?:\.\w+)+)`", walk)
    assert len(names) > 15
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)
    for name in names:
        pkgutil.resolve_name(f"deepnmt.{name}")  # AttributeError where there is no such function
