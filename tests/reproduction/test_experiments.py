"""The experiments as data: what they name exists, and in small every arm gets the same."""

import tarfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from pytest import approx, mark, raises

from deepnmt.config import load_recipe
from deepnmt.errors import InputError
from deepnmt.model.connections import CONNECTIONS
from deepnmt.model.sublayers import SUBLAYERS
from deepnmt.reproduction.experiment import EXPERIMENTS
from deepnmt.reproduction.runs import Budget, Plan, choose, count_parameters, estimate
from deepnmt.reproduction.scales import PAPER_DIM, SCALES
from deepnmt.settings import to_table

SMALL = [name for name, scale in SCALES.items() if not scale.is_full]
PAPER = {name: experiment for name, experiment in EXPERIMENTS.items() if name != "two"}


@cache
def planned(name, scale, seeds=1, budget=None, settings=()):
    budget = budget or Budget(SCALES[scale].tokens, None)
    return Plan(experiments={name: PAPER[name]}, scale=SCALES[scale], seeds=seeds, settings=settings).runs(budget)


@mark.parametrize("name", PAPER)
def test_in_full_the_recipes_are_the_papers(name):
    for run in planned(name, "full"):
        written = to_table(load_recipe(run.recipe_name, [o for o in run.overrides if o.startswith("model.")]))
        now = to_table(run.recipe)
        assert now["model"] == written["model"]
        for setting in ("tokens_per_update", "max_steps", "lr", "warmup_steps", "betas"):
            if not any(f"training.{setting}=" in override for override in run.overrides):
                assert now["training"][setting] == written["training"][setting]


@mark.parametrize("scale", SMALL)
@mark.parametrize("name", PAPER)
def test_in_small_every_arm_sees_the_same_tokens(name, scale):
    if PAPER[name].equal == "time" or not PAPER[name].trains:
        return
    seen = {run.recipe.training.tokens_per_update * run.recipe.training.max_steps for run in planned(name, scale)}
    most = max(run.recipe.training.tokens_per_update for run in planned(name, scale))
    assert max(seen) - min(seen) <= most


@mark.parametrize("scale", SMALL)
@mark.parametrize(
    "name", [n for n, e in PAPER.items() if n not in ("table7", "beyond-rates") and not e.own_setting and e.trains]
)
def test_in_small_no_arm_is_tuned_more_than_another(name, scale):
    settings = set()
    for run in planned(name, scale):
        model, training = to_table(run.recipe.model), to_table(run.recipe.training)
        dropouts = tuple(model[kind] for kind in ("dropout", "attention_dropout", "ffn_dropout"))
        settings.add((repr(training), dropouts))
    assert len(settings) == 1


def test_a_sweep_has_every_arm_at_every_rate_and_nothing_else_differs():
    runs, rates = planned("beyond-rates", "multi30k"), (5e-4, 1e-3, 2e-3)
    own = {arm.label for arm in PAPER["beyond"].arms if arm.depth == 18}
    assert {run.uses[0][1] for run in runs} == {f"{label}, {rate:g}" for label in own for rate in rates}
    for run in runs:
        rate = run.uses[0][1].split(", ")[1]
        assert run.recipe.training.lr == float(rate)
        assert run.recipe.model.encoder.num_layers == 18
    assert len({repr(to_table(replace(run.recipe.training, lr=1.0))) for run in runs}) == 1


def test_table_7_has_two_settings_in_the_papers_ratio():
    full = {run.uses[0][1]: run.recipe.training for run in planned("table7", "full")}
    small = {run.uses[0][1]: run.recipe.training for run in planned("table7", "multi30k")}
    for trainings in (full, small):
        base, deep = trainings["pre, base"], trainings["pre, deep"]
        assert deep.tokens_per_update == 2 * base.tokens_per_update
        assert deep.max_steps == approx(base.max_steps / 2, rel=0.01)
        assert deep.lr == approx(2 * base.lr)
        assert deep.warmup_steps == approx(2 * base.warmup_steps, rel=0.01)


