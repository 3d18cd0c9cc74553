"""`deepnmt.bench_training` and `bench_generation`: the speed of a recipe on this machine, with random weights."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from deepnmt.analysis.config import TrainingTrial, Workload
from deepnmt.analysis.generation_speed import GenerationSpeed, depth_variants, measure_generation
from deepnmt.analysis.training_speed import TrainingSpeed, measure_training, typical_lengths
from deepnmt.config import Recipe, load_recipe
from deepnmt.data.dataset import Dataset
from deepnmt.data.vocabulary import SPECIAL_PIECES
from deepnmt.devices import choose_device
from deepnmt.errors import InputError


def bench_training(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    trial: TrainingTrial = TrainingTrial(),  # noqa: B008 (frozen)
    data: str | Path | None = None,
    device: str | None = None,
) -> TrainingSpeed:
    """Time optimiser updates of `recipe` (a preset or a TOML file) with these `overrides`, on `device`.

    The sentence lengths are those of the DATASET `data`, or typical ones. `trial` sets the size and number of updates.
    """
    lengths = typical_lengths()
    if data is not None:
        corpus = next(iter(Dataset.open(Path(data)).train.values()))
        lengths = (corpus.source.lengths, corpus.target.lengths)
    loaded = _load(recipe, overrides)
    return measure_training(loaded.model, loaded.training, lengths, trial, device=choose_device(device))


def bench_generation(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    workload: Workload = Workload(),  # noqa: B008 (frozen)
    encoder_layers: Sequence[int] = (),
    decoder_layers: Sequence[int] = (),
    device: str | None = None,
    precision: str = "fp32",
) -> Iterator[GenerationSpeed]:
    """Time the search on random sentences, on `device` in `precision`.

    The model is that of `recipe` (a preset or a TOML file) with these `overrides`, or one for each combination of
    `encoder_layers` and `decoder_layers`. `workload` sets the number and length of sentences, the beam and the workers.
    """
    config, chosen = _load(recipe, overrides).model, choose_device(device)
    if workload.workers > 1 and chosen != "cpu":
        raise InputError(
            f"workers = {workload.workers} is for the CPU, where each worker has a core; use one on {chosen}"
        )
    try:
        variants = depth_variants(config, encoder_layers, decoder_layers)
    except ValueError as error:
        raise InputError(str(error)) from error
    return (measure_generation(variant, workload, device=chosen, precision=precision) for variant in variants)


def _load(recipe: str, overrides: Sequence[str]) -> Recipe:
    """The recipe, with vocabularies from which random sentences can be drawn."""
    loaded = load_recipe(recipe, overrides)
    for name in ("source_vocab_size", "target_vocab_size"):
        if (size := getattr(loaded.model, name)) <= len(SPECIAL_PIECES):
            raise InputError(f"model.{name} = {size} leaves no symbols for sentences; set it to your vocabulary size")
    return loaded
