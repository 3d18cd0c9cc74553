"""`deepnmt train`: a recipe and a dataset become a run, and the run a model."""

import argparse
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from deepnmt.devices import choose_device
from deepnmt.errors import InputError, RunError
from deepnmt.progress import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from deepnmt.config import Recipe
    from deepnmt.data.dataset import Dataset
    from deepnmt.training.assembly import MakeValidate
    from deepnmt.training.config import Precision
    from deepnmt.training.distributed import World
    from deepnmt.training.engine import Objective

EXAMPLE = "deepnmt train en-de-pre-dlcl-30l training.seed=2 --data DATASET --out RUN"
SAMPLES = 3  # translations that are logged with each validation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe file (.toml), or the name of one that comes along")
    parser.add_argument(
        "overrides", nargs="*", metavar="section.field=value", help="settings that replace the recipe's"
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DATASET", help="what `deepnmt prepare` wrote")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="the folder of the run")
    parser.add_argument(
        "--from", dest="start", type=Path, metavar="MODEL", help="begin with the weights of this model: fine-tuning"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out; begin it if there is none")
    parser.add_argument("--tokens-per-update", type=int, metavar="N", help="short for training.tokens_per_update=N")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda where there is one")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.data.dataset import Dataset
    from deepnmt.training.distributed import join_world

    dataset = Dataset.open(arguments.data)
    recipe = resolve_recipe(arguments, dataset)
    with join_world(choose_device(arguments.device), recipe.training.distributed_timeout_seconds) as world:
        train_run(recipe, dataset, arguments.out, world, arguments.resume, arguments.start)


def resolve_recipe(arguments: argparse.Namespace, dataset: "Dataset") -> "Recipe":
    """The recipe with the overrides, and with the vocabulary that the dataset has."""
    from deepnmt.config import load_recipe

    tokenizers = dataset.tokenizers
    sizes = {"source": tokenizers.source.vocab_size, "target": tokenizers.target.vocab_size}
    overrides = [*arguments.overrides, *(f"model.{side}_vocab_size={size}" for side, size in sizes.items())]
    if arguments.tokens_per_update is not None:
        overrides.append(f"training.tokens_per_update={arguments.tokens_per_update}")
    recipe = load_recipe(arguments.recipe, overrides)
    if recipe.model.share_embeddings and not tokenizers.shared:
        raise InputError(
            f"the recipe shares embeddings, but {arguments.data} has a vocabulary for each language; "
            "set model.share_embeddings=false, or prepare the dataset with --joint"
        )
    return recipe


def train_run(
    recipe: "Recipe", dataset: "Dataset", out: Path, world: "World", resume: bool, start: Path | None = None
) -> None:
    """Begin or go on with a run, to its end; leaves RUN/model."""
    import torch

    from deepnmt.training.assembly import Settings, assemble
    from deepnmt.training.curves import require_wandb
    from deepnmt.training.interruption import Interruption
    from deepnmt.training.trainer import INTERRUPTED, train

    if recipe.training.wandb_project is not None:
        require_wandb()
    recipe, start = open_folder(recipe, dataset, out, world, resume, start)
    settings = Settings(recipe.model, recipe.batching, recipe.training)
    with Interruption() as interruption:
        look = validator(recipe, dataset, world)
        state, data, job = assemble(settings, dataset, out, world, interruption, look, start)
        try:
            ending = train(state, data, job)
        except torch.OutOfMemoryError as error:
            raise RunError(
                "out of memory: lower batching.tokens_per_batch (training.tokens_per_update stays what the optimiser "
                "sees), set training.plan_memory = true or training.activation_checkpointing = true"
            ) from error
        finally:
            job.curves.close()
    if ending is INTERRUPTED:
        _say(world, f"stopped after step {state.step:,} and saved; the same command with --resume goes on from there")
        if interruption.signal is signal.SIGINT:
            raise SystemExit(130)
        return
    if world.is_main:
        made_of = export_model(recipe, out)
        _say(world, f"{ending}; {out / 'model'} is {made_of}; next:")
        print(f"  deepnmt translate {out / 'model'} < input.txt\n  deepnmt average {out} --out MODEL", file=sys.stderr)
    world.agree(None)


def _say(world: "World", text: str) -> None:
    if world.is_main:
        say(text)


def open_folder(
    recipe: "Recipe", dataset: "Dataset", out: Path, world: "World", resume: bool, start: Path | None = None
) -> "tuple[Recipe, Path | None]":
    """Begin the folder, or check that the run in it is this one.

    The recipe comes back with its memory plan, and with it the MODEL that the run began with, if it did.
    """
    from deepnmt import __version__
    from deepnmt.config import read_table
    from deepnmt.settings import to_table
    from deepnmt.training import folder
    from deepnmt.training.assembly import Settings, open_stream, plan_memory

    if recipe.batching.layout == "auto":
        layout: Literal["packed", "padded"] = "packed" if world.device.type == "cuda" else "padded"
        recipe = replace(recipe, batching=replace(recipe.batching, layout=layout))
    going_on = folder.check_folder(out, resume) if world.is_main else False
    going_on = world.agree(going_on)
    stored = read_table(out / folder.RECIPE) if going_on else {}
    if recipe.training.plan_memory:
        # A plan is made once: what a batch holds decides the order of the data.
        tokens = stored["batching"]["tokens_per_batch"] if going_on else None
        tokens = tokens or plan_memory(Settings(recipe.model, recipe.batching, recipe.training), dataset, world)
        recipe = replace(recipe, batching=replace(recipe.batching, tokens_per_batch=tokens))
        _say(world, f"batching.tokens_per_batch = {tokens:,} by the memory plan")
    if going_on:
        folder.check_recipe(out, stored, to_table(recipe))
        start = folder.began_from(out, start)
    else:
        # What the data or the model to start from refuse, they refuse before there is a folder.
        if start is not None:
            check_start(start, recipe, dataset)
        open_stream(Settings(recipe.model, recipe.batching, recipe.training), dataset, world, None)
    if world.is_main:
        about = {"deepnmt": __version__, "data": str(dataset.folder.resolve())}
        about |= {} if start is None else {"from": str(start.resolve())}
        folder.begin_folder(out, to_table(recipe), about, dataset.folder)
    world.agree(None)
    return recipe, start


def check_start(start: Path, recipe: "Recipe", dataset: "Dataset") -> None:
    """Refuse weights that are not those of such a model, or of other subwords than the dataset has."""
    from deepnmt.data.tokenizer import TokenizerPair
    from deepnmt.model.storage import load_config, load_meta
    from deepnmt.settings import to_table
    from deepnmt.training.folder import flatten

    load_meta(start)
    tokenizers = TokenizerPair.load(start)
    sides = [(tokenizers.source, dataset.tokenizers.source), (tokenizers.target, dataset.tokenizers.target)]
    if any(there.pieces != here.pieces for there, here in sides):
        raise InputError(f"{dataset.folder} has other subwords than {start}: prepare it with --tokenizer {start}")
    stored, wanted = flatten(to_table(load_config(start))), flatten(to_table(recipe.model))
    for name in [name for name in stored if not name.endswith("dropout")]:
        if stored[name] != wanted.get(name):
            raise InputError(
                f"{start} has model.{name} = {stored[name]}, and the recipe {wanted.get(name, 'has none')}: take the "
                "recipe.toml of the run that made it, or set what differs"
            )


def validator(recipe: "Recipe", dataset: "Dataset", world: "World") -> "MakeValidate":
    """Makes the function that looks at the model on the validation set: its loss, and scores of what it translates."""
    from deepnmt.data.batching import held_out_batches
    from deepnmt.decoding.translator import Translator
    from deepnmt.evaluation.scores import quick_scores
    from deepnmt.model.transformer import Transformer
    from deepnmt.training.distributed import in_one_piece, is_sharded
    from deepnmt.training.precision import autocast
    from deepnmt.training.validation import Validation, connection_matrices, mean_loss

    def make(objective: "Objective", precision: "Precision") -> "Callable[[nn.Module], Validation] | None":
        if dataset.valid is None or not len(dataset.valid):
            _say(world, f"{dataset.folder} has no validation set: the last checkpoint will count as the best")
            return None
        batches = held_out_batches(dataset.valid, recipe.batching.tokens_per_batch)
        sources, references = dataset.valid_text or ([], [])
        limit = recipe.training.validation_lines
        sources, references = sources[:limit], references[:limit]
        beam, penalty = recipe.training.validation_beam, recipe.decoding.length_penalty

        def validate(model: "nn.Module") -> Validation:
            assert isinstance(model, Transformer)
            loss, nll = mean_loss(objective, batches, precision, world.device)
            matrices = connection_matrices(objective)
            if not sources:
                return Validation(loss, nll, matrices=matrices)
            with in_one_piece(objective), autocast(precision, world.device):
                translator = Translator.of(model, dataset.tokenizers)
                translate = partial(translator.translate, beam=beam, length_penalty=penalty)
                # Sharded ranks must all do the same; others share the lines out.
                hypotheses = translate(sources) if is_sharded(objective) else world.spread(translate, sources)
            scores = quick_scores(hypotheses, references, dataset.tokenizers.target.writing.language)
            return Validation(
                loss,
                nll,
                {name: score.value for name, score in scores.items()},
                {name: f"{score.signature}|beam:{beam}" for name, score in scores.items()},
                list(zip(sources, hypotheses, references, strict=True))[:SAMPLES],
                matrices,
            )

        return validate

    return make


def export_model(recipe: "Recipe", out: Path) -> str:
    """Write RUN/model as the recipe wishes; returns what it is."""
    from deepnmt.training.averaging import all_checkpoints, best_checkpoints, last_checkpoints, write_model
    from deepnmt.training.checkpoint import score_of, step_of

    newest = max(all_checkpoints(out), key=lambda path: (step_of(path), path.name))
    epochs = [path for path in all_checkpoints(out) if path.name.startswith("epoch")]
    scored = [path for path in all_checkpoints(out) if score_of(path) is not None]
    if recipe.training.export == "average" and len(epochs) > 1:
        paths = last_checkpoints(out, min(recipe.training.average_last, len(epochs)), "epoch")
        made_of = f"the mean of the last {len(paths)} epochs"
    elif recipe.training.export == "best" and scored:
        paths = best_checkpoints(out, 1)
        score = score_of(paths[0]) or 0.0
        metric = recipe.training.best_by if score >= 0 else "loss"  # without decoded text only the loss counts
        made_of = f"the best checkpoint ({paths[0].name}, {metric} {abs(score):.2f})"
    else:
        paths, made_of = [newest], f"the last checkpoint ({newest.name})"
    write_model(out, paths, out / "model")
    return made_of
