"""The text of a folder written by `deepnmt export --to huggingface`: Marian's files, with our special symbols first."""

from pathlib import Path

from deepnmt.data.conversion.text import (
    ForeignText,
    chosen_languages,
    decoding_defaults,
    has_our_symbols,
    read_numbered,
    read_optional,
)
from deepnmt.data.sentence_pieces import ListedPieces
from deepnmt.data.tokenizer import AS_IT_IS, Preprocessor, Tokenizer, TokenizerPair


def is_exported(folder: Path) -> bool:
    return (folder / "source.spm").is_file() and has_our_symbols(read_optional(folder / "vocab.json"))


def read(folder: Path, source_lang: str | None, target_lang: str | None) -> ForeignText:
    """The SentencePiece models contain the normalisation."""
    config = read_optional(folder / "tokenizer_config.json")
    named = config.get("source_lang"), config.get("target_lang")
    names = ("vocab.json", "target_vocab.json" if config.get("separate_vocabs") else "vocab.json")
    sides = []
    for side, name, language in zip(
        ("source", "target"), names, chosen_languages(folder, named, source_lang, target_lang), strict=True
    ):
        subwords = ListedPieces.read(folder / f"{side}.spm", read_numbered(folder / name))
        sides.append(Tokenizer(subwords, Preprocessor(language, normalization=AS_IT_IS)))
    return ForeignText(TokenizerPair(*sides), decoding=decoding_defaults(folder))
