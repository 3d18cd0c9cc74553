"""The small parts: optimiser step, loss scale, memory plan, diagnosis, the run's folder, the display."""

import io
import math
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import ALONE, CONFIG_MODEL, TRAINING

from deepnmt.config import Recipe, load_recipe
from deepnmt.errors import InputError, RunError
from deepnmt.files import write_text
from deepnmt.model.transformer import Transformer
from deepnmt.settings import from_table, to_table, to_toml
from deepnmt.training.config import TrainingConfig
from deepnmt.training.diagnosis import STRIKES, Diagnosis, TrainingError, depth_ratio
from deepnmt.training.display import Display, describe
from deepnmt.training.folder import check_folder, check_recipe
from deepnmt.training.memory import largest_share
from deepnmt.training.mixed_precision import LossScale, product_type
from deepnmt.training.optimizer import apply_update, build_optimizer, gradient_norms, layer_of
from deepnmt.training.verdict import clipping_divisor

FALSE, ZERO, ONE = torch.tensor(False), torch.tensor(0.0), torch.tensor(1.0)


def two_models():
    torch.manual_seed(0)
    first, second = Transformer(CONFIG_MODEL), Transformer(CONFIG_MODEL)
    second.load_state_dict(first.state_dict())
    return first, second


def give_gradients(*models):
    for model in models:
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("clip_norm", [None, 0.5, 1e9])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_step_equals_torchs_own_clipping_and_adam(optimizer, clip_norm, scale):
    config = TrainingConfig(max_steps=9, optimizer=optimizer, clip_norm=clip_norm, weight_decay=0.01)
    mine, plain = two_models()
    ours = build_optimizer(mine, config, ALONE)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    matrices, others = ([p for p in plain.parameters() if (p.ndim == 2) is wanted] for wanted in (True, False))
    theirs = kind([{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}], lr=1e-3)
    theirs.param_groups[0]["betas"] = theirs.param_groups[1]["betas"] = config.betas
    for _ in range(3):
        give_gradients(mine, plain)
        for parameter in mine.parameters():
            parameter.grad *= scale
        norms = gradient_norms(mine, torch.tensor(scale))
        apply_update(ours, 1e-3, clipping_divisor(norms.total, clip_norm, torch.tensor(scale)), ZERO)
        total = torch.nn.utils.clip_grad_norm_(plain.parameters(), clip_norm or math.inf)
        torch.testing.assert_close(norms.total, total)
        theirs.step()
    for found, wanted in zip(mine.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


def test_bad_gradient_changes_neither_parameters_nor_the_optimisers_state():
    model, untouched = two_models()
    optimizer = build_optimizer(model, TRAINING, ALONE)
    give_gradients(model)
    model.output_weight.grad[0, 0] = math.nan
    norms = gradient_norms(model, ONE)
    assert not norms.total.isfinite()
    apply_update(optimizer, 1.0, ONE, ONE)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), untouched.parameters(), strict=True))
    assert all(not state["exp_avg"].any() and state["step"] == 0 for state in optimizer.state.values())


def test_norms_by_layer_add_up_to_the_total():
    model, _ = two_models()
    give_gradients(model)
    norms = gradient_norms(model, ONE)
    layers = norms.by_layer()
    assert {"encoder.layers.0", "encoder.layers.1", "decoder.layers.0", "encoder.connection"} < layers.keys()
    assert math.sqrt(sum(norm**2 for norm in layers.values())) == pytest.approx(float(norms.total))
    assert layer_of("encoder.layers.11.ffn.input.weight") == "encoder.layers.11"


def test_loss_scale_halves_on_overflow_grows_after_calm_and_gives_up_at_the_bottom():
    scale = LossScale(dynamic=True, device=torch.device("cpu"))
    start, overflow = float(scale.factor), torch.tensor(True)
    scale.update(overflow)
    assert float(scale.factor) == start / 2
    for _ in range(int(LossScale.CALM_STEPS)):
        scale.update(FALSE)
    assert float(scale.factor) == start
    assert not scale.hopeless(overflow)
    other = LossScale(dynamic=True, device=torch.device("cpu"))
    other.load(scale.state())
    assert other.state() == scale.state()
    for _ in range(40):
        scale.update(overflow)
    assert scale.hopeless(overflow) and not scale.hopeless(FALSE)


def test_without_loss_scaling_an_overflow_is_the_end():
    scale = LossScale(dynamic=False, device=torch.device("cpu"))
    assert scale.hopeless(torch.tensor(True))
    scale.update(torch.tensor(True))
    assert float(scale.factor) == 1.0


def test_precision_is_chosen_for_the_device():
    assert product_type("auto", torch.device("cpu")) is torch.float32
    assert product_type("bf16", torch.device("cpu")) is torch.bfloat16


