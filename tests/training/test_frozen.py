"""Fine-tuning some of the weights: what is frozen stays as it was and costs no memory; adapters equal their sum."""

import shutil
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from ranks import run_ranks
from safetensors.torch import load_file, save_file
from small import ALONE, BATCHING, CONFIG_MODEL, TRAINING, corpus, dataset, flat, logged, open_job, run_to_end
from test_out_of_memory import replayed

from deepnmt.config import Recipe, load_recipe
from deepnmt.data.batching import BatchStream
from deepnmt.errors import InputError
from deepnmt.model.adapters import AdaptedLinear, add_adapters, merged
from deepnmt.model.parts import names_in
from deepnmt.model.storage import load_model, read_weights
from deepnmt.model.transformer import Transformer
from deepnmt.training.assembly import build_training, open_run
from deepnmt.training.averaging import average_weights, write_average
from deepnmt.training.config import LoraConfig
from deepnmt.training.distributed import World, join_world
from deepnmt.training.engine import EagerEngine, Objective
from deepnmt.training.graph_engine import GraphEngine
from deepnmt.training.optimizer import optimizer_tensors
from deepnmt.training.trainer import step, train, validate

SHORT = replace(TRAINING, max_steps=12, save_every=4, validate_every=4, keep_last=9, log_every=1)
LORA = replace(SHORT, lora=LoraConfig(rank=4, alpha=8.0))
FROZEN = replace(SHORT, freeze=("embeddings", "encoder.0"))
UNTRAINED = ("embeddings", "decoder", "encoder.0", "encoder.connection", "encoder.final_norm")
PACKED = replace(BATCHING, layout="packed", tokens_per_batch=128)


@pytest.fixture(scope="module")
def trained(made_once):
    """A MODEL folder."""

    def make(folder):
        run_to_end(folder, replace(TRAINING, max_steps=4, save_every=4))

    return made_once("frozen-start", make) / "checkpoints" / "step-00000004"


@contextmanager
def open_tuning(folder, config, start, world=ALONE, batching=BATCHING, model=CONFIG_MODEL, engine=None):
    recipe = Recipe(model=model, training=config, batching=batching)
    with open_run(recipe, dataset(), folder, world, resume=True, start=start) as (state, job):
        if engine is not None:
            job.engine = engine(job.engine.objective, world, state.splitter)
        yield state, job


def tune(folder, config, start, **changes):
    with open_tuning(folder, config, start, **changes) as (state, job):
        train(state, job)
    return state


def tune_rank(folder, config, start):
    """What every rank does."""
    with join_world("cpu", 120) as world:
        return tune(folder, config, start, world=world).step


def build(config, model=CONFIG_MODEL, device="cpu"):
    world = World(0, 1, torch.device(device))
    state, engine = build_training(Recipe(model=model, training=config, batching=PACKED), world, model)
    state.model.train()
    return state, engine


