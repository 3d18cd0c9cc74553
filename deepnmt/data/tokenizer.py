"""From a line of text to ids and back: normalisation, case, words, subwords.

A tokeniser is one self-contained JSON file; a DATASET or MODEL folder holds one per side.
"""

import json
import re
import unicodedata
from array import array
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, get_args

from deepnmt.data.bpe_dropout import BpeDropout, Keys, Resample
from deepnmt.data.prepare_settings import Normalization
from deepnmt.data.pretokenizer import PRETOKENIZERS, Jieba, Moses
from deepnmt.data.sentence_pieces import SPACE, ListedPieces, SentencePieces
from deepnmt.data.subword_nmt import SubwordNmt
from deepnmt.data.subwords import Subwords
from deepnmt.data.vocabulary import BOS, EOS, PAD, UNK
from deepnmt.errors import InputError
from deepnmt.files import write_json
from deepnmt.settings import did_you_mean

TOKENIZER_FORMAT = 1
AS_IT_IS = "sentencepiece"  # no normalisation before that of the SentencePiece model
NORMALIZATIONS = (*get_args(Normalization), AS_IT_IS)
_SURROGATES = re.compile("[\ud800-\udfff]")  # Python allows them and UTF-8 does not

SUBWORDS: dict[str, type[Subwords]] = {kind.kind: kind for kind in (SentencePieces, ListedPieces, SubwordNmt)}


def clean_spaces(text: str) -> str:
    """Collapse whitespace to single spaces; SentencePiece's sign for a space counts as one."""
    return " ".join(text.replace(SPACE, " ").split())


@dataclass(frozen=True)
class Preprocessor:
    """Prepares text of one language for subwords: Unicode normalisation, case, words."""

    language: str
    pretokenizer: str = "none"
    lowercase: bool = False
    normalization: str = "nfc"

    def __post_init__(self) -> None:
        for name, choices in (("pretokenizer", ("none", *PRETOKENIZERS)), ("normalization", NORMALIZATIONS)):
            if getattr(self, name) not in choices:
                raise InputError(f"{name} = {getattr(self, name)!r} is unknown; choose from {', '.join(choices)}")

    def normalised(self, text: str) -> str:
        """The text in the chosen Unicode form and case, without surrogates."""
        if not text.isascii():
            text = _SURROGATES.sub("\ufffd", text)
            if self.normalization in ("nfc", "nfkc"):
                text = unicodedata.normalize("NFC" if self.normalization == "nfc" else "NFKC", text)
        return text.lower() if self.lowercase else text

    def split(self, text: str) -> str:
        """The normalised line, with single spaces between words."""
        text = self.normalised(text)
        if self.normalization != AS_IT_IS:
            text = clean_spaces(text)
        if self.pretokenizer == "none":
            return text
        text = _words(self.pretokenizer, self.language).split(text)
        return text if self.normalization == AS_IT_IS else clean_spaces(text)

    def join(self, text: str) -> str:
        """Readable text from words between spaces."""
        text = clean_spaces(text)
        if self.pretokenizer == "none":
            return text
        return clean_spaces(_words(self.pretokenizer, self.language).join(text))


@cache
def _words(pretokenizer: str, language: str) -> Moses | Jieba:
    return PRETOKENIZERS[pretokenizer](language)


def split_tag(text: str, tags: Container[str]) -> tuple[str, str]:
    """The tag at the beginning of a text, or an empty string; and the rest of the text."""
    if tags:
        first, _, rest = text.strip().partition(" ")
        if first in tags:
            return first, rest
    return "", text


@dataclass(frozen=True)
class LanguageTags:
    """The tags before the texts of one side that name a language: the source's or the target's."""

    of: Literal["source", "target"]
    tags: dict[str, str]  # by language


