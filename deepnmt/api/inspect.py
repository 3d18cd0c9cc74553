"""`deepnmt.inspect_size`, `inspect_weights`, `inspect_layers`, `inspect_gradients` and `inspect_curves`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from deepnmt.analysis import gradients
from deepnmt.analysis.config import GradientTrial
from deepnmt.analysis.layers import LayerReport, measure_layers, num_passes
from deepnmt.analysis.learning_curves import LearningCurves, read_curves
from deepnmt.analysis.size import ModelSize, describe, measure
from deepnmt.analysis.training_speed import random_corpus, typical_lengths
from deepnmt.analysis.weights import ConnectionWeights, learned_weights
from deepnmt.config import load_recipe
from deepnmt.data.dataset import Dataset
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.decoding.likelihood import forced_batches
from deepnmt.decoding.translator import check_vocabularies, check_weights
from deepnmt.devices import choose_device
from deepnmt.errors import InputError
from deepnmt.evaluation.scores import read_parallel
from deepnmt.model.config import ModelConfig
from deepnmt.model.connections import CONNECTIONS, Connection
from deepnmt.model.storage import load_config, load_meta, load_model
from deepnmt.model.sublayers import SUBLAYERS
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
        raise InputError(f"data = {data}: {model} is a MODEL folder and has its own vocabulary")
    load_meta(folder)
    return load_config(folder)


def inspect_weights(model: str | Path) -> list[ConnectionWeights]:
    """The learned connection weights of the encoder and the decoder of the MODEL folder `model`."""
    if not Path(model).is_dir():
        raise InputError(f"{model} is not a MODEL folder; only a trained model has learned weights")
    loaded = load_model(model)
    if found := learned_weights(loaded):
        return found
    kinds = " and ".join(f"{stack.connection.kind} {name}" for name, stack in loaded.config.stacks.items())
    learning = [kind for kind, scheme in CONNECTIONS.items() if scheme.matrix is not Connection.matrix]
    learning += [kind for kind, scheme in SUBLAYERS.items() if scheme.learns_factors]
    raise InputError(f"{model} has no learned weights to show: {kinds} (these have: {', '.join(learning)})")


def inspect_layers(
    model: str | Path,
    source: str | Path,
    reference: str | Path,
    *,
    lines: int = 200,
    device: str | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> LayerReport:
    """What each layer of `model`, a MODEL folder, contributes, measured on `device`.

    `source` and `reference` are files of raw text, of which `lines` evenly spaced pairs are used (0: all pairs);
    `source_lang` and `target_lang` are for multilingual models.

    The report has the increase of the loss without the layer, the difference between its input and its output, the loss
    if the stack ended after it, and the similarity of the outputs of all layers.
    """
    if lines < 0:
        raise InputError(f"lines = {lines} must be at least 0")
    folder, (texts, references) = Path(model), read_parallel(source, reference)
    count = min(lines or len(texts), len(texts))
    sample = {i: (texts[i], references[i]) for i in (k * len(texts) // count for k in range(count))}
    loaded = load_model(folder, choose_device(device))
    tokenizers = TokenizerPair.load(folder)
    check_vocabularies(folder, loaded.config, tokenizers)
    check_weights(folder, loaded)
    tokenizers = tokenizers.for_languages(source_lang, target_lang)
    longest = loaded.config.position_limit or sys.maxsize
    batches = list(forced_batches(tokenizers, sample, longest, loaded.output_weight.device))
    with progress("layers", total=len(batches) * num_passes(loaded), unit="steps") as shown:
        loss, stacks = measure_layers(loaded, batches, done=shown.advance)
    return LayerReport(
        model=str(model),
        about=describe(loaded.config),
        sentences=count,
        source_subwords=sum(int((batch.source != loaded.config.pad_id).sum()) for batch in batches),
        target_subwords=sum(int(batch.scored.sum()) for batch in batches),
        loss=loss,
        stacks=stacks,
    )


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
        raise InputError(f"width = {trial.width}: {error}") from error
    training = gradients.with_short_warmup(chosen.training, trial.steps)
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
