"""Tokenisers of checkpoints that have none: subword-nmt codes or SentencePiece models that the user names."""

from collections.abc import Sequence
from pathlib import Path

from deepnmt.data.sentence_pieces import ListedPieces
from deepnmt.data.subword_nmt import SEPARATOR, Codes, SubwordNmt
from deepnmt.data.subwords import Subwords
from deepnmt.data.tokenizer import AS_IT_IS, Preprocessor, Tokenizer, TokenizerPair
from deepnmt.errors import InputError


def read_given(
    vocabularies: Sequence[list[str]],
    languages: Sequence[str],
    codes: Sequence[str | Path],
    tokenizer: Sequence[str | Path],
    pretokenizer: Sequence[str],
    lowercase: bool,
    source_ends: bool,
) -> TokenizerPair:
    """`vocabularies` are the symbols that follow our special ones. Values have an entry for both sides, or one each."""
    words = pretokenizer or ["none" if tokenizer else "moses"]
    sides = []
    for i in (0, -1):
        subwords: Subwords
        if tokenizer:
            subwords = _listed_pieces(Path(tokenizer[i]), vocabularies[i])
        else:
            subwords = _subword_nmt(Path(codes[i]), vocabularies[i])
        normalization = AS_IT_IS if tokenizer else Preprocessor.normalization
        preprocessor = Preprocessor(languages[i], words[i], lowercase, normalization)
        sides.append(Tokenizer(subwords, preprocessor, ends=bool(i) or source_ends))
    return TokenizerPair(*sides)


def _subword_nmt(path: Path, vocabulary: list[str]) -> SubwordNmt:
    if not any(symbol.endswith(SEPARATOR) for symbol in vocabulary):
        raise InputError(
            f"{path} is for another model: the vocabulary has no symbol that ends in {SEPARATOR}, as those of "
            "subword-nmt do"
        )
    return SubwordNmt(Codes.read(path), vocabulary)


def _listed_pieces(path: Path, vocabulary: list[str]) -> ListedPieces:
    """The training text may have added rare characters and tags to the pieces of the model, but not most symbols."""
    subwords = ListedPieces.read(path, vocabulary)
    known = sum(map(subwords.has_piece, vocabulary))
    if 2 * known < len(vocabulary):
        share = f"{known:,} of the {len(vocabulary):,}"
        raise InputError(f"{path} has only {share} symbols of the vocabulary: it belongs to another model")
    return subwords
