"""A recipe: all settings of a run, read from TOML files and overrides."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepnmt.data.batching import BatchingConfig
from deepnmt.data.dataset import Dataset
from deepnmt.decoding.config import DecodingConfig
from deepnmt.errors import InputError
from deepnmt.files import read_toml
from deepnmt.model.config import ModelConfig
from deepnmt.model.growing import check_growth
from deepnmt.settings import did_you_mean, from_table, overlay, parse_override, to_table
from deepnmt.training.config import TrainingConfig

# `section.field=value`, or values by `section.field`; None unsets an optional setting.
Overrides = Iterable[str] | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    model: ModelConfig
    training: TrainingConfig
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)

    def __post_init__(self) -> None:
        for setting in ("layer_dropout", "sublayer_dropout"):
            for name, stack in self.model.stacks.items():
                if getattr(stack, setting) and self.training.parallel == "fsdp":
                    raise ValueError(
                        f"model.{name}.{setting} makes ranks skip different layers, which does not work with "
                        'training.parallel = "fsdp"; use "ddp"'
                    )
        if self.training.grow:
            check_growth(self.model, self.training.grow)
            last, depth = self.training.grow[-1], self.model.encoder.num_layers
            if last != depth:
                raise ValueError(f"training.grow ends with {last} layers, but model.encoder.num_layers = {depth}")


def load_recipe(recipe: str | Path | Recipe, overrides: Overrides = (), dataset: Dataset | None = None) -> Recipe:
    """Load the recipe of a TOML file or preset, or take a given one, and apply overrides.

    With a dataset, the model gets its vocabulary sizes.
    """
    if isinstance(recipe, Recipe):
        return _resolve(to_table(recipe), overrides, dataset)
    path = find_recipe(str(recipe))
    table = read_table(path)
    try:
        return _resolve(table, overrides, dataset)
    except InputError as error:
        raise InputError(str(error) if overrides else f"{path}: {error}") from error


def _resolve(table: dict[str, Any], overrides: Overrides, dataset: Dataset | None) -> Recipe:
    if isinstance(overrides, str):
        overrides = [overrides]
    given = list(overrides.items() if isinstance(overrides, Mapping) else map(parse_override, overrides))
    if dataset is not None:
        given += [(f"model.{side}_vocab_size", each.vocab_size) for side, each in dataset.tokenizers.sides.items()]
    # Setting a kind drops the options of the previous kind, so kinds come first, wherever they were written.
    for name, value in sorted(given, key=lambda override: not override[0].endswith(".kind")):
        for part in reversed(name.split(".")):
            value = {part: value}
        table = overlay(table, value)
    try:
        recipe = from_table(Recipe, table)
    except InputError as error:
        is_lost = str(error).startswith("unknown setting") and "did you mean" not in str(error)
        raise InputError(f"{error}; `deepnmt presets demo` prints all settings" if is_lost else str(error)) from error
    if dataset is not None and recipe.model.share_embeddings and not dataset.tokenizers.shared:
        raise InputError(
            f"the recipe shares embeddings, but {dataset.folder} has a separate vocabulary for each language; "
            "set model.share_embeddings=false, or prepare the dataset with a joint one"
        )
    return recipe


def find_recipe(name: str) -> Path:
    """The path of a TOML file or of a bundled preset."""
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return path
    preset = recipes_folder() / f"{path.name.removesuffix('.toml')}.toml"
    if preset.is_file() and path.parent in (Path(), Path("recipes")):
        return preset
    nearest = did_you_mean(path.name, preset_names())
    raise InputError(f"{name} is neither a recipe file (.toml) nor one of the presets (`deepnmt presets`){nearest}")


def preset_names() -> list[str]:
    return sorted(path.stem for path in recipes_folder().glob("*.toml"))


def describe_preset(name: str) -> str:
    """The first comment of a preset's file."""
    first, *_ = find_recipe(name).read_text(encoding="utf-8").split("\n", 1)
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def recipes_folder() -> Path:
    """Inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def read_table(path: Path, extended_by: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a TOML file on top of the one that it `extends`: a path relative to it, or a preset."""
    table = read_toml(path)
    base = table.pop("extends", None)
    if base is None:
        return table
    beside = path.parent / str(base)
    preset = recipes_folder() / f"{str(base).removesuffix('.toml')}.toml"
    parent = next((candidate.resolve() for candidate in (beside, preset) if candidate.is_file()), None)
    if parent is None:
        raise InputError(f"{path} extends {base!r}, but there is neither {beside} nor such a preset")
    chain = (*extended_by, path.resolve())
    if parent in chain:
        raise InputError(f"{path} extends {base!r}, which extends it in turn")
    return overlay(read_table(parent, chain), table)
