"""The text of Marian models, in Marian's or Hugging Face's format: vocabularies and SentencePiece models.

Marian numbers </s> 0 and <unk> 1; Hugging Face adds <pad>, which starts the decoder. In our numbering the special
symbols come first and the tags of a model with several target languages, such as >>deu<<, last. A folder written by
`deepnmt export --to huggingface` has Marian's files and our numbering.
"""

import re
from pathlib import Path
from typing import Any

from deepnmt.data.conversion.text import (
    ForeignText,
    checked_vocabulary,
    chosen_languages,
    decoding_defaults,
    has_our_symbols,
    read_numbered,
    read_optional,
    read_pieces,
)
from deepnmt.data.dataset import SIDES
from deepnmt.data.sentence_pieces import ListedPieces
from deepnmt.data.tokenizer import AS_IT_IS, LanguageTags, Preprocessor, Tokenizer, TokenizerPair
from deepnmt.errors import InputError
from deepnmt.files import read_json
from deepnmt.flat_yaml import read_flat_yaml

_END, _UNKNOWN, _PADDING = "</s>", "<unk>", "<pad>"
_TAG = re.compile(r">>.+<<")
_MISSING = -1


def read(folder: Path, source_lang: str | None, target_lang: str | None) -> ForeignText:
    folder = folder if folder.is_dir() else folder.parent
    for name in ("source.bpe", "target.bpe"):
        if (folder / name).is_file():
            raise InputError(f"{folder / name}: a Marian model with subword-nmt codes is not supported")
    files, languages = _described(folder, source_lang, target_lang)
    decoding = decoding_defaults(folder)
    if not (folder / "config.json").is_file():
        files, decoding = _of_marian(folder)
    sides, numbering = [], []
    for side, (vocabulary, model), language in zip(SIDES, files, languages, strict=True):
        pieces, tags, rows = _numbered(_vocabulary(vocabulary), folder)
        preprocessor = Preprocessor(language, normalization=AS_IT_IS)
        announced = LanguageTags("target", {tag[2:-2]: tag for tag in tags}) if tags and side == "source" else None
        sides.append(Tokenizer(ListedPieces.read(model, pieces), preprocessor, tags, announced))
        numbering.append(rows)
    pair = TokenizerPair(*sides)
    if pair.source.languages and target_lang:
        pair = pair.for_languages(languages[0], target_lang)
    return ForeignText(pair, (numbering[0], numbering[1]), decoding)


def is_exported(folder: Path) -> bool:
    return (folder / "source.spm").is_file() and has_our_symbols(read_optional(folder / "vocab.json"))


def read_exported(folder: Path, source_lang: str | None, target_lang: str | None) -> ForeignText:
    """The SentencePiece models contain the normalisation."""
    files, languages = _described(folder, source_lang, target_lang)
    sides = (
        Tokenizer(ListedPieces.read(model, read_numbered(vocabulary)), Preprocessor(language, normalization=AS_IT_IS))
        for (vocabulary, model), language in zip(files, languages, strict=True)
    )
    return ForeignText(TokenizerPair(*sides), decoding=decoding_defaults(folder))


def _described(folder: Path, *asked: str | None) -> tuple[list[tuple[Path, Path]], tuple[str, str]]:
    """The vocabulary and the SentencePiece model of each side in Hugging Face's format, and the languages."""
    config = read_optional(folder / "tokenizer_config.json")
    languages = chosen_languages(folder, (config.get("source_lang"), config.get("target_lang")), *asked)
    names = ("vocab.json", "target_vocab.json" if config.get("separate_vocabs") else "vocab.json")
    return [(folder / name, folder / f"{side}.spm") for name, side in zip(names, SIDES, strict=True)], languages


def _numbered(vocabulary: dict[str, int], folder: Path) -> tuple[list[str], list[str], list[int]]:
    """The pieces and tags of a vocabulary, and its number for each of our symbols."""
    for symbol in (_END, _UNKNOWN):
        if symbol not in vocabulary:
            raise InputError(f"{folder}: the vocabulary has no {symbol}")
    padding = vocabulary.get(_PADDING, _MISSING)
    listed = sorted(vocabulary.keys() - {_END, _UNKNOWN, _PADDING}, key=vocabulary.__getitem__)
    tags = [piece for piece in listed if _TAG.fullmatch(piece)]
    pieces = [piece for piece in listed if not _TAG.fullmatch(piece)]
    special = [padding, padding, vocabulary[_END], vocabulary[_UNKNOWN]]
    return pieces, tags, special + [vocabulary[piece] for piece in (*pieces, *tags)]


def _of_marian(folder: Path) -> tuple[list[tuple[Path, Path]], dict[str, Any]]:
    """The same in Marian's format, as named in decoder.yml or found, and the decoding settings.

    A vocabulary may be a SentencePiece model.
    """
    found = [folder / "decoder.yml", *sorted(folder.glob("*decoder.yml"))]
    path = next((path for path in found if path.is_file()), None)
    config: dict[str, Any] = read_flat_yaml(path.read_text(encoding="utf-8"), str(path)) if path else {}
    names = [Path(name).name for name in config.get("vocabs", [])] or [
        path.name for path in sorted((*folder.glob("*vocab*.yml"), *folder.glob("*vocab*.spm")))
    ]
    if not names or len(names) > 2:
        raise InputError(f"{folder} must have a decoder.yml that names its vocabularies, or one or two vocab*.yml")
    decoding = {
        ours: kind(config[theirs])
        for ours, theirs, kind in (("beam", "beam-size", int), ("length_penalty", "normalize", float))
        if theirs in config
    }
    sides = (("source.spm", folder / names[0]), ("target.spm", folder / names[-1]))
    return [(path, path if path.suffix == ".spm" else folder / spm) for spm, path in sides], decoding


def _vocabulary(path: Path) -> dict[str, int]:
    """Read a .json or .yml table of symbols and numbers, or a SentencePiece model."""
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    if path.suffix == ".spm":
        return {piece: number for number, piece in enumerate(read_pieces(path))}
    if path.suffix == ".json":
        return checked_vocabulary(read_json(path), path)
    table = read_flat_yaml(path.read_text(encoding="utf-8"), str(path))
    numbers = {symbol: int(number) for symbol, number in table.items() if str(number).isdecimal()}  # type: ignore[arg-type]
    if len(numbers) < len(table):
        raise InputError(f"{path} is not a Marian vocabulary: it must map each symbol to a number")
    return checked_vocabulary(numbers, path)
