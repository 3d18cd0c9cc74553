"""Recipes: every system of the paper loads, with the paper's size and settings, and mistakes are named."""

from dataclasses import replace
from pathlib import Path

import torch
from pytest import mark, raises

from deepnmt.cli import main
from deepnmt.commands.prepare import PRESETS
from deepnmt.config import find_recipe, load_recipe, preset_names, recipes_folder
from deepnmt.errors import InputError
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.connections.residual import ResidualConfig
from deepnmt.model.connections.transparent import TransparentConfig
from deepnmt.model.transformer import Transformer

RESULTS = Path(__file__).parents[1] / "results"
MILLIONS = {
    # Table 1: a joint vocabulary of 34,000
    "en-de-post-base": 62,
    "en-de-post-big": 211,
    "en-de-post-20l": 106,
    "en-de-post-dlcl-base": 62,
    "en-de-post-dlcl-25l": 121,
    "en-de-pre-base": 62,
    "en-de-pre-big": 211,
    "en-de-pre-20l": 106,
    "en-de-pre-dlcl-base": 62,
    "en-de-pre-dlcl-30l": 137,
    # Table 3: separate vocabularies of 44k and 33k
    "zh-en-small-pre-base": 84,
    "zh-en-small-pre-big": 257,
    "zh-en-small-pre-25l": 144,
    "zh-en-small-pre-dlcl-base": 84,
    "zh-en-small-pre-dlcl-25l": 144,
    # Table 4: source + 2 x target = 113,200 rows
    "zh-en-large-post-base": 102.1,
    "zh-en-large-pre-base": 102.1,
    "zh-en-large-pre-big": 292.4,
    "zh-en-large-pre-dlcl-25l": 161.5,
    "zh-en-large-pre-dlcl-30l": 177.2,
}


@mark.parametrize("name", MILLIONS)
def test_parameters_are_the_papers_within_one_percent(name):
    with torch.device("meta"):
        model = Transformer(load_recipe(name).model)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert abs(parameters / 1e6 / MILLIONS[name] - 1) < 0.01


@mark.parametrize("name", preset_names())
def test_every_preset_loads_and_builds(name):
    recipe = load_recipe(name)
    with torch.device("meta"):
        model = Transformer(recipe.model)
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (
        recipe.model.encoder.num_layers,
        recipe.model.decoder.num_layers,
    )


@mark.parametrize("name", [name for name in preset_names() if name.startswith(("en-de-", "zh-en-"))])
def test_a_system_of_the_paper_is_what_its_name_says(name):
    model = load_recipe(name).model
    words = name.split("-")
    assert model.norm == ("post" if "post" in words else "pre")
    depths = [int(word[:-1]) for word in words if word.endswith("l") and word[:-1].isdecimal()]
    if depths:
        stack = model.decoder if "decoder" in words else model.encoder
        assert stack.num_layers == depths[0]
    kinds = [word for word in words if word in CONNECTIONS]  # "fixed-average" comes after its scheme
    assert model.encoder.connection.kind == (kinds[0] if kinds else "residual")


def test_prepare_suggests_presets_that_exist():
    assert {*PRESETS.values()} <= {*preset_names()}
    assert list(PRESETS) == sorted(PRESETS)


def test_the_deep_recipe_is_the_setting_that_was_measured():
    ours = load_recipe("deep")
    measured = load_recipe(str(RESULTS / "europarl/equal-tokens" / "dlcl-30l" / "recipe.toml"))
    vocabulary = {"source_vocab_size": 34_000, "target_vocab_size": 34_000}
    assert replace(measured.model, **vocabulary) == ours.model
    assert (measured.batching, measured.decoding) == (ours.batching, ours.decoding)
    optimisation = ("optimizer", "lr", "schedule", "warmup_steps", "betas", "label_smoothing")
    for name in ("tokens_per_update", "max_steps", "precision", *optimisation):
        assert getattr(measured.training, name) == getattr(ours.training, name)


