"""A multilingual run, from text to translations: the tag decides the language, and validation scores each direction."""

import random
from dataclasses import replace

import pytest
import small
from small import ALONE, CONFIG_MODEL, CPU, TRAINING

import deepnmt
from deepnmt.cli import main
from deepnmt.config import Recipe
from deepnmt.data.dataset import Direction
from deepnmt.errors import InputError
from deepnmt.evaluation.scores import quick_scores
from deepnmt.model.transformer import Transformer
from deepnmt.training.engine import Objective
from deepnmt.training.validation import TextMetrics, Validator

WORDS = ["tree", "house", "bird", "stone", "river", "cloud", "horse", "bread"]
LANGUAGES = {"aa": str.upper, "bb": lambda text: text.replace("e", "o")}  # what a word becomes in each language
SETTINGS = {
    "model.encoder.num_layers": 2,
    "model.decoder.num_layers": 1,
    **{
        f"model.{stack}.{name}": value
        for stack in ("encoder", "decoder")
        for name, value in (("dim", 32), ("ffn_dim", 64), ("num_heads", 2))
    },
    "model.dropout": 0.0,
    "training.max_steps": 120,
    "training.tokens_per_update": 512,
    "batching.tokens_per_batch": 512,
    "training.lr": 5e-3,
    "training.warmup_steps": 20,
    "training.decay_steps": 60,
    "training.validate_every": 60,
    "training.precision": "fp32",
    "training.tensorboard": False,
}


def write_text(folder, name, pairs, translate):
    chosen = random.Random(name)
    lines = [" ".join(chosen.choices(WORDS, k=chosen.randint(2, 5))) for _ in range(pairs)]
    paths = folder / f"{name}.source", folder / f"{name}.target"
    for path, side in zip(paths, (lines, map(translate, lines)), strict=True):
        path.write_text("".join(f"{line}\n" for line in side))
    return paths


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("directions")
    text = {
        split: {("en", code): write_text(folder, f"{split}-{code}", pairs, make) for code, make in LANGUAGES.items()}
        for split, pairs in (("train", 300), ("valid", 10))
    }
    data = deepnmt.prepare(
        directions=text["train"],
        valid_directions=text["valid"],
        out=folder / "data",
        workers=1,
        vocab_size=300,
        min_frequency=1,
        keep=["overlap", "duplicate"],
    )
    return deepnmt.train("demo", data, folder / "run", overrides=SETTINGS, device="cpu")


def test_the_tag_decides_the_language(run):
    translator, lines = deepnmt.Translator(run.model), ["river bird", "tree stone horse"]
    found = {code: translator.for_languages("en", code).translate(lines) for code in LANGUAGES}
    assert all(line.isupper() for line in found["aa"])
    assert all(line.islower() and "e" not in line for line in found["bb"])
    with pytest.raises(InputError, match="the model has 2 target languages; choose one with --target-lang"):
        translator.translate(lines)


def test_validation_scores_each_direction_and_their_mean(run):
    last = [line for line in run.log if line["kind"] == "validation"][-1]
    assert last["bleu"] == pytest.approx((last["bleu/en-aa"] + last["bleu/en-bb"]) / 2)
    assert last["signatures"]["bleu"] == "mean of en-aa, en-bb"
    assert last["signatures"]["bleu/en-bb"].startswith("BLEU|nrefs:1")


def test_a_study_has_one_direction(run, tmp_path, capsys):
    data = str(run.folder.parent / "data")
    assert main(["reproduce", "table7", "--scale", "tiny", "--data", data, "--out", str(tmp_path / "STUDY")]) == 2
    assert "has several directions, and a study has one" in capsys.readouterr().err
    assert not (tmp_path / "STUDY").exists()


def validator(*directions, **changes):
    data = small.dataset()
    data.valid_directions = list(directions)
    recipe = Recipe(model=CONFIG_MODEL, training=replace(TRAINING, **{"validation_lines": None, **changes}))
    objective = Objective(Transformer(CONFIG_MODEL), recipe.training, CPU)
    asked = []

    def translate(model, languages, sources):
        asked.append((languages, sources))
        return sources

    return Validator(recipe, data, objective, ALONE, TextMetrics(translate, quick_scores)), asked


def test_a_limit_of_lines_counts_for_each_direction():
    right, wrong = Direction(("a", "b"), ["x y z w"] * 4, ["x y z w"] * 4), Direction(("a", "c"), ["u"] * 4, ["v"] * 4)
    validate, asked = validator(right, wrong, validation_lines=3)
    found = validate(None)
    assert asked == [(("a", "b"), ["x y z w"] * 3), (("a", "c"), ["u"] * 3)]
    assert found.scores["bleu/a-b"] == pytest.approx(100) and found.scores["bleu/a-c"] == 0
    assert found.scores["bleu"] == pytest.approx(50) == found.score("bleu")
    assert [sample[0] for sample in found.samples] == ["x y z w", "u", "x y z w"]


def test_one_direction_has_plain_scores():
    validate, _ = validator(Direction(("a", "b"), ["x y z w"] * 4, ["x y z w"] * 4))
    found = validate(None)
    assert set(found.scores) == set(found.signatures) == {"bleu", "chrf"}
    assert found.signatures["bleu"].endswith("|beam:1")