def test_a_batch_never_holds_more_than_an_update():
    for scale in SMALL:
        for name in PAPER:
            for run in planned(name, scale):
                assert run.recipe.batching.tokens_per_batch <= run.recipe.training.tokens_per_update


@mark.parametrize("scale", SMALL)
def test_big_stays_twice_as_wide_as_base(scale):
    models = {run.uses[0][1]: run.recipe.model for run in planned("table1", scale)}
    base, big = models["pre Base"], models["pre Big"]
    assert (big.encoder.dim, big.encoder.ffn_dim) == (2 * base.encoder.dim, 2 * base.encoder.ffn_dim)
    assert big.encoder.num_layers == base.encoder.num_layers


def test_the_papers_parameter_counts_are_those_of_the_recipes():
    for name, experiment in PAPER.items():
        if name == "multi30k-tiny":
            continue
        for arm in SCALES["full"].arms(experiment):
            if "parameters" in arm.paper:
                ours = count_parameters(load_recipe(arm.recipe, experiment.overrides_of(arm)).model) / 1e6
                assert ours == approx(arm.paper["parameters"], rel=0.02), (name, arm.label)
    assert load_recipe("en-de-pre-base").model.encoder.dim == PAPER_DIM


def test_the_tiny_models_have_as_many_parameters_as_the_published_one():
    vocabulary = ["model.source_vocab_size=10000", "model.target_vocab_size=10000"]
    tiny = PAPER["multi30k-tiny"]
    for arm in tiny.arms:
        ours = count_parameters(load_recipe(arm.recipe, [*tiny.overrides_of(arm), *vocabulary]).model)
        assert ours == approx(2.6e6, rel=0.1), arm.label


def test_arms_of_several_experiments_that_are_the_same_are_one_run():
    experiments = {name: PAPER[name] for name in ("table1", "figure4", "trainability")}
    plan = Plan(experiments=experiments, scale=SCALES["multi30k"], seeds=1)
    runs = plan.runs(Budget(SCALES["multi30k"].tokens))
    shared = [run for run in runs if len(run.uses) == 3]
    assert [label for _, label in shared[0].uses] == ["pre Base", "Transformer 6L", "pre 6L"]
    assert len(runs) < sum(len(SCALES["multi30k"].arms(e)) for e in experiments.values())


def test_an_experiment_is_known_by_its_other_places_in_the_paper():
    assert list(choose(["appendix-a", "figure2", "trainability"])) == ["trainability", "table2"]


def test_seeds_are_done_one_after_the_other_and_differ():
    runs = planned("table5", "multi30k", seeds=2)
    assert [run.seed for run in runs] == [1, 1, 1, 2, 2, 2]
    assert len({run.name for run in runs}) == 6
    assert runs[3].recipe.training.seed == 2


def test_what_does_not_train_needs_one_seed_and_keeps_the_papers_sizes():
    runs = planned("figure5", "multi30k", seeds=3)
    assert len(runs) == len(PAPER["figure5"].arms)
    assert runs[0].recipe.model.encoder.dim == 512


def test_runs_of_other_settings_have_other_names_and_defaults_none():
    """All that differs is in the name's digest: also what has no fields, like the kind of a connection."""
    digests = [run.name.rsplit("-", 1)[1] for run in planned("table2", "multi30k", seeds=2)]
    assert len(set(digests)) == len(digests) == 2 * len(PAPER["table2"].arms)
    default = planned("table2", "multi30k", settings=("training.momentum=0.95",))
    assert [run.name for run in default] == [run.name for run in planned("table2", "multi30k")]
    changed = planned("table2", "multi30k", settings=("training.momentum=0.9",))
    assert not {run.name for run in changed} & {run.name for run in default}


def test_settings_of_the_call_are_for_every_arm():
    assert {run.recipe.training.lr for run in planned("table1", "tiny", settings=("training.lr=0.5",))} == {0.5}