@given(st.integers(1, 2**18), st.integers(0, 2**18))
@settings(max_examples=200, deadline=None)
def test_the_memory_plan_is_the_largest_even_share_that_fits(whole, capacity):
    asked = []

    def fits(tokens):
        asked.append(tokens)
        return tokens <= capacity

    share = largest_share(whole, fits)
    assert len(asked) <= math.log2(whole / 128 + 1) + 2 and max(asked) <= max(whole, 128)
    if share is None:
        assert capacity < min(128, whole)
        return
    assert 0 < share <= capacity and (share % 128 == 0 or share == whole)
    passes = max(1, round(whole / share))  # as the stream counts them
    assert abs(passes * share - whole) <= max(128 * passes, share / 2)
    if capacity >= whole:
        assert share == whole
    elif capacity >= 4096:
        assert share > capacity / 2 - 256, "no smaller than it must be"


DIAGNOSIS = Diagnosis(replace(TRAINING, warmup_steps=4), guessing_nll=5.0, is_post_norm=True, guessing_steps=100)
HEALTHY = {"encoder.layers.0": 0.5, "encoder.layers.1": 0.5, "decoder.layers.0": 1.0, "source_embedding": 0.1}
VANISHING = {**HEALTHY, "encoder.layers.0": 1e-9}


def strikes(step, nll, layers, rounds):
    count = 0
    for _ in range(rounds):
        count = DIAGNOSIS.strikes(step, nll, layers, count)
    return count


def test_vanishing_gradient_is_named_with_what_to_try():
    with pytest.raises(TrainingError) as failure:
        strikes(50, 5.1, VANISHING, STRIKES)
    message = str(failure.value)
    assert "not learning at step 50" in message
    assert "the gradient reaching the lowest encoder layer is 1e-09 of the top's" in message
    assert 'try model.norm = "pre", model.encoder.connection = "dlcl"' in message
    assert isinstance(failure.value, RunError)


def test_guessing_is_named_only_after_a_while():
    assert strikes(99, 5.1, HEALTHY, 100) == 0
    with pytest.raises(TrainingError, match=r"guessing words by frequency \(5.00 nats\)"):
        strikes(100, 5.1, HEALTHY, STRIKES)


def test_decoder_that_learns_without_its_source_is_named_after_the_warm_up():
    """It does better than guessing, as a language model does; the gradient shows what the loss does not."""
    assert strikes(3, 4.0, VANISHING, 100) == 0
    with pytest.raises(TrainingError, match=r"is 1e-09 of the top's, and the decoder learns without the source; try"):
        strikes(4, 4.0, VANISHING, STRIKES)


def test_lowest_layer_that_shortcuts_pass_by_is_no_sign():
    """DLCL may learn to do so: all but the lowest layers of the demo's model have next to no gradient."""
    with_shortcuts = replace(DIAGNOSIS, has_shortcuts=True)
    assert with_shortcuts.strikes(10_000, 4.0, VANISHING, STRIKES - 1) == 0
    nothing = {name: norm * (1e-6 if "encoder.layers" in name else 1) for name, norm in HEALTHY.items()}
    with pytest.raises(TrainingError, match="the gradient reaching any encoder layer is 5e-07 of the top's"):
        with_shortcuts.strikes(10_000, 4.0, nothing, STRIKES - 1)


@pytest.mark.parametrize("nll", [4.0, 5.1])
@pytest.mark.parametrize(
    ("top", "lowest", "is_dead"),
    [(0.38, 1.1e-2, False), (0.37, 1.1e-2, False), (0.46, 1.4e-5, True), (0.53, 4.9e-7, True)],
    ids=["post-norm, 6 layers", "12 layers", "20 layers", "30 layers"],
)
def test_thresholds_part_what_was_seen_to_learn_from_what_was_not(nll, top, lowest, is_dead):
    """Norms of post-norm models of width 64 after 80 to 100 updates at the deep recipes' rate."""
    layers = {"encoder.layers.0": lowest, "encoder.layers.1": 0.1, "decoder.layers.0": 0.3, "decoder.layers.1": top}
    assert (DIAGNOSIS.strikes(50, nll, layers, 0) > 0) is is_dead


def test_learning_is_left_alone_and_one_good_sign_clears_the_record():
    assert strikes(10_000, 4.0, HEALTHY, 100) == 0
    assert strikes(10_000, 5.1, HEALTHY, STRIKES - 1) == STRIKES - 1
    assert DIAGNOSIS.strikes(10_000, 4.0, HEALTHY, STRIKES - 1) == 0


def test_depth_ratio_spans_the_whole_way_of_the_gradient():
    assert depth_ratio(HEALTHY) == 0.5
    assert depth_ratio({"source_embedding": 1.0}) is None


@pytest.mark.parametrize("skipped", ["encoder.layers.0", "decoder.layers.1"])
def test_a_skipped_layer_has_no_gradient_and_is_no_sign(skipped):
    assert depth_ratio(HEALTHY | {"decoder.layers.1": 1.0, skipped: 0.0}) == 0.5


