"""The tokenisers of a dataset: learnt from word counts, or given by the user."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from deepnmt.data import sentence_pieces
from deepnmt.data.prepare_settings import SubwordSettings
from deepnmt.data.sentence_pieces import SentencePieces
from deepnmt.data.subword_nmt import Codes, SubwordNmt, count_symbols, vocabulary
from deepnmt.data.subwords import Subwords
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.errors import InputError

Words = Mapping[str, int]


def learn(words: Sequence[Words], settings: SubwordSettings) -> Sequence[Subwords]:
    """SentencePiece models of both sides, one for both if joint."""
    if settings.joint:
        return 2 * [_learn_one(_total(words), settings, settings.vocab_size[0])]
    return [_learn_one(words[i], settings, settings.vocab_size[i]) for i in (0, -1)]


def _learn_one(words: Words, settings: SubwordSettings, vocab_size: int) -> Subwords:
    model = sentence_pieces.train(words, settings, vocab_size)
    if settings.min_frequency > 1:
        model = sentence_pieces.cut(model, sentence_pieces.piece_counts(model, words), settings.min_frequency)
    return SentencePieces(model)


def from_codes(codes: Sequence[Codes], words: Sequence[Words], settings: SubwordSettings) -> Sequence[Subwords]:
    """Tokenisers of subword-nmt codes with the vocabulary of this text, one for both sides if joint."""
    counts = [count_symbols(one, side) for one, side in zip(codes, words, strict=True)]
    if settings.joint:
        if codes[0].lines != codes[1].lines:
            raise InputError("a joint vocabulary needs the same codes on both sides; use joint = false (--separate)")
        return 2 * [SubwordNmt(codes[0], vocabulary(_total(counts), settings.min_frequency))]
    return [
        SubwordNmt(one, vocabulary(counted, settings.min_frequency)) for one, counted in zip(codes, counts, strict=True)
    ]


def _total(counts: Sequence[Words]) -> Words:
    total = Counter(counts[0])
    total.update(counts[1])
    return total


def given(paths: Sequence[Path], preprocessors: Sequence[Preprocessor], tags: tuple[str, ...]) -> TokenizerPair:
    """The tokenisers of a DATASET or MODEL folder (also in the opposite direction), or of one or two files."""
    if len(paths) == 1 and paths[0].is_dir():
        return _of_folder(paths[0], (preprocessors[0].language, preprocessors[1].language), tags)
    return TokenizerPair(*(_of_file(paths[i], preprocessors[i], tags) for i in (0, -1)))


def _of_folder(folder: Path, wanted: tuple[str, str], tags: tuple[str, ...]) -> TokenizerPair:
    pair = TokenizerPair.load(folder)
    if pair.is_multilingual:
        pair = pair.for_languages(*wanted)
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
    listed = [*tokenizer.tags, *new]
    return Tokenizer(tokenizer.subwords, tokenizer.preprocessor, listed, tokenizer.languages, tokenizer.begin)