HYPER = {
    # beta2, lr, warm-up, updates, tokens per update, dropout: residual / attention / ffn
    "en-de-post-base": (0.98, 7e-4, 4000, 100_000, 32_768, (0.1, 0.0, 0.0)),
    "en-de-post-big": (0.98, 5e-4, 4000, 300_000, 32_768, (0.3, 0.0, 0.0)),
    "en-de-pre-base": (0.997, 1e-3, 8000, 100_000, 32_768, (0.1, 0.1, 0.1)),
    "en-de-pre-big": (0.997, 7e-4, 8000, 300_000, 32_768, (0.3, 0.1, 0.1)),
    "en-de-post-20l": (0.98, 2e-3, 16_000, 50_000, 65_536, (0.1, 0.0, 0.0)),
    "en-de-post-dlcl-25l": (0.98, 2e-3, 16_000, 50_000, 65_536, (0.1, 0.0, 0.0)),
    "en-de-pre-20l": (0.997, 2e-3, 16_000, 50_000, 65_536, (0.1, 0.1, 0.1)),
    "en-de-pre-dlcl-30l": (0.997, 2e-3, 16_000, 50_000, 65_536, (0.1, 0.1, 0.1)),
}


@mark.parametrize("name", HYPER)
def test_hyper_parameters_are_the_papers(name):
    recipe = load_recipe(name)
    model, training = recipe.model, recipe.training
    assert (
        training.betas[1],
        training.lr,
        training.warmup_steps,
        training.max_steps,
        training.tokens_per_update,
        (model.dropout, model.attention_dropout, model.ffn_dropout),
    ) == HYPER[name]


def test_decoding_of_zh_en_is_wider_and_longer():
    assert (load_recipe("en-de-pre-base").decoding.beam, load_recipe("en-de-pre-base").decoding.length_penalty) == (
        4,
        0.6,
    )
    for name in preset_names():
        if name.startswith("zh-en"):
            assert (load_recipe(name).decoding.beam, load_recipe(name).decoding.length_penalty) == (6, 1.0), name


