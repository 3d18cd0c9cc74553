"""`deepnmt.inspect_size`, `inspect_weights`, `inspect_gradients` and `inspect_curves`: of a model, a recipe or runs."""

from collections.abc import Sequence
from pathlib import Path

from deepnmt.analysis import gradients
from deepnmt.analysis.config import GradientTrial
from deepnmt.analysis.learning_curves import LearningCurves, read_curves
from deepnmt.analysis.size import ModelSize, measure
from deepnmt.analysis.training_speed import random_corpus, typical_lengths
from deepnmt.analysis.weights import ConnectionWeights, read_weights
from deepnmt.config import load_recipe
from deepnmt.data.dataset import Dataset
from deepnmt.errors import InputError
from deepnmt.model.config import ModelConfig
from deepnmt.model.storage import load_config, load_meta
from deepnmt.progress import progress

RANDOM_SENTENCES, RANDOM_WORDS = 2000, 1000  # enough to see how far the gradient reaches


def inspect_size(model: str | Path, overrides: Sequence[str] = (), *, data: str | Path | None = None) -> ModelSize:
    """The parameters and FLOPs of each part of `model`: a MODEL folder, or a preset or TOML file.

    A recipe can have `overrides`, and the vocabulary sizes of the DATASET `data`.
    """
    return ModelSize(str(model), config := _config(model, overrides, data), measure(config))


def _config(model: str | Path, overrides: Sequence[str], data: str | Path | None) -> ModelConfig:
    folder = Path(model)
    if not folder.is_dir():
        return load_recipe(str(model), overrides, None if data is None else Dataset.open(Path(data))).model
    if overrides:
        raise InputError(f"{overrides[0]}: {model} is a MODEL folder; only a recipe's settings can be overridden")
    if data is not None:
        raise InputError(f"--data {data}: {model} is a MODEL folder and has its own vocabulary")
    load_meta(folder)
    return load_config(folder)


def inspect_weights(model: str | Path) -> list[ConnectionWeights]:
    """The learned connection weights of the encoder and the decoder of the MODEL folder `model`."""
    if not Path(model).is_dir():
        raise InputError(f"{model} is not a MODEL folder; only a trained model has learned weights")
    return read_weights(Path(model))


def inspect_gradients(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    data: str | Path | None = None,
    trial: GradientTrial = GradientTrial(),  # noqa: B008 (frozen)
) -> gradients.GradientReport:
    """The gradient of each encoder layer over the first updates, for pre-norm, post-norm and DLCL.

    The models are those of `recipe` (a preset or a TOML file) with these `overrides`, trained on the DATASET `data` or
    on random sentences; `trial` sets the number of updates, their size and the width.
    """
    dataset = None if data is None else Dataset.open(Path(data))
    words = [] if dataset else [f"model.{side}_vocab_size={RANDOM_WORDS}" for side in ("source", "target")]
    chosen = load_recipe(recipe, [*overrides, *words], dataset)
    try:
        model = gradients.narrowed(chosen.model, trial.width) if trial.width else chosen.model
    except ValueError as error:
        raise InputError(f"--width {trial.width}: {error}") from error
    training = gradients.hurried(chosen.training, trial.steps)
    arms = gradients.arms(model)
    found = []
    corpora = dataset.train if dataset else {"random": random_corpus(typical_lengths(RANDOM_SENTENCES), model)}
    with progress("gradients", total=len(arms) * (trial.steps + 1), unit="steps") as shown:
        for name, arm in arms.items():
            shown.note = name
            found.append(gradients.measure_gradients(name, arm, training, corpora, trial, done=shown.advance))
    return gradients.GradientReport(recipe, model, found)


def inspect_curves(*runs: str | Path) -> LearningCurves:
    """Validation loss and BLEU of RUN folders (`runs`) over updates, target tokens and time; also while they train."""
    if not runs:
        raise InputError("inspect_curves needs at least one RUN folder")
    return read_curves([Path(run) for run in runs])