RECIPE = {
    "model": {"source_vocab_size": 9, "target_vocab_size": 9, "encoder": {"connection": {"kind": "dlcl"}}},
    "training": {"max_steps": 5, "betas": [0.9, 0.98], "eps": 1e-8, "schedule": "cosine", "warmup_steps": 1},
    "batching": {"weights": {"back-translated": 0.5, "wörter": 2.0}},
}


def test_recipe_survives_being_written_and_read(tmp_path):
    recipe = from_table(Recipe, RECIPE)
    write_text(tmp_path / "recipe.toml", to_toml(to_table(recipe)))
    assert from_table(Recipe, tomllib.loads((tmp_path / "recipe.toml").read_text())) == recipe
    assert tomllib.loads(to_toml(RECIPE)) == RECIPE


def test_changed_setting_is_named_and_harmless_ones_may_change(tmp_path):
    before = from_table(Recipe, RECIPE)
    harmless = load_recipe(before, ["training.max_steps=9", "training.activation_checkpointing=true"])
    check_recipe(tmp_path, before, harmless)
    with pytest.raises(InputError, match=r"was started with training.lr = 0.0007, but now training.lr = 0.5"):
        check_recipe(tmp_path, before, load_recipe(harmless, ["training.lr=0.5"]))
    with pytest.raises(InputError, match=r"training.clip_norm unset, but now training.clip_norm = 1.0"):
        check_recipe(tmp_path, before, load_recipe(before, ["training.clip_norm=1.0"]))


def test_folders_that_must_not_be_overwritten_are_refused(tmp_path):
    assert not check_folder(tmp_path / "new", resume=False)
    assert not check_folder(tmp_path / "new", resume=True)
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(InputError, match="not empty and contains no run"):
        check_folder(tmp_path, resume=True)
    write_text(tmp_path / "recipe.toml", to_toml(RECIPE))
    assert check_folder(tmp_path, resume=True)
    with pytest.raises(InputError, match="already contains a run; resume it with `resume=True`"):
        check_folder(tmp_path, resume=False)
    with pytest.raises(InputError, match="is a file"):
        check_folder(tmp_path / "thesis.txt", resume=False)


LINE = {"kind": "train", "step": 1200, "epoch": 3, "loss": 4.2, "nll": 3.1, "ppl": 22.2, "lr": 5e-4, "grad_norm": 0.8}
LINE |= {"tokens": 10, "tokens_per_second": 12345.6, "memory_gib": None, "layers": {}}


def test_plain_lines_say_what_matters():
    text = describe(LINE, 50_000, None)
    assert text == ("step 1,200/50,000  epoch 3  loss 4.200  ppl 22.20  lr 5.00e-04  gradient 0.80  12,346 tokens/s")
    text = describe(
        {"kind": "validation", "step": 5, "loss": 1.0, "nll": 1.0, "ppl": 2.7, "bleu": 30.123, "is_best": True}, 9, None
    )
    assert text == "step 5/9  validation: loss 1.000  ppl 2.70  bleu 30.12  (best so far)"


def test_display_estimates_the_time_left_and_the_live_one_draws_a_bar(capsys, monkeypatch):
    shown = Display(step=1000, max_steps=2000)
    shown.write(LINE)
    assert "eta 0:00:0" in capsys.readouterr().err
    terminal = io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    live = Display(step=0, max_steps=2000)
    live.write(LINE)
    live.bar.refresh()
    live.close()
    assert "loss 4.200" in terminal.getvalue()


def test_the_time_left_forgets_what_was_compiled_before_the_first_line(capsys, monkeypatch):
    now = iter([0.0, 100.0, 100.0, 100.0, 101.0, 101.0])
    monkeypatch.setattr("deepnmt.training.display.time.monotonic", lambda: next(now))
    shown = Display(step=0, max_steps=1000)
    shown.write(LINE | {"step": 100})
    assert "eta 0:15:00" in capsys.readouterr().err
    shown.write(LINE | {"step": 200})
    assert "eta 0:00:08" in capsys.readouterr().err


def test_a_slow_run_shows_its_steps_before_the_first_line(capsys, monkeypatch):
    now = iter([0.0, 9.0, 30.0, 30.0, 30.0, 31.0])
    monkeypatch.setattr("deepnmt.training.display.time.monotonic", lambda: next(now))
    shown = Display(step=4, max_steps=1000)
    for step in (5, 6, 7):
        shown.tick(step)
    assert capsys.readouterr().err == "step 6/1,000  15.0 s per step  eta 4:08:30\n"


def test_wandb_that_is_not_installed_is_named(tmp_path, monkeypatch):
    import sys

    from deepnmt.training.curves import WeightsAndBiases

    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match="wandb is not installed: pip install wandb"):
        WeightsAndBiases(tmp_path, "project", {})


def test_every_setting_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    missing = [field.name for field in fields(TrainingConfig) if f"`{field.name}`" not in text]
    assert not missing
