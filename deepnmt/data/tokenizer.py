"""From a line of text to ids and back: normalisation, case, words, subwords.

A tokeniser is one self-contained JSON file; a DATASET or MODEL folder holds one per side.
"""

import json
import re
import unicodedata
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args

from deepnmt.data.bpe_dropout import Keys
from deepnmt.data.prepare_settings import Normalization, Pretokenizer
from deepnmt.data.pretokenizer import PRETOKENIZERS, Jieba, Moses
from deepnmt.data.sentence_pieces import SPACE, SentencePieces
from deepnmt.data.subword_nmt import SubwordNmt
from deepnmt.data.subwords import Subwords
from deepnmt.data.vocabulary import BOS, EOS, PAD, UNK
from deepnmt.errors import InputError
from deepnmt.files import write_json

TOKENIZER_FORMAT = 1


SUBWORDS: dict[str, type[Subwords]] = {kind.kind: kind for kind in (SentencePieces, SubwordNmt)}


def clean_spaces(text: str) -> str:
    """Collapse whitespace to single spaces; SentencePiece's sign for a space counts as one."""
    return " ".join(text.replace(SPACE, " ").split())


@dataclass(frozen=True)
class Preprocessor:
    """What happens to text of one language before subwords see it: Unicode normalisation, case, words."""

    language: str
    pretokenizer: str = "none"
    lowercase: bool = False
    normalization: str = "nfc"

    def __post_init__(self) -> None:
        for name, choices in (("pretokenizer", get_args(Pretokenizer)), ("normalization", get_args(Normalization))):
            if getattr(self, name) not in choices:
                raise InputError(f"{name} = {getattr(self, name)!r} is unknown; choose from {', '.join(choices)}")

    @cached_property
    def _words(self) -> Moses | Jieba:
        return PRETOKENIZERS[self.pretokenizer](self.language)

    def split(self, text: str) -> str:
        """The normalised line, with single spaces between words."""
        text = self._canonical(text)
        return text if self.pretokenizer == "none" else clean_spaces(self._words.split(text))

    def join(self, text: str) -> str:
        """Readable text from words between spaces."""
        text = clean_spaces(text)
        return text if self.pretokenizer == "none" else clean_spaces(self._words.join(text))

    def _canonical(self, text: str) -> str:
        if not text.isascii():
            text = _without_surrogates(text)
            if self.normalization != "none":
                text = unicodedata.normalize("NFC" if self.normalization == "nfc" else "NFKC", text)
        if self.lowercase:
            text = text.lower()
        return clean_spaces(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return Preprocessor, tuple(self.state().values())  # without the tools it has loaded

    def state(self) -> dict[str, Any]:
        return asdict(self)


def _without_surrogates(text: str) -> str:
    """Surrogates, which Python allows and UTF-8 does not, become the replacement character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\ufffd", text)
    return text


def split_tag(text: str, tags: Sequence[str]) -> tuple[str, str]:
    """The one of the tags that a text begins with, or nothing, and the rest of the text."""
    if tags:
        first, _, rest = text.strip().partition(" ")
        if first in tags:
            return first, rest
    return "", text


class Tokenizer:
    """Law: decode(encode(text)) == normalise(text) for any text, unless the vocabulary has no byte fallback.

    A text that begins with one of the `tags`, alone or before a space, begins with the id of that tag.
    """

    bos_id, pad_id, eos_id, unk_id = BOS, PAD, EOS, UNK

    def __init__(self, subwords: Subwords, preprocessor: Preprocessor, tags: Sequence[str] = ()) -> None:
        self.subwords, self.preprocessor, self.tags = subwords, preprocessor, tuple(tags)
        self._first_tag = len(subwords.pieces)

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

    def tag_id(self, tag: str) -> int:
        return self._first_tag + self.tags.index(tag)

    def normalise(self, text: str) -> str:
        """What is left of a text after encoding and decoding it."""
        tag, rest = self.split_tag(text)
        return " ".join(part for part in (tag, self.preprocessor.join(self.preprocessor.split(rest))) if part)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """The ids of each text, without eos."""
        tagged = [self.split_tag(text) for text in texts]
        lines = self.subwords.encode_lines([self.preprocessor.split(rest) for _, rest in tagged])
        encoded = [array("I", ids).tolist() for ids in lines]
        return [[self.tag_id(tag), *ids] if tag else ids for (tag, _), ids in zip(tagged, encoded, strict=True)]

    def split_tag(self, text: str) -> tuple[str, str]:
        """The tag a text begins with, or nothing, and the rest of the text."""
        return split_tag(text, self.tags)

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text: up to the first eos, without padding."""
        kept = [i for i in takewhile(lambda number: number != EOS, map(int, ids)) if i not in (PAD, BOS)]
        tags = [self.piece(number) for number in kept if number >= self._first_tag]
        text = self.preprocessor.join(self.subwords.decode([number for number in kept if number < self._first_tag]))
        return " ".join([*tags, text] if text else tags)

    def resample(self, sentences: Sequence[Sequence[int]], keys: Keys, dropout: float) -> list[list[int]]:
        """Sentences of ids segmented again by BPE-dropout, each decided by its key; tags stay where they are.

        A sentence with an unknown symbol, whose text is lost, stays as it is.
        """
        sampled = list(map(list, sentences))
        known = [i for i, ids in enumerate(sampled) if UNK not in ids]
        tags = [sum(number >= self._first_tag for number in sampled[i][:1]) for i in known]
        texts = [sampled[i][count:] for i, count in zip(known, tags, strict=True)]
        for i, count, ids in zip(known, tags, self.subwords.resample(texts, keys[known], dropout), strict=True):
            sampled[i] = sampled[i][:count] + ids
        return sampled

    def state(self) -> dict[str, Any]:
        return {
            "format": TOKENIZER_FORMAT,
            "kind": self.subwords.kind,
            **self.preprocessor.state(),
            "tags": list(self.tags),
            **self.subwords.state(),
        }

    def save(self, path: Path) -> None:
        write_json(path, self.state())

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            if (version := state.get("format")) != TOKENIZER_FORMAT:
                raise InputError(f"tokeniser format {version!r} is not known (this version reads {TOKENIZER_FORMAT})")
            preprocessor = Preprocessor(**{field.name: state[field.name] for field in fields(Preprocessor)})
            return cls(SUBWORDS[state["kind"]].from_state(state), preprocessor, state["tags"])
        except FileNotFoundError as error:
            raise InputError(f"there is no tokeniser at {path}") from error
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is not a tokeniser of deepnmt ({type(error).__name__}: {error})") from error


class TokenizerPair:
    """The tokenisers of both sides. `shared`: an id means the same piece on both, so embeddings may be tied."""

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self.source, self.target = source, target
        self.shared = source.pieces == target.pieces
        self.vocab_sizes = source.vocab_size, target.vocab_size

    def save(self, folder: Path) -> None:
        self.source.save(folder / "tokenizer.source.json")
        self.target.save(folder / "tokenizer.target.json")

    @classmethod
    def load(cls, folder: Path) -> "TokenizerPair":
        return cls(*(Tokenizer.load(folder / f"tokenizer.{side}.json") for side in ("source", "target")))