class TestOverrides:
    def test_a_value(self):
        recipe = load_recipe("en-de-pre-base", ["model.encoder.num_layers=30", "training.lr=2e-3", "model.norm=post"])
        assert (recipe.model.encoder.num_layers, recipe.training.lr, recipe.model.norm) == (30, 2e-3, "post")

    @mark.parametrize("override", ["model.encoder.connection.kind=transparent", "model.encoder.connection=transparent"])
    def test_another_connection_drops_the_options_of_the_one_before(self, override):
        recipe = load_recipe("en-de-pre-dlcl-20l-fixed-one", [override])
        assert recipe.model.encoder.connection == TransparentConfig()
        assert recipe.model.decoder.connection == DlclConfig(learned=False, start="one")

    @mark.parametrize("turn", [1, -1])
    def test_a_kind_and_its_options_in_any_order(self, turn):
        overrides = ["model.encoder.connection.kind=dlcl", "model.encoder.connection.groups=4"][::turn]
        assert load_recipe("en-de-pre-base", overrides).model.encoder.connection == DlclConfig(groups=4)

    def test_values_from_python(self):
        """None unsets a setting, and a table merges with the recipe's."""
        given = {"training.clip_norm": 1.0, "training.betas": (0.9, 0.9), "training": {"lr": 0.5}}
        recipe = load_recipe("en-de-pre-base", given)
        before = load_recipe("en-de-pre-base").training
        assert recipe.training == replace(before, clip_norm=1.0, betas=(0.9, 0.9), lr=0.5)
        assert load_recipe(recipe, {"training.clip_norm": None}).training.clip_norm is None
        assert load_recipe(recipe, "training.seed=3").training.seed == 3

    def test_the_later_of_two_wins(self):
        recipe = load_recipe("en-de-pre-base", ["training.lr=1e-3", "training.lr=3e-3"])
        assert recipe.training.lr == 3e-3

    @mark.parametrize(
        ("override", "message"),
        [
            ("model.num_encoder_layer=6", "unknown setting model.num_encoder_layer"),
            ("model.encoder.num_layer=6", "unknown setting model.encoder.num_layer; did you mean num_layers?"),
            ("lr=1", "unknown setting lr; did you mean training.lr?"),
            ("dim=8", "unknown setting dim; did you mean model.encoder.dim or model.decoder.dim?"),
            (
                "training.learning_rate=1",
                "unknown setting training.learning_rate; `deepnmt presets demo` prints all settings",
            ),
            ("modle.norm=pre", "unknown setting modle; did you mean model?"),
            ("model.norm=per", "model.norm is 'per', not one of pre, post; did you mean pre?"),
            ("model.encoder.num_layers=six", "model.encoder.num_layers must be a whole number, not 'six'"),
            ("model.encoder.num_layers=0", "model.encoder: num_layers = 0 must be at least 1"),
            ("model.encoder.num_heads=7", "model.encoder: num_heads = 7 does not divide dim = 512"),
            ("model.dropout=1.0", "model: dropout = 1.0 must be at least 0 and below 1"),
            ("model.share_embeddings=yes", "model.share_embeddings must be true or false, not 'yes'"),
            (
                "model.source_vocab_size=100",
                "model: share_embeddings = true needs one vocabulary, but source_vocab_size = 100 and "
                "target_vocab_size = 34000; set model.share_embeddings=false, or prepare the data with a joint "
                "vocabulary",
            ),
            (
                "model.encoder.dim=1024",
                "model: share_embeddings = true needs one width, but encoder.dim = 1024 and decoder.dim = 512; "
                "set both alike, or model.share_embeddings=false",
            ),
            (
                "model.encoder.connection.kind=dlc",
                f"model.encoder.connection.kind is 'dlc', not one of {', '.join(CONNECTIONS)}; did you mean dlcl?",
            ),
            ("model.encoder.connection.groups=2", "model.encoder.connection.kind is missing; choose from residual"),
            ("model.encoder=3", "model.encoder is a section, not a value: 3"),
            ("model.encoder.dim.x=3", "model.encoder.dim must be a whole number, not {'x': 3}"),
            ("decoding.beam=0", "decoding: beam = 0 must be at least 1"),
            ("decoding.length_penalty=nan", "decoding: length_penalty = nan must be above -10 and below 10"),
        ],
        ids=lambda value: value[:50],
    )
    def test_refusals(self, override, message):
        with raises(InputError) as refused:
            load_recipe("en-de-pre-base", [override])
        assert str(refused.value).startswith(message)

    def test_an_option_that_does_not_fit_the_width(self):
        overrides = ["model.encoder.connection.kind=dlcl", "model.encoder.connection.groups=7"]
        with raises(InputError, match=r"^model\.encoder: connection\.groups = 7 does not divide dim = 512$"):
            load_recipe("en-de-pre-base", overrides)


