"""A prepared dataset on disk: sentence pairs as flat, memory-mapped arrays of ids, and their description.

A corpus NAME in a folder is five files: NAME.source.ids and NAME.target.ids (all sentences end to end, without eos,
uint16 or uint32 depending on the vocabulary size), NAME.source.offsets and NAME.target.offsets (int64, one more than
there are sentences), and NAME.json, written last, with the sizes and checksums of the others.
Training corpora are stored under `train_file_name`, so that a user may call one of them "valid".
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.errors import InputError
from deepnmt.files import read_json, write_json

DATASET_FORMAT = 1
SIDES = ("source", "target")
HELD_OUT = ("valid", "test")
ARRAYS = ("ids", "offsets")
AGAIN = "prepare the dataset again"
OFFSET = np.dtype("<i8")

Ids = npt.NDArray[np.integer[Any]]
Offsets = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
Text = tuple[list[str], list[str]]


def train_file_name(name: str) -> str:
    """The file name of the training corpus that dataset.json calls `name`."""
    return f"train.{name}"


@dataclass(frozen=True)
class Side:
    """Sentences of one language end to end, without eos: sentence i is ids[offsets[i]:offsets[i + 1]]."""

    ids: Ids
    offsets: Offsets
    name: str = "ids"

    @classmethod
    def open(cls, stem: str, pairs: int, tokens: int, dtype: str) -> "Side":
        ids = _map(Path(f"{stem}.ids"), np.dtype(dtype).newbyteorder("<"), tokens)
        offsets = _map(Path(f"{stem}.offsets"), OFFSET, pairs + 1)
        if offsets[0] != 0 or offsets[-1] != tokens:
            raise InputError(f"{stem}.offsets does not fit its ids file; {AGAIN}")
        return cls(ids, offsets, stem)

    @classmethod
    def of(cls, sentences: Iterable[Sequence[int] | Ids]) -> "Side":
        arrays = [np.asarray(sentence, np.uint32) for sentence in sentences]
        return cls.joined(np.concatenate([np.empty(0, np.uint32), *arrays]), list(map(len, arrays)))

    @classmethod
    def joined(cls, ids: Ids, lengths: Sequence[int] | Ids) -> "Side":
        """All ids end to end, and the length of each sentence."""
        return cls(ids, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        index = range(len(self))[index]
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @cached_property
    def lengths(self) -> Lengths:
        lengths = np.diff(self.offsets).astype(np.int32)
        if lengths.size and lengths.min() < 0:
            raise InputError(f"{self.name}.offsets is damaged: its offsets do not ascend; {AGAIN}")
        return lengths

    @property
    def tokens(self) -> int:
        """The number of ids, eos counted."""
        return len(self.ids) + len(self)

    def places(self, starts: Offsets) -> Offsets:
        """The place of each id in an array where sentence i begins at starts[i]."""
        return np.repeat(starts - self.offsets[:-1], self.lengths) + np.arange(len(self.ids))

    def take(self, sentences: slice | Ids) -> "Side":
        """These sentences in this order, copied without a loop over them."""
        starts = self.offsets[:-1][sentences]
        lengths = self.offsets[1:][sentences] - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return Side(self.ids[np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])], offsets)


class CorpusWriter:
    """Writes a corpus chunk by chunk in constant memory, with running checksums, and its description last."""

    def __init__(self, folder: Path, name: str, vocab_sizes: tuple[int, int]) -> None:
        self.pairs, self.tokens = 0, dict.fromkeys(SIDES, 0)
        self._stem, self._vocab_sizes = f"{folder / name}", dict(zip(SIDES, vocab_sizes, strict=True))
        self._dtypes = {side: np.dtype("<u2" if size <= 1 << 16 else "<u4") for side, size in self._vocab_sizes.items()}
        paths = {(side, kind): Path(f"{self._stem}.{side}.{kind}") for side, kind in product(SIDES, ARRAYS)}
        self._files = {names: path.open("wb") for names, path in paths.items()}
        self._checksums = dict.fromkeys(self._files, 0)
        for side in SIDES:
            self._write(side, "offsets", np.zeros(1, OFFSET))

    def append(self, source: Side, target: Side) -> None:
        for name, side in zip(SIDES, (source, target), strict=True):
            ids, size = side.ids, self._vocab_sizes[name]
            if ids.size and not 0 <= ids.min() <= ids.max() < size:
                raise ValueError(f"ids from {ids.min()} to {ids.max()} in a vocabulary of {size}")
            self._write(name, "ids", ids.astype(self._dtypes[name]))
            self._write(name, "offsets", (self.tokens[name] + side.offsets[1:]).astype(OFFSET))
            self.tokens[name] += ids.size
        self.pairs += len(source)

    def _write(self, side: str, kind: str, array: npt.NDArray[Any]) -> None:
        content = array.tobytes()
        self._files[side, kind].write(content)
        self._checksums[side, kind] = zlib.crc32(content, self._checksums[side, kind])

    def counts(self) -> dict[str, int]:
        return {"pairs": self.pairs, **{f"{side}_tokens": count for side, count in self.tokens.items()}}

    def __enter__(self) -> "CorpusWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        for file in self._files.values():
            file.close()
        if kind is None:
            sides = {
                side: {
                    "tokens": self.tokens[side],
                    "dtype": self._dtypes[side].name,
                    **{f"{kind}_crc32": self._checksums[side, kind] for kind in ARRAYS},
                }
                for side in SIDES
            }
            write_json(Path(f"{self._stem}.json"), {"pairs": self.pairs, **sides})


@dataclass(frozen=True)
class Corpus:
    """Pairs of id sequences, memory-mapped: opening reads only sizes."""

    source: Side
    target: Side
    checksum: int | None = field(default=None, kw_only=True)  # of the ids, as stored; None in memory

    @classmethod
    def open(cls, folder: Path, name: str) -> "Corpus":
        path = folder / f"{name}.json"
        try:
            described = read_json(path, AGAIN)
            pairs = int(described["pairs"])
            source, target = (
                Side.open(f"{folder / name}.{side}", pairs, int(described[side]["tokens"]), described[side]["dtype"])
                for side in SIDES
            )
            checksum = described["source"]["ids_crc32"] << 32 | described["target"]["ids_crc32"]
        except FileNotFoundError as error:
            raise InputError(f"{error.filename} does not exist; {AGAIN}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is damaged: it does not describe a corpus; {AGAIN}") from error
        return cls(source, target, checksum=checksum)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.source, self.target


class Direction(NamedTuple):
    """The lines of a held-out set from one language to another, as the user wrote them."""

    languages: tuple[str, str]
    source: list[str]
    target: list[str]

    def first(self, count: int | None) -> "Direction":
        return Direction(self.languages, self.source[:count], self.target[:count])


@dataclass
class Dataset:
    """A DATASET folder; everything but the description is memory-mapped or read on first use."""

    folder: Path
    meta: dict[str, Any]
    train: dict[str, Corpus]
    valid: Corpus | None
    test: Corpus | None

    @classmethod
    def open(cls, folder: Path) -> "Dataset":
        folder = Path(folder)
        meta = read_meta(folder)
        try:
            train = {entry["name"]: Corpus.open(folder, train_file_name(entry["name"])) for entry in meta["train"]}
            valid, test = (None if meta[split] is None else Corpus.open(folder, split) for split in HELD_OUT)
        except (KeyError, TypeError) as error:
            raise InputError(f"{folder / 'dataset.json'} does not list its corpora; {AGAIN}") from error
        return cls(folder, meta, train, valid, test)

    @cached_property
    def tokenizers(self) -> TokenizerPair:
        return TokenizerPair.load(self.folder)

    @cached_property
    def valid_text(self) -> Text | None:
        """The source and target lines of the validation set as the user wrote them."""
        return None if self.valid is None else self._text("valid", len(self.valid))

    @cached_property
    def valid_directions(self) -> list[Direction]:
        """The lines of the validation set by direction; none without one."""
        if self.valid_text is None:
            return []
        languages = self.tokenizers.source.language, self.tokenizers.target.language
        listed = self.meta["valid"].get("directions", [[*languages, len(self.valid_text[0])]])
        ends = list(accumulate(pairs for *_, pairs in listed))
        source, target = self.valid_text
        return [
            Direction((first, second), source[end - pairs : end], target[end - pairs : end])
            for (first, second, pairs), end in zip(listed, ends, strict=True)
        ]

    @cached_property
    def test_text(self) -> Text | None:
        return None if self.test is None else self._text("test", len(self.test))

    def _text(self, split: str, pairs: int) -> Text:
        sides = []
        for side in SIDES:
            path = self.folder / f"{split}.{side}.txt"
            if not path.exists():
                raise InputError(f"{path} does not exist; {AGAIN}")
            lines = path.read_bytes().decode("utf-8").split("\n")[:-1]  # exactly as written, with carriage returns
            if len(lines) != pairs:
                raise InputError(f"{path} has {len(lines):,} lines for {pairs:,} pairs; {AGAIN}")
            sides.append(lines)
        return sides[0], sides[1]

    def verify(self) -> None:
        """Compare every array with the checksum stored when it was written; reads all of the data once."""
        corpora = {train_file_name(name): corpus for name, corpus in self.train.items()}
        for name, corpus in (corpora | {"valid": self.valid, "test": self.test}).items():
            if corpus is None:
                continue
            described = read_json(self.folder / f"{name}.json", AGAIN)
            for side, kind in product(SIDES, ARRAYS):
                if zlib.crc32(getattr(getattr(corpus, side), kind)) != described[side][f"{kind}_crc32"]:
                    raise InputError(f"{self.folder / name}.{side}.{kind} is damaged: its checksum differs; {AGAIN}")


def read_meta(folder: Path) -> dict[str, Any]:
    """Read dataset.json; a folder that is not a dataset or has an unknown format is an error."""
    path = folder / "dataset.json"
    if not path.exists():
        why = "it has no dataset.json" if folder.is_dir() else "there is no such folder"
        why = "it is a file" if folder.is_file() else why
        raise InputError(f"{folder} is not a dataset: {why}; make one with `deepnmt prepare`")
    meta = read_json(path, AGAIN)
    if (version := meta.get("format")) != DATASET_FORMAT:
        raise InputError(f"{path} has format {version!r}; this version of deepnmt reads {DATASET_FORMAT}: {AGAIN}")
    return meta


def _map(path: Path, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    size, expected = path.stat().st_size, count * dtype.itemsize
    if size != expected:
        raise InputError(f"{path} is damaged: {size:,} bytes where {expected:,} are expected; {AGAIN}")
    if count == 0:
        return np.empty(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype, mode="r", shape=(count,)).view(np.ndarray)
