"""The parts of another toolkit's folder that concern text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sentencepiece

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.data.vocabulary import SPECIAL_PIECES
from deepnmt.errors import InputError
from deepnmt.files import read_json


@dataclass(frozen=True)
class ForeignText:
    """The tokenisers of a converted model, and the toolkit's default decoding settings."""

    tokenizers: TokenizerPair
    numbering: tuple[list[int], list[int]] | None = None  # per symbol, its row in the original tables; -1: none
    decoding: Mapping[str, Any] = field(default_factory=dict)


def chosen_languages(folder: Path, named: Sequence[str | None], *asked: str | None) -> tuple[str, str]:
    """The source and target languages asked for, or those that the folder names."""
    source, target = (code or known for code, known in zip(asked, named, strict=True))
    if not source or not target:
        raise InputError(f"{folder} does not name its languages: give --source-lang and --target-lang")
    return source, target


def has_our_symbols(vocabulary: Mapping[str, int]) -> bool:
    return [vocabulary.get(symbol) for symbol in SPECIAL_PIECES] == [*range(len(SPECIAL_PIECES))]


def read_numbered(path: Path) -> list[str]:
    """The symbols of a vocabulary that begins with our special ones, in order, without those."""
    vocabulary = checked_vocabulary(read_json(path), path)
    symbols = sorted(vocabulary, key=vocabulary.__getitem__)
    if not has_our_symbols(vocabulary) or vocabulary[symbols[-1]] != len(symbols) - 1:
        raise InputError(f"{path} must number its symbols from 0, beginning with {' '.join(SPECIAL_PIECES)}")
    return symbols[len(SPECIAL_PIECES) :]


def read_pieces(path: Path) -> list[str]:
    """The pieces of a SentencePiece model, in the order of their numbers."""
    try:
        processor: Any = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} is not a SentencePiece model: {error}") from error
    return [processor.id_to_piece(number) for number in range(processor.get_piece_size())]


def numbered(symbols: Sequence[str], path: Path) -> tuple[list[str], list[int]]:
    """The symbols of a vocabulary but the special ones, and the number that each of ours has there; -1: none."""
    numbers = {symbol: number for number, symbol in enumerate(symbols)}
    if len(numbers) < len(symbols):
        raise InputError(f"{path}: a vocabulary lists a symbol twice")
    pieces = [symbol for symbol in symbols if symbol not in SPECIAL_PIECES]
    return pieces, [numbers.get(symbol, -1) for symbol in (*SPECIAL_PIECES, *pieces)]


def checked_vocabulary(table: Mapping[str, Any], path: Path) -> dict[str, int]:
    if any(type(number) is not int for number in table.values()) or len(set(table.values())) < len(table):
        raise InputError(f"{path} is not a vocabulary: it must map each symbol to a unique number")
    return dict(table)


def read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def decoding_defaults(folder: Path) -> dict[str, Any]:
    """Beam size and length penalty that Hugging Face's `generate` uses for this folder."""
    settings = read_optional(folder / "config.json") | read_optional(folder / "generation_config.json")
    names = {"beam": "num_beams", "length_penalty": "length_penalty"}
    found = {ours: settings[theirs] for ours, theirs in names.items() if settings.get(theirs) is not None}
    if "length_penalty" not in found:
        found["length_penalty"] = 1.0
    return found