@dataclass(eq=False, repr=False)
class Tokenizer:
    """decode(encode(text)) == normalise(text) for any text, unless the vocabulary has no byte fallback.

    If a text begins with one of the `tags`, alone or before a space, its ids begin with that tag's id; otherwise with
    that of the tag `begin`, if there is one. Tags of `languages` are dropped in decoding. `ends`: a sentence given
    to the model ends with eos, which some converted models have never seen at the end of a source. `untagged`: the
    languages of this side, if there are several without tags.
    """

    subwords: Subwords
    preprocessor: Preprocessor
    tags: Sequence[str] = ()
    languages: LanguageTags | None = None
    begin: str = ""
    ends: bool = True
    untagged: Sequence[str] = ()
    bos_id, pad_id, eos_id, unk_id = BOS, PAD, EOS, UNK

    def __post_init__(self) -> None:
        self.tags, self.untagged = tuple(self.tags), tuple(self.untagged)
        self.ending = [EOS] if self.ends else []
        self._first_tag = len(self.subwords.pieces)
        self._tag_ids = {tag: number for number, tag in enumerate(self.tags, start=self._first_tag)}
        self._silent = {self._tag_ids[tag] for tag in self.languages.tags.values()} if self.languages else set()

    @property
    def language(self) -> str:
        return self.preprocessor.language

    @property
    def vocab_size(self) -> int:
        return self._first_tag + len(self.tags)

    @property
    def pieces(self) -> list[str]:
        return [*self.subwords.pieces, *self.tags]

    def piece(self, number: int) -> str:
        return self.tags[number - self._first_tag] if number >= self._first_tag else self.subwords.pieces[number]

    def opening(self, tag: str = "") -> list[int]:
        """The ids before a text with this tag, or without a tag."""
        tag = tag or self.begin
        if self.languages and not tag:
            known = len(self.languages.tags)
            raise InputError(
                f"the model has {known} {self.languages.of} languages; choose one with --{self.languages.of}-lang"
            )
        return [self._tag_ids[tag]] if tag else []

    def is_language(self, number: int) -> bool:
        """True for the id of a language tag."""
        return number in self._silent

    def normalise(self, text: str) -> str:
        """The text after encoding and decoding."""
        tag, rest = self.split_tag(text)
        return " ".join(part for part in (tag, self.preprocessor.join(self.preprocessor.split(rest))) if part)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """The ids of each text, without eos."""
        tagged = [self.split_tag(text) for text in texts]
        encoded = self.encode_words([(tag, self.preprocessor.split(rest)) for tag, rest in tagged])
        return [array("I", ids).tolist() for ids in encoded]

    def encode_words(self, tagged: Sequence[tuple[str, str]]) -> list[bytes]:
        """The ids of lines split into words, each with its tag or an empty string, as bytes of native unsigned ints."""
        openings = {tag: array("I", self.opening(tag)).tobytes() for tag in {tag for tag, _ in tagged}}
        encoded = self.subwords.encode_lines([words for _, words in tagged])
        return [openings[tag] + ids for (tag, _), ids in zip(tagged, encoded, strict=True)]

    def split_tag(self, text: str) -> tuple[str, str]:
        return split_tag(text, self._tag_ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids up to the first eos, without padding."""
        kept = [i for i in takewhile(lambda number: number != EOS, map(int, ids)) if i not in (PAD, BOS)]
        tags = [self.piece(number) for number in kept if number >= self._first_tag and number not in self._silent]
        text = self.preprocessor.join(self.subwords.decode([number for number in kept if number < self._first_tag]))
        return " ".join([*tags, text] if text else tags)

    def with_dropout(self, p: float) -> Resample:
        """Segments sentences again with BPE-dropout, each determined by its key; tags stay in place.

        A sentence with an unknown symbol, whose text is lost, is not changed.
        """
        dropout = BpeDropout(self.subwords.merge, p)

        def resample(sentences: list[list[int]], keys: Keys) -> list[list[int]]:
            known = [i for i, ids in enumerate(sentences) if UNK not in ids]
            tags = [[number for number in sentences[i][:1] if number >= self._first_tag] for i in known]
            texts = (sentences[i][len(tag) :] for i, tag in zip(known, tags, strict=True))
            segmented = dropout.segment(list(map(self.subwords.words, texts)), keys[known])
            new = {i: tag + ids for i, tag, ids in zip(known, tags, segmented, strict=True)}
            return [new.get(i, ids) for i, ids in enumerate(sentences)]

        return resample

    def state(self) -> dict[str, Any]:
        return {
            "format": TOKENIZER_FORMAT,
            "kind": self.subwords.kind,
            **asdict(self.preprocessor),
            "tags": list(self.tags),
            **({"languages": asdict(self.languages), "begin": self.begin} if self.languages else {}),
            **({} if self.ends else {"ends": False}),
            **({"untagged": list(self.untagged)} if self.untagged else {}),
            **self.subwords.state(),
        }

    def save(self, path: Path) -> None:
        write_json(path, self.state())

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            if (version := state.get("format")) != TOKENIZER_FORMAT:
                raise InputError(
                    f"tokeniser format {version!r} is not supported; this version of deepnmt reads {TOKENIZER_FORMAT}"
                )
            preprocessor = Preprocessor(**{field.name: state[field.name] for field in fields(Preprocessor)})
            languages = LanguageTags(**state["languages"]) if "languages" in state else None
            subwords = SUBWORDS[state["kind"]].from_state(state)
            begin, ends, untagged = state.get("begin", ""), state.get("ends", True), state.get("untagged", ())
            return cls(subwords, preprocessor, state["tags"], languages, begin, ends, untagged)
        except FileNotFoundError as error:
            raise InputError(f"the tokeniser {path} does not exist") from error
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is not a tokeniser of deepnmt ({type(error).__name__}: {error})") from error


class TokenizerPair:
    """The tokenisers of both sides. `shared`: an id means the same piece on both, so embeddings may be tied."""

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self.source, self.target = source, target
        self.sides = {"source": source, "target": target}
        self.shared = source.pieces == target.pieces
        self.vocab_sizes = source.vocab_size, target.vocab_size

    @property
    def is_multilingual(self) -> bool:
        return bool(self.source.languages or self.target.languages or self.source.untagged)

    @property
    def languages(self) -> tuple[list[str], list[str]]:
        """The source and target languages: those that have tags, those without, or one each."""
        found = {name: list(side.untagged) or [side.language] for name, side in self.sides.items()}
        for tokenizer in self.sides.values():
            if tokenizer.languages:
                found[tokenizer.languages.of] = list(tokenizer.languages.tags)
        return found["source"], found["target"]

    def for_languages(self, source: str | None, target: str | None) -> "TokenizerPair":
        """The pair for these languages; None keeps the current one."""
        if source is target is None:
            return self
        wanted = {"source": source or self.source.language, "target": target or self.target.language}
        is_tagged = all(side.begin for side in self.sides.values() if side.languages)
        if is_tagged and wanted == {name: side.language for name, side in self.sides.items()}:
            return self
        for (name, code), known in zip(wanted.items(), self.languages, strict=True):
            if code not in known:
                listed = f" (it has {', '.join(known)})" if len(known) < 10 else ""
                raise InputError(f"the model has no {name} language {code!r}{listed}{did_you_mean(code, known)}")
        sides = []
        for name, side in self.sides.items():
            begin = side.languages.tags[wanted[side.languages.of]] if side.languages else ""
            sides.append(replace(side, preprocessor=replace(side.preprocessor, language=wanted[name]), begin=begin))
        return TokenizerPair(*sides)

    def save(self, folder: Path) -> None:
        for name, side in self.sides.items():
            side.save(folder / f"tokenizer.{name}.json")

    @classmethod
    def load(cls, folder: Path) -> "TokenizerPair":
        return cls(*(Tokenizer.load(folder / f"tokenizer.{side}.json") for side in ("source", "target")))