def budget(name, scale, minutes=None, tokens=None):
    return Plan(experiments={name: PAPER[name]}, scale=SCALES[scale], seeds=1).budget("cuda", tokens, minutes)


def test_minutes_give_every_run_as_many_tokens_as_fit():
    whole, less = budget("table1", "europarl", None), budget("table1", "europarl", 20)
    assert whole.tokens == SCALES["europarl"].tokens
    assert less.tokens < whole.tokens
    runs = planned("table1", "europarl", budget=less)
    expected = sum(estimate(run, "cuda").training + estimate(run, "cuda").aside for run in runs)
    assert 0.8 * 20 * 60 < expected < 20 * 60
    assert budget("table1", "europarl", 10_000).tokens == whole.tokens


def test_a_cpu_with_more_cores_is_expected_to_be_faster(monkeypatch):
    run, seconds = planned("table1", "multi30k")[0], {}
    for cores in (1, 8):
        monkeypatch.setattr("deepnmt.reproduction.runs.available_cores", lambda cores=cores: cores)
        seconds[cores] = estimate(run, "cpu").training
    assert 4 * seconds[8] < seconds[1] < 8 * seconds[8]
    assert estimate(run, "cuda").training < seconds[8]


def test_tokens_are_what_every_run_gets():
    given = budget("table1", "multi30k", tokens=8192 * 500)
    assert {run.recipe.training.max_steps for run in planned("table1", "multi30k", budget=given)} == {500}


def test_equal_time_is_shared_out():
    given = budget("headline", "europarl", 60)
    assert 0.7 * 1200 < given.seconds < 1200
    runs = planned("headline", "europarl", budget=given)
    assert all(run.seconds == given.seconds for run in runs)
    expected = sum(estimate(run, "cuda").training + estimate(run, "cuda").aside for run in runs)
    assert 0.85 * 3600 < expected < 3600


def test_refusals():
    for call, message in [
        (lambda: budget("table1", "full", 20), "--minutes is for the small scales"),
        (lambda: budget("headline", "europarl", None), "set the total with --minutes"),
        (lambda: budget("table1", "europarl", 1), "minutes besides training, more than --minutes 1"),
        (lambda: budget("table1", "europarl", 4), "too short for 10 useful runs; give at least"),
        (lambda: budget("table1", "full", tokens=9), "--tokens is for the small scales"),
        (lambda: budget("headline", "europarl", tokens=9), "headline gives every arm the same time"),
        (lambda: choose(["table11"]), "unknown experiment 'table11'; did you mean table1?"),
    ]:
        with raises(InputError, match=message):
            call()


def test_beyond_has_every_scheme_since_the_paper_at_two_depths():
    arms = [load_recipe(arm.recipe, PAPER["beyond"].overrides_of(arm)).model for arm in PAPER["beyond"].arms]
    before = {
        "dense",
        "average",
        "transparent",
        "fusion",
        "coordinated",
        "aggregated",
    }  # figure 2 of the paper, and what it cites
    for depth in (18, 30):
        models = [model for model in arms if model.encoder.num_layers == depth]
        assert {model.encoder.connection.kind for model in models} >= CONNECTIONS.keys() - before
        assert {model.sublayer_of(stack).kind for model in models for stack in (model.encoder, model.decoder)} == set(
            SUBLAYERS
        )
        assert {model.norm_kind for model in models} == {"layer", "rms"}
        assert {model.qk_norm for model in models} == {False, True}


def test_the_stored_study_can_be_continued():
    """Its runs have the names of today's plan; a changed recipe would train them all again."""
    with tarfile.open(Path(__file__).parents[2] / "results" / "beyond" / "multi30k.tar.xz") as stored:
        there = {name.split("/")[2] for name in stored.getnames() if name.startswith("multi30k/runs/")}
    settings = ("training.tensorboard=false", "model.source_vocab_size=8824", "model.target_vocab_size=8824")
    names = {run.name for run in planned("beyond", "multi30k", 3, Budget(8_192_000), settings)}
    assert there and there <= names
