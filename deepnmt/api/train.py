"""`deepnmt.train`: train a model from a recipe and a dataset."""

import signal
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from deepnmt.config import Overrides, Recipe, load_recipe
from deepnmt.data.dataset import Dataset
from deepnmt.decoding.config import DecodingConfig
from deepnmt.decoding.translator import Translator
from deepnmt.devices import choose_device
from deepnmt.errors import InputError, RunError
from deepnmt.evaluation.scores import quick_scores
from deepnmt.files import read_json
from deepnmt.model.storage import load_config, load_meta
from deepnmt.progress import say
from deepnmt.settings import from_table
from deepnmt.training import folder, trainer
from deepnmt.training.assembly import open_run
from deepnmt.training.averaging import export_model
from deepnmt.training.checkpoint import read_state
from deepnmt.training.config import TrainingConfig
from deepnmt.training.curves import read_log
from deepnmt.training.distributed import World, join_world
from deepnmt.training.memory import is_out_of_memory
from deepnmt.training.validation import TextMetrics


@dataclass(frozen=True)
class Run:
    """A RUN folder as `train` left it."""

    folder: Path
    step: int  # number of optimiser updates
    is_finished: bool  # False if a signal interrupted the run; `train` with resume=True continues it
    ending: str  # why training ended

    @property
    def model(self) -> Path:
        """The MODEL folder, for `deepnmt.Translator` and `deepnmt.load_model`; written when the run finishes."""
        return self.folder / folder.MODEL

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of log.jsonl: training and validation figures by step."""
        return read_log(self.folder)

    @property
    def scores(self) -> dict[str, float]:
        """The figures of the best validation, by name (`loss`, `ppl`, `bleu`, ...); empty without a validation set."""
        best = self.folder / "best.json"
        if not best.exists():
            return {}
        step = read_state(self.folder / read_json(best)["checkpoint"]).get("step")
        lines = [line for line in read_log(self.folder, "validation") if line["step"] == step]
        figures = lines[-1] if lines else {}
        return {name: value for name, value in figures.items() if isinstance(value, float)}


def train(
    recipe: str | Path | Recipe | None,
    data: str | Path | Dataset | None,
    out: str | Path,
    *,
    overrides: Overrides = (),
    resume: bool = False,
    from_model: str | Path | None = None,
    device: str | None = None,
) -> Run:
    """Train a model on a DATASET and write the RUN folder `out`; `Run.model` is the result.

    recipe: a TOML file, the name of a bundled preset, or a `Recipe`. With None, a resumed run keeps its own, and
        `from_model` gets a recipe for fine-tuning with the settings of that model.
    data: a DATASET folder, or the result of `prepare`. With None, a resumed run keeps its own.
    overrides: settings that override the recipe's: {"training.max_steps": 1000} or ["training.max_steps=1000"].
    resume: resume the run in `out`; start it if there is none. The result is bit for bit the same as without the
        interruption.
    from_model: fine-tune the model of this MODEL folder.
    device: "cpu", "cuda" or "cuda:1"; by default a GPU if there is one.

    Progress goes to standard error. SIGTERM makes the run save a checkpoint and return; Ctrl-C also raises
    KeyboardInterrupt after saving. Under torchrun, every rank calls this function.
    """
    start = None if from_model is None else Path(from_model)
    timeout, refusal = TrainingConfig.distributed_timeout_seconds, None
    try:
        resolved, dataset = _resolve_all(recipe, data, Path(out), overrides, resume, start)
        timeout = resolved.training.distributed_timeout_seconds
    except InputError as error:
        refusal = error
    with join_world(choose_device(device), timeout) as world:
        if refusal is not None:
            raise refusal  # here, where the main rank alone reports what every rank has found
        return _train(resolved, dataset, Path(out), world, resume, start)


def _resolve_all(
    recipe: str | Path | Recipe | None,
    data: str | Path | Dataset | None,
    out: Path,
    overrides: Overrides,
    resume: bool,
    start: Path | None,
) -> tuple[Recipe, Dataset]:
    """The recipe and the verified dataset: as given, or those of the run that is resumed."""
    stored = out / folder.RECIPE
    if resume and stored.is_file():
        recipe, data = recipe or stored, data or Path(folder.read_about(out)["data"])
        if isinstance(data, Path) and not data.exists():
            raise InputError(f"{data}, the dataset of {out}, does not exist; pass its new location as `data`")
    if data is None:
        raise InputError(f"`data` is missing, and {out} contains no run to resume")
    dataset = data if isinstance(data, Dataset) else Dataset.open(Path(data))
    dataset.verify()
    if recipe is None:
        if start is None:
            raise InputError("give a recipe, or a model to fine-tune (`from_model`)")
        recipe = fine_tuning(start)
    return load_recipe(recipe, overrides, dataset), dataset


def fine_tuning(model: Path) -> Recipe:
    """A recipe for fine-tuning the model of a MODEL folder: a small constant learning rate and frequent validation."""
    training = TrainingConfig(
        max_steps=2000,
        optimizer="adamw",
        schedule="constant",
        lr=5e-5,
        warmup_steps=100,
        clip_norm=1.0,
        validate_every=200,
        save_every=200,
        patience=5,
    )
    own = load_meta(model).get("decoding", {})
    decoding = {field.name: own[field.name] for field in fields(DecodingConfig) if field.name in own}
    return Recipe(model=load_config(model), training=training, decoding=from_table(DecodingConfig, decoding))


def _train(recipe: Recipe, dataset: Dataset, out: Path, world: World, resume: bool, start: Path | None) -> Run:
    metrics = _text_metrics(recipe, dataset)
    try:
        with open_run(recipe, dataset, out, world, resume=resume, start=start, metrics=metrics) as (state, job):
            ending = trainer.train(state, job)
            is_finished = ending is not trainer.INTERRUPTED
            if is_finished and world.is_main:
                made_of = export_model(out, recipe.training)
                say(f"{ending}; {out / folder.MODEL} is {made_of}")
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(
            "out of memory: lower batching.tokens_per_batch (training.tokens_per_update keeps the size of an update), "
            "set training.plan_memory = true or training.activation_checkpointing = true, or train a smaller model"
        ) from error
    world.agree(None)
    stopped = f"stopped after step {state.step:,} and saved a checkpoint, from which the run can be resumed"
    if not is_finished and job.interruption.signal is signal.SIGINT:
        raise KeyboardInterrupt(stopped) if world.is_main else SystemExit(130)
    if not is_finished and world.is_main:
        say(stopped)
    return Run(out, state.step, is_finished, ending)


def _text_metrics(recipe: Recipe, dataset: Dataset) -> TextMetrics:
    """Translates with the recipe's validation settings, and scores with BLEU and chrF."""
    beam, penalty = recipe.training.validation_beam, recipe.decoding.length_penalty

    def translate(model: Any, languages: tuple[str, str], sources: list[str]) -> list[str]:
        translator = Translator.of(model, dataset.tokenizers).for_languages(*languages)
        return translator.translate(sources, beam=beam, length_penalty=penalty)

    return TextMetrics(translate, quick_scores)
