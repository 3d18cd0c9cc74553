"""The tokenisers of a dataset: learnt from word counts, or given by the user."""

from collections.abc import Mapping
from pathlib import Path

from deepnmt.data import sentence_pieces
from deepnmt.data.prepare_settings import SubwordSettings
from deepnmt.data.sentence_pieces import SentencePieces
from deepnmt.data.subword_nmt import Codes, SubwordNmt, count_symbols, vocabulary
from deepnmt.data.tokenizer import Preprocessor, Subwords, Tokenizer, TokenizerPair
from deepnmt.errors import InputError

Words = Mapping[str, int]


def learn(words: tuple[Words, Words], settings: SubwordSettings) -> tuple[Subwords, Subwords]:
    """SentencePiece models of both sides, one for both if joint."""
    if settings.joint:
        joint = _learn_one(_add(*words), settings, settings.vocab_size[0])
        return joint, joint
    source, target = (
        _learn_one(side, settings, settings.vocab_size[i]) for side, i in zip(words, (0, -1), strict=True)
    )
    return source, target


def _learn_one(words: Words, settings: SubwordSettings, vocab_size: int) -> Subwords:
    model = sentence_pieces.train(
        words,
        vocab_size=vocab_size,
        subwords=settings.subwords,
        byte_fallback=settings.byte_fallback,
        character_coverage=settings.character_coverage,
    )
    if settings.min_frequency > 1:
        model = sentence_pieces.cut(model, sentence_pieces.piece_counts(model, words), settings.min_frequency)
    return SentencePieces(model)


def from_codes(
    codes: tuple[Codes, Codes], words: tuple[Words, Words], settings: SubwordSettings
) -> tuple[Subwords, Subwords]:
    """Tokenisers of subword-nmt codes with the vocabulary of this text, one for both sides if joint."""
    counts = [count_symbols(one, side) for one, side in zip(codes, words, strict=True)]
    if settings.joint:
        if codes[0].lines != codes[1].lines:
            raise InputError("a joint vocabulary needs the same codes on both sides; use joint = false (--separate)")
        joint = SubwordNmt(codes[0], vocabulary(_add(*counts), settings.min_frequency))
        return joint, joint
    source, target = (
        SubwordNmt(one, vocabulary(counted, settings.min_frequency)) for one, counted in zip(codes, counts, strict=True)
    )
    return source, target


def _add(first: Words, second: Words) -> Words:
    total = dict(first)
    for word, count in second.items():
        total[word] = total.get(word, 0) + count
    return total


def given(
    paths: tuple[Path, ...], preprocessors: tuple[Preprocessor, Preprocessor], tags: tuple[str, ...]
) -> TokenizerPair:
    """The tokenisers of a DATASET or MODEL folder (also in the opposite direction), or of one or two files."""
    if len(paths) == 1 and paths[0].is_dir():
        return _of_folder(paths[0], preprocessors, tags)
    return TokenizerPair(
        *(
            _of_file(path, preprocessor, tags)
            for path, preprocessor in zip((paths[0], paths[-1]), preprocessors, strict=True)
        )
    )


def _of_folder(folder: Path, preprocessors: tuple[Preprocessor, Preprocessor], tags: tuple[str, ...]) -> TokenizerPair:
    pair = TokenizerPair.load(folder)
    wanted = (preprocessors[0].language, preprocessors[1].language)
    found = (pair.source.language, pair.target.language)
    if found == (wanted[1], wanted[0]) != wanted:
        pair, found = TokenizerPair(pair.target, pair.source), wanted
    if found != wanted:
        raise InputError(f"the tokenisers of {folder} are for {' to '.join(found)}, not {' to '.join(wanted)}")
    return TokenizerPair(*(_with_tags(tokenizer, tags) for tokenizer in (pair.source, pair.target)))


def _of_file(path: Path, preprocessor: Preprocessor, tags: tuple[str, ...]) -> Tokenizer:
    if not path.exists():
        raise InputError(f"the tokeniser {path} does not exist")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give one folder with both tokenisers, or two files")
    if path.suffix == ".json":
        return _with_tags(Tokenizer.load(path), tags)
    return Tokenizer(SentencePieces.read(path), preprocessor, tags)


def _with_tags(tokenizer: Tokenizer, tags: tuple[str, ...]) -> Tokenizer:
    """New tags are appended to the vocabulary, so that ids keep their meaning."""
    new = [tag for tag in tags if tag not in tokenizer.tags]
    return Tokenizer(tokenizer.subwords, tokenizer.preprocessor, [*tokenizer.tags, *new])