class TestFiles:
    def write(self, folder, text, name="mine.toml"):
        (folder / name).write_text(text, encoding="utf-8")
        return str(folder / name)

    def test_a_recipe_extends_another_and_changes_what_it_names(self, tmp_path):
        self.write(tmp_path, 'extends = "en-de-pre-base"\n[model.encoder]\nffn_dim = 100\n', "base.toml")
        mine = self.write(tmp_path, 'extends = "base.toml"\n[model.encoder]\nnum_layers = 9\n')
        recipe = load_recipe(mine)
        assert (recipe.model.encoder.num_layers, recipe.model.encoder.ffn_dim) == (9, 100)
        assert recipe.model.decoder == load_recipe("en-de-pre-base").model.decoder

    def test_a_table_with_a_kind_replaces_the_one_below(self, tmp_path):
        options = '[model.encoder.connection]\nkind = "dlcl"\ngroups = 4\n'
        base = self.write(tmp_path, f'extends = "en-de-pre-base.toml"\n{options}', "base.toml")
        assert load_recipe(base).model.encoder.connection == DlclConfig(groups=4)
        mine = self.write(tmp_path, 'extends = "base.toml"\n[model.encoder]\nconnection.kind = "residual"\n')
        assert load_recipe(mine).model.encoder.connection == ResidualConfig()

    def test_mistakes_name_the_file(self, tmp_path):
        mine = self.write(tmp_path, "[model\n")
        with raises(InputError, match=f"^{mine} is not TOML: "):
            load_recipe(mine)
        (tmp_path / "mine.toml").write_bytes(b"\xff\xfe")
        with raises(InputError, match=f"^{mine} is not TOML: "):
            load_recipe(mine)
        mine = self.write(tmp_path, 'extends = "nowhere.toml"\n')
        with raises(
            InputError,
            match=f"^{mine} extends 'nowhere.toml', but there is neither .*nowhere.toml nor such a preset",
        ):
            load_recipe(mine)
        mine = self.write(tmp_path, "[training]\nmax_steps = 1\n")
        with raises(InputError, match=f"^{mine}: missing setting model$"):
            load_recipe(mine)
        (tmp_path / "mine.toml").write_bytes(b"\xef\xbb\xbf[training]\r\nmax_step = 1\r\n")  # as saved on Windows
        with raises(InputError, match=f"^{mine}: unknown setting training.max_step; did you mean max_steps"):
            load_recipe(mine)
        mine = self.write(tmp_path, 'extends = "mine.toml"\n')
        with raises(InputError, match=f"^{mine} extends 'mine.toml', which extends it in turn$"):
            load_recipe(mine)
        self.write(tmp_path, 'extends = "other.toml"\n')
        self.write(tmp_path, 'extends = "mine.toml"\n', "other.toml")
        with raises(InputError, match=r"which extends it in turn$"):
            load_recipe(mine)

    def test_presets_are_found_by_name_with_and_without_their_folder(self):
        expected = recipes_folder() / "en-de-pre-base.toml"
        for name in ("en-de-pre-base", "en-de-pre-base.toml", "recipes/en-de-pre-base.toml", str(expected)):
            assert find_recipe(name).resolve() == expected.resolve()

    def test_an_unknown_name_is_answered_with_the_nearest_preset(self):
        with raises(
            InputError, match=r"^en-de-pre-dlcl-30 is neither .* presets`\); did you mean en-de-pre-dlcl-30l\?$"
        ):
            load_recipe("en-de-pre-dlcl-30")
        with raises(InputError, match=r"^elsewhere/en-de-pre-base\.toml is neither"):
            load_recipe("elsewhere/en-de-pre-base.toml")


class TestPresetsCommand:
    def test_the_list_has_a_line_about_every_preset(self, capsys):
        assert main(["presets"]) == 0
        shown = capsys.readouterr().out.splitlines()
        lines = dict(line.split(maxsplit=1) for line in shown if line.startswith("  "))
        assert sorted(lines) == preset_names()
        assert lines["en-de-pre-dlcl-30l"].startswith("Table 1, pre-norm DLCL")
        assert all(20 < len(line) < 140 for line in lines.values())

    @mark.parametrize("name", ["en-de-post-dlcl-25l", "demo"])
    def test_the_settings_shown_are_the_recipe(self, name, capsys, tmp_path):
        assert main(["presets", name, "training.seed=7"]) == 0
        (tmp_path / "shown.toml").write_text(capsys.readouterr().out)
        assert load_recipe(str(tmp_path / "shown.toml")) == load_recipe(name, ["training.seed=7"])

    def test_an_unknown_name_is_refused(self, capsys):
        assert main(["presets", "en-de-pre-bas"]) == 2
        assert "did you mean en-de-pre-base?" in capsys.readouterr().err
