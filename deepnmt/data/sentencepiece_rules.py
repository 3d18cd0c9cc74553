"""A tokeniser as a single SentencePiece model that includes normalisation, for programs that only use SentencePiece.

Unicode normalisation, lowercasing and spaces become rewriting rules, of which SentencePiece applies the longest match.
They cover every spelling of every composed character, with its marks in any order and with one more mark of its block
between them. They differ from full normalisation only where text combines marks of several scripts; and lowercasing
produces no final sigma.
"""

import io
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import permutations

import sentencepiece

from deepnmt.data.sentence_pieces import SPACE, ListedPieces, SentencePieces, message_of
from deepnmt.data.tokenizer import AS_IT_IS, Preprocessor, Tokenizer

SENTENCEPIECE = SentencePieces, ListedPieces  # subwords that have a SentencePiece model


def normalising_model(tokenizer: Tokenizer) -> bytes:
    """The SentencePiece model of a tokeniser without pretokeniser, with its normalisation as rules.

    A model with rules of its own keeps them.
    """
    assert isinstance(tokenizer.subwords, SENTENCEPIECE)
    message, prepare = message_of(tokenizer.subwords.model), tokenizer.preprocessor
    if message.normalizer_spec.precompiled_charsmap or prepare.normalization == AS_IT_IS:
        return tokenizer.subwords.model
    message.normalizer_spec.precompiled_charsmap = _compiled(prepare.normalization, prepare.lowercase)
    return bytes(message.SerializeToString())


def _rules(normalization: str, lowercase: bool) -> Iterator[tuple[str, str]]:
    rewritten = Preprocessor("", lowercase=lowercase, normalization=normalization).normalised
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        if character == " " or unicodedata.category(character) == "Cs":
            continue
        if character == SPACE or character.isspace():
            yield character, " "
            continue
        composed = normalization != "none" and not unicodedata.is_normalized("NFD", character)
        for spelling in (character, *(_spellings(character) if composed else ())):
            if (rewriting := rewritten(spelling)) != spelling:
                yield spelling, rewriting


def _spellings(composed: str) -> Iterator[str]:
    """Every other spelling of a composed character: its marks in any order, the first ones possibly composed."""
    base, *marks = list(unicodedata.normalize("NFD", composed))
    for order in set(permutations(marks)):
        for combined in range(len(order)):
            start = unicodedata.normalize("NFC", base + "".join(order[:combined]))
            spelling = start + "".join(order[combined:])
            if len(start) == 1 and unicodedata.normalize("NFC", spelling) == composed:
                yield spelling
    block = range(ord(base) & ~0xFF, (ord(base) & ~0xFF) + 0x100)
    # Other marks of its block, such as vowels between an Arabic letter and its hamza.
    for other in filter(unicodedata.combining, map(chr, block)):
        if not unicodedata.is_normalized("NFD", spelling := base + "".join(marks) + other):
            yield unicodedata.normalize("NFD", spelling)


@cache
def _compiled(normalization: str, lowercase: bool) -> bytes:
    """The rules in SentencePiece's format, compiled by training a throw-away model."""
    model, rules = io.BytesIO(), dict(_rules(normalization, lowercase))
    with tempfile.NamedTemporaryFile("w", encoding="ascii") as listed:
        listed.writelines("\t".join(map(_hexadecimal, rule)) + "\n" for rule in rules.items())
        listed.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a"]),
            model_writer=model,
            vocab_size=8,
            hard_vocab_limit=False,
            normalization_rule_tsv=listed.name,
            minloglevel=2,
        )
    return bytes(message_of(model.getvalue()).normalizer_spec.precompiled_charsmap)


def _hexadecimal(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)