def fill_adapters(model):
    """B is zero at first, which hides mistakes."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, AdaptedLinear):
                up = module.adapter.up
                up.copy_(torch.empty(up.shape).normal_(std=0.3))


def updates(state, engine, count):
    stream = BatchStream({"train": corpus()}, PACKED, seed=1, tokens_per_update=256)
    for _ in range(count):
        _, norms = step(state, next(stream), engine)
    return norms


NAMES = [name for name, _ in Transformer(CONFIG_MODEL).named_parameters(remove_duplicate=False)]


@pytest.mark.parametrize(
    ("part", "beginnings"),
    [
        ("embeddings", ("source_embedding", "target_embedding")),
        ("encoder", ("encoder.",)),
        ("encoder.1", ("encoder.layers.1.",)),
        ("encoder.layers.1", ("encoder.layers.1.",)),
        ("encoder.0-1", ("encoder.layers.0.", "encoder.layers.1.")),
        ("encoder.0-1.attention", ("encoder.layers.0.attention.", "encoder.layers.1.attention.")),
        ("encoder.*.feed_forward", ("encoder.layers.0.feed_forward.", "encoder.layers.1.feed_forward.")),
        ("encoder.connection", ("encoder.connection.",)),
    ],
)
def test_a_part_is_the_beginning_of_a_name(part, beginnings):
    assert names_in([part], NAMES, "", "") == {name for name in NAMES if name.startswith(beginnings)}


@pytest.mark.parametrize(
    "part", ["encoder.2", "encoder.1-2", "encoder.1-0", "enc", "encoder.", "", "*.*.*.*.*.*", "..", "decoder.*.memory"]
)
def test_a_part_that_the_model_does_not_have_is_refused(part):
    with pytest.raises(InputError, match=r"training.freeze has .*, but the model has no parameter in"):
        build(replace(TRAINING, freeze=("encoder", part)))


def test_what_is_frozen_has_neither_gradient_nor_optimiser_state_nor_decay(tmp_path, trained):
    config = replace(FROZEN, optimizer="adamw", weight_decay=0.1, ema_decay=0.9, clip_norm=0.5)
    with open_tuning(tmp_path, config, trained) as (state, job):
        train(state, job)
        frozen = {name: p for name, p in state.model.named_parameters() if not p.requires_grad}
        assert frozen.keys() == names_in(config.freeze, [name for name, _ in state.model.named_parameters()], "", "")
        before, kept = (
            load_file(trained / "model.safetensors"),
            {name.partition("/")[2] for name in optimizer_tensors(state.model, state.optimizer)},
        )
        for name, parameter in state.model.named_parameters():
            assert (parameter.grad is None) == (name in frozen) == (name not in kept) == (name not in state.ema.shadow)
            assert torch.equal(parameter, before[name]) == (name in frozen), name
    after = read_weights(tmp_path / "checkpoints/step-00000012")
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in frozen)


@pytest.mark.parametrize("engine", [EagerEngine, partial(GraphEngine, record=replayed)])
def test_gradients_of_the_rest_are_those_of_a_model_without_frozen_parts(engine):
    """And their norm is over these alone."""
    config = replace(TRAINING, compile=False, clip_norm=0.1)
    (whole, plain), (part, _) = (
        build(config),
        build(replace(config, freeze=("embeddings", "decoder", "encoder.0.attention"))),
    )
    norms, partial_norms = updates(whole, plain, 1), updates(part, engine(part_objective(part, config), ALONE), 1)
    expected = dict(zip(norms.names, norms.norms.tolist(), strict=True))
    assert partial_norms.names == [name for name, p in part.model.named_parameters() if p.requires_grad]
    assert partial_norms.norms.tolist() == pytest.approx([expected[name] for name in partial_norms.names], rel=1e-4)
    assert float(partial_norms.total) < float(norms.total)


def part_objective(state, config):
    return Objective(state.model, config, ALONE.device)


@pytest.mark.parametrize("frozen", [(), ("embeddings",), ("embeddings", "encoder", "decoder")])
def test_output_table_and_bias_are_trained_alone_or_not_at_all(frozen):
    model = replace(CONFIG_MODEL, tie_output=False, output_bias=True, dropout=0.0)
    (whole, plain), (part, engine) = build(TRAINING, model), build(replace(TRAINING, freeze=frozen), model)
    for state, made in ((whole, plain), (part, engine)):
        updates(state, made, 1)
    torch.testing.assert_close(part.model.output.weight.grad, whole.model.output.weight.grad)
    torch.testing.assert_close(part.model.output_bias.grad, whole.model.output_bias.grad)


def test_adapters_change_nothing_at_first(trained):
    torch.manual_seed(0)
    source = torch.randint(4, 40, (3, 7))
    model = load_model(trained)
    expected = model(source, source)
    add_adapters(model, ("encoder", "decoder"), rank=4, alpha=8.0)
    assert torch.equal(model(source, source), expected)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_merged_is_unmerged_to_the_last_bit(precision, tmp_path):
    state, _ = build(replace(LORA, precision=precision))
    fill_adapters(state.model)
    state.model.eval()
    source, before = torch.randint(4, 40, (3, 7)), flat(state.model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        apart = state.model(source, source)
        with merged(state.model):
            together = state.model(source, source)
            assert not torch.equal(flat(state.model), before)
            assert all(p.requires_grad for p in state.model.parameters())
    assert torch.equal(apart, together)
    assert torch.equal(flat(state.model), before)
    assert {name.rpartition(".")[2] for name, p in state.model.named_parameters() if p.requires_grad} == {"down", "up"}


@pytest.mark.parametrize("engine", [EagerEngine, partial(GraphEngine, record=replayed)])
def test_gradients_of_adapters_are_those_that_autograd_finds_through_the_sum(engine):
    config = replace(LORA, compile=False)
    state, _ = build(config, replace(CONFIG_MODEL, dropout=0.0))
    plain, made = build(config, replace(CONFIG_MODEL, dropout=0.0))
    for each in (state, plain):
        torch.manual_seed(3)
        fill_adapters(each.model)
    for module in plain.model.modules():
        if isinstance(module, AdaptedLinear):
            module.forward = partial(through_the_sum, module)
    assert updates(plain, made, 3).names == updates(state, engine(part_objective(state, config), ALONE), 3).names
    for (name, found), expected in zip(state.model.named_parameters(), plain.model.parameters(), strict=True):
        assert (found.grad is None) == (not name.endswith((".down", ".up")))
        if found.grad is not None:
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("skipping", ["layer_dropout", "sublayer_dropout"])
def test_an_update_that_skips_all_trained_layers_is_made(skipping):
    model = replace(CONFIG_MODEL, encoder=replace(CONFIG_MODEL.encoder, **{skipping: 0.9}))
    for config in (replace(SHORT, freeze=UNTRAINED), replace(LORA, lora=replace(LORA.lora, parts=("encoder.1",)))):
        state, engine = build(config, model)
        updates(state, engine, 4)
        assert state.step == 4


def through_the_sum(linear, x):
    own = linear.adapter
    return torch.nn.functional.linear(x, linear.weight + own.scale * own.up @ own.down, linear.bias)


@pytest.mark.parametrize(
    "config",
    [
        replace(FROZEN, ema_decay=0.9, activation_checkpointing=True),
        replace(LORA, ema_decay=0.9, precision="bf16"),
        replace(FROZEN, optimizer="muon"),
    ],
    ids=["freeze-ema", "lora-ema-bf16", "freeze-muon"],
)
def test_a_resumed_run_ends_as_if_it_had_not_been_stopped(tmp_path, trained, config):
    for folder, stops in (("once", (12,)), ("twice", (6, 12))):
        for stop in stops:
            tune(tmp_path / folder, replace(config, max_steps=stop), trained, batching=PACKED)
    once, twice = (tmp_path / folder / "checkpoints/step-00000012" for folder in ("once", "twice"))
    for path in once.glob("*.safetensors"):
        left, right = load_file(path), load_file(twice / path.name)
        assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left), path.name
    losses = logged(tmp_path / "once", "loss")
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "config",
    [FROZEN, LORA, replace(FROZEN, parallel="fsdp", ema_decay=0.9)],
    ids=["freeze", "lora", "freeze-sharded"],
)
def test_two_ranks_train_as_one_does(tmp_path, trained, config):
    config = replace(config, max_steps=8, tokens_per_update=256)
    tune(tmp_path / "1", config, trained)
    assert run_ranks(2, tune_rank, tmp_path / "2", config, trained) == [8, 8]
    for kind in ("train", "validation"):
        alone, together = (logged(tmp_path / ranks, "loss", kind) for ranks in ("1", "2"))
        assert together == pytest.approx(alone, abs=1e-5)
    paths = [tmp_path / ranks / "checkpoints/step-00000008" for ranks in ("1", "2")]
    alone, together = (sorted(file.name for file in path.iterdir()) for path in paths)
    assert alone == together
    alone, together = (load_file(path / "optimizer.safetensors") for path in paths)
    assert alone.keys() == together.keys()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("config", [FROZEN, LORA], ids=["freeze", "lora"])
def test_a_gpu_trains_as_plain_torch_does(config, compiled, checkpointing):
    torch._dynamo.reset()
    config = replace(config, precision="fp32", compile=compiled, activation_checkpointing=checkpointing)
    found = {}
    for device in ("cpu", "cuda"):
        state, engine = build(config, replace(CONFIG_MODEL, dropout=0.0), device)
        torch.manual_seed(3)
        fill_adapters(state.model)
        found[device] = updates(state, engine, 3), flat(state.model).cpu()
    (norms, weights), (plain_norms, plain_weights) = found["cuda"], found["cpu"]
    assert norms.names == plain_norms.names
    torch.testing.assert_close(norms.norms.cpu(), plain_norms.norms, rtol=2e-2, atol=1e-5)
    torch.testing.assert_close(weights, plain_weights, rtol=0, atol=2 * config.lr)


def test_a_checkpoint_is_the_model_that_was_validated_and_its_average_that_of_the_sums(tmp_path, trained):
    state = tune(tmp_path, LORA, trained)
    paths = [tmp_path / f"checkpoints/step-{number:08d}" for number in (8, 12)]
    assert {name: w.shape for name, w in read_weights(paths[1]).items()} == {
        name: w.shape for name, w in read_weights(trained).items()
    }
    base = load_file(trained / "model.safetensors")
    assert all(torch.equal(load_file(path / "model.safetensors")[name], base[name]) for path in paths for name in base)
    model = load_model(paths[1])
    state.model.eval()
    source = torch.randint(4, 40, (3, 7))
    assert torch.equal(model(source, source), state.model(source, source))
    base = shutil.copytree(trained, tmp_path / "base")
    shutil.copy(paths[1] / "adapter.safetensors", base)
    assert torch.equal(load_model(base)(source, source), model(source, source))
    name = "encoder.layers.0.attention.input.weight"
    sums = [read_weights(path)[name].double() for path in paths]
    assert torch.equal(average_weights(paths)[name], ((sums[0] + sums[1]) / 2).float())
    write_average(tmp_path, paths[1:], tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").glob("*.safetensors")) == ["model.safetensors"]
    assert torch.equal(load_model(tmp_path / "model")(source, source), model(source, source))


def test_an_adapter_beside_other_weights_is_refused(tmp_path, trained):
    tune(tmp_path, LORA, trained)
    path = tmp_path / "checkpoints/step-00000012/adapter.safetensors"
    adapter = load_file(path)
    wide = {name: torch.cat([w, w]) if name.endswith(".up") else w for name, w in adapter.items()}
    half = {name: w for name, w in adapter.items() if not name.endswith(".up")}
    other = {name.replace("encoder", "coder"): w for name, w in adapter.items()}
    for wrong in (wide, half, other):
        save_file(wrong, path)
        with pytest.raises(InputError, match=r"adapter.safetensors has an adapter of .* that does not fit the model"):
            load_model(path.parent)


def test_validation_is_of_the_sum_and_leaves_the_weights_alone(tmp_path, trained):
    with open_tuning(tmp_path, LORA, trained) as (state, job):
        fill_adapters(state.model)
        before, seen = flat(state.model), []
        check = job.validate

        def validated(model):
            seen.append([module.is_merged for module in model.modules() if isinstance(module, AdaptedLinear)])
            return check(model)

        job.validate = validated
        validate(state, job)
        assert seen == [[True] * len(seen[0])]
        assert torch.equal(flat(state.model), before)
        state.model.eval()
        with torch.no_grad():
            apart = check(state.model)
        assert state.score == -apart.loss or apart.loss == pytest.approx(-state.score, rel=1e-6)


def test_the_run_says_how_much_is_trained(tmp_path, trained, capsys):
    with open_tuning(tmp_path / "lora", LORA, trained) as (state, _):
        trained_count = sum(p.numel() for p in state.model.parameters() if p.requires_grad)
        total = sum(p.numel() for p in state.model.parameters())
    assert f"training: {trained_count:,} of {total:,} parameters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(TRAINING, freeze=("embeddings", "encoder", "decoder")), "training.freeze names every part"),
        (
            replace(TRAINING, lora=LoraConfig(rank=16)),
            "training.lora.rank = 16 must be below the rank of decoder.layers.0.attention.input",
        ),
        (
            replace(TRAINING, lora=LoraConfig(rank=2, parts=("embeddings",))),
            "the model has no projection in embeddings",
        ),
        (
            replace(TRAINING, optimizer="muon", freeze=(*UNTRAINED, "encoder.*.*.norm", "encoder.*.*.*.bias")),
            'leaves only matrices to train; use optimizer = "adamw"',
        ),
    ],
    ids=["all", "rank", "embeddings", "muon"],
)
def test_a_model_that_does_not_fit_the_settings_is_refused(tmp_path, trained, config, message):
    with pytest.raises(InputError, match=message), open_tuning(tmp_path / "run", config, trained):
        pass
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("config", [FROZEN, LORA], ids=["freeze", "lora"])
def test_random_weights_are_not_frozen(tmp_path, config):
    with (
        pytest.raises(InputError, match="is for fine-tuning a trained model; name it with --from MODEL"),
        open_job(tmp_path / "run", config),
    ):
        pass
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.lora.rank=0"], "lora.rank = 0 must be at least 1"),
        (["training.lora.alpha=-1"], "lora.alpha = -1.0 must be above 0 and finite"),
        (["training.lora.parts=[]"], "lora.parts = [] leaves nothing to train"),
        (["training.lora.dropout=0.1"], "unknown setting training.lora.dropout"),
        (
            ["training.lora.rank=4", 'training.freeze=["encoder"]'],
            "lora freezes all other weights, so freeze must be empty",
        ),
        (
            ["training.lora.rank=4", "training.parallel=fsdp"],
            'lora needs whole matrices, which parallel = "fsdp" divides',
        ),
        (["training.lora.rank=4", "training.grow=[10,20]", "training.grow_at=[9]"], "does not work with lora"),
        (['training.freeze=["encoder"]', "training.grow=[10,20]", "training.grow_at=[9]"], "does not work with freeze"),
    ],
    ids=lambda value: value[-1][:40] if isinstance(value, list) else "",
)
def test_refusals(overrides, message):
    with pytest.raises(InputError) as refused:
        load_recipe("en-de-pre-20l", overrides)
    assert message in str(refused.value)
