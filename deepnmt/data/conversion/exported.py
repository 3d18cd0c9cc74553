"""The text of a folder that `deepnmt export --to huggingface` wrote: Marian's files, with our special symbols first."""

from pathlib import Path

from deepnmt.data.conversion.text import ForeignText, decoding_defaults, read_optional, read_pieces, read_vocabulary
from deepnmt.data.tokenizer import AS_IT_IS, Preprocessor, Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import SPECIAL_PIECES
from deepnmt.errors import InputError


def is_exported(folder: Path) -> bool:
    return (folder / "source.spm").is_file() and _has_our_symbols(read_optional(folder / "vocab.json"))


def read(folder: Path, source_lang: str | None, target_lang: str | None) -> ForeignText:
    """The SentencePiece models normalise text by themselves."""
    told = read_optional(folder / "tokenizer_config.json")
    names = ("vocab.json", "target_vocab.json" if told.get("separate_vocabs") else "vocab.json")
    languages = source_lang or told.get("source_lang"), target_lang or told.get("target_lang")
    sides = []
    for side, name, language in zip(("source", "target"), names, languages, strict=True):
        if not language:
            raise InputError(f"{folder} does not say its {side} language: give --{side}-lang")
        vocabulary = read_vocabulary(folder / name)
        pieces = sorted(vocabulary, key=vocabulary.__getitem__)
        if not _has_our_symbols(vocabulary) or [*map(vocabulary.__getitem__, pieces)] != [*range(len(pieces))]:
            raise InputError(f"{folder / name} must number its symbols from 0, beginning with <s> <pad> </s> <unk>")
        subwords = read_pieces(folder / f"{side}.spm", pieces[len(SPECIAL_PIECES) :])
        sides.append(Tokenizer(subwords, Preprocessor(language, normalization=AS_IT_IS)))
    return ForeignText(TokenizerPair(*sides), decoding=decoding_defaults(folder))


def _has_our_symbols(vocabulary: dict[str, int]) -> bool:
    return [vocabulary.get(symbol) for symbol in SPECIAL_PIECES] == [*range(len(SPECIAL_PIECES))]
