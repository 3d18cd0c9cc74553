"""What a folder of another toolkit says about text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepnmt.data.listed_pieces import ListedPieces
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.errors import InputError
from deepnmt.files import read_json


@dataclass(frozen=True)
class ForeignText:
    """Tokenisers, the rows of the model's tables in the order of their symbols if that is not the model's own (-1: the
    model has none), and how the toolkit decodes by default."""

    tokenizers: TokenizerPair
    numbering: tuple[list[int], list[int]] | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)


def read_pieces(path: Path, listed: list[str]) -> ListedPieces:
    try:
        return ListedPieces(path.read_bytes(), listed)
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except InputError as error:
        raise InputError(f"{path} is {error}") from error


def read_vocabulary(path: Path) -> dict[str, int]:
    """Symbols and their numbers, all different."""
    return checked_vocabulary(read_json(path), path)


def checked_vocabulary(table: Mapping[str, Any], path: Path) -> dict[str, int]:
    if any(type(number) is not int for number in table.values()) or len(set(table.values())) < len(table):
        raise InputError(f"{path} is not a vocabulary: it must give each symbol a number of its own")
    return dict(table)


def read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def decoding_defaults(folder: Path) -> dict[str, Any]:
    """Beam and length penalty that `generate` of Hugging Face takes from a folder."""
    settings = read_optional(folder / "config.json") | read_optional(folder / "generation_config.json")
    names = {"beam": "num_beams", "length_penalty": "length_penalty"}
    found = {ours: settings[theirs] for ours, theirs in names.items() if settings.get(theirs) is not None}
    if "length_penalty" not in found:
        found["length_penalty"] = 1.0
    return found
