"""A prepared dataset on disk: sentence pairs as flat, memory-mapped arrays of ids, and the description beside them.

A corpus NAME in a folder is five files: NAME.source.ids and NAME.target.ids (all sentences end to end, without eos,
uint16 or uint32 by the size of the vocabulary), NAME.source.offsets and NAME.target.offsets (int64, one more than
there are sentences), and NAME.json, written last, which says how long the others must be.
Training corpora are stored under `train_file_name`, so that a user may call one of them "valid".
"""

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from deepnmt.errors import InputError
from deepnmt.files import write_json

if TYPE_CHECKING:
    from deepnmt.data.tokenizer import TokenizerPair

DATASET_FORMAT = 1
SIDES = ("source", "target")
OFFSET = np.dtype("<i8")

Integers = npt.NDArray[np.integer[Any]]
Ids = npt.NDArray[np.unsignedinteger[Any]]
Offsets = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
Text = tuple[list[str], list[str]]
Flat = tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.integer[Any]]]  # all ids end to end, length of each sentence


def train_file_name(name: str) -> str:
    """The file name of the training corpus that dataset.json calls `name`."""
    return f"train.{name}"


class CorpusWriter:
    """Writes a corpus chunk by chunk in constant memory; leaving the block with an exception removes its files."""

    def __init__(self, folder: Path, name: str, vocab_sizes: tuple[int, int]) -> None:
        self.folder, self.name = folder, name
        self.pairs = 0
        self._sides = [
            _SideWriter(folder / f"{name}.{side}", size) for side, size in zip(SIDES, vocab_sizes, strict=True)
        ]

    def append(self, source: Flat, target: Flat) -> None:
        """Add a chunk of pairs given as (all ids end to end, the length of each sentence) per side."""
        if len(source[1]) != len(target[1]):
            raise ValueError(f"{len(source[1])} source sentences but {len(target[1])} target sentences")
        for side, (ids, lengths) in zip(self._sides, (source, target), strict=True):
            side.append(ids, lengths)
        self.pairs += len(source[1])

    @property
    def source_tokens(self) -> int:
        return self._sides[0].tokens

    @property
    def target_tokens(self) -> int:
        return self._sides[1].tokens

    def __enter__(self) -> "CorpusWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            for side in self._sides:
                side.close()
            if kind is None:
                described = {side: writer.describe() for side, writer in zip(SIDES, self._sides, strict=True)}
                write_json(self.folder / f"{self.name}.json", {"pairs": self.pairs, **described})
        except BaseException:
            self._remove()
            raise
        if kind is not None:
            self._remove()

    def _remove(self) -> None:
        for side in self._sides:
            side.remove()


class _SideWriter:
    """The ids and offsets of one side, with running checksums."""

    def __init__(self, stem: Path, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self.tokens = 0
        self._paths = [_beside(stem, "ids"), _beside(stem, "offsets")]
        self._files: list[BinaryIO] = []
        self._checksums = [0, 0]
        stem.parent.mkdir(parents=True, exist_ok=True)
        for path in self._paths:
            self._files.append(path.open("wb"))
        self._write(1, np.zeros(1, OFFSET))

    def append(self, ids: Integers, lengths: Integers) -> None:
        if ids.size != lengths.sum():
            raise ValueError(f"{ids.size} ids for sentences of {lengths.sum()} in all")
        if ids.size and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            raise ValueError(f"ids from {ids.min()} to {ids.max()} in a vocabulary of {self.vocab_size}")
        self._write(0, ids.astype(self.dtype))
        self._write(1, (self.tokens + np.cumsum(lengths, dtype=np.int64)).astype(OFFSET))
        self.tokens += ids.size

    def _write(self, which: int, array: npt.NDArray[Any]) -> None:
        content = array.tobytes()
        self._files[which].write(content)
        self._checksums[which] = zlib.crc32(content, self._checksums[which])

    def describe(self) -> dict[str, Any]:
        ids, offsets = self._checksums
        return {"tokens": self.tokens, "dtype": self.dtype.name, "ids_crc32": ids, "offsets_crc32": offsets}

    def close(self) -> None:
        for file in self._files:
            file.close()

    def remove(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)


class Corpus:
    """Pairs of id sequences, memory-mapped: opening reads only sizes."""

    def __init__(self, source: "Side", target: "Side") -> None:
        self.sides = {"source": source, "target": target}

    @classmethod
    def open(cls, folder: Path, name: str) -> "Corpus":
        path = folder / f"{name}.json"
        described = _read_json(path, f"corpus {name} of {folder}")
        try:
            pairs = int(described["pairs"])
            source, target = (
                Side.open(folder / f"{name}.{side}", pairs, int(described[side]["tokens"]), described[side]["dtype"])
                for side in SIDES
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} does not describe a corpus; prepare the dataset again") from error
        return cls(source, target)

    @classmethod
    def of(cls, source: Iterable[Sequence[int]], target: Iterable[Sequence[int]]) -> "Corpus":
        """A corpus in memory, from lists of ids."""
        sides = Side.of(source), Side.of(target)
        if len(sides[0].lengths) != len(sides[1].lengths):
            raise ValueError(f"{len(sides[0].lengths)} source sentences but {len(sides[1].lengths)} target sentences")
        return cls(*sides)

    def __len__(self) -> int:
        return len(self.sides["source"].offsets) - 1

    def source(self, index: int) -> Ids:
        return self.sides["source"][index]

    def target(self, index: int) -> Ids:
        return self.sides["target"][index]

    @property
    def source_lengths(self) -> Lengths:
        return self.sides["source"].lengths

    @property
    def target_lengths(self) -> Lengths:
        return self.sides["target"].lengths


@dataclass(frozen=True)
class Side:
    """One language of a corpus: sentence i is ids[offsets[i]:offsets[i + 1]]."""

    ids: Ids
    offsets: Offsets
    name: str = "ids"

    @classmethod
    def open(cls, stem: Path, pairs: int, tokens: int, dtype: str) -> "Side":
        ids = _map(_beside(stem, "ids"), np.dtype(dtype).newbyteorder("<"), tokens)
        offsets = _map(_beside(stem, "offsets"), OFFSET, pairs + 1)
        if offsets[0] != 0 or offsets[-1] != tokens:
            raise InputError(f"{_beside(stem, 'offsets')} does not fit its ids file; prepare the dataset again")
        return cls(ids, offsets, str(stem))

    @classmethod
    def of(cls, sentences: Iterable[Sequence[int]]) -> "Side":
        arrays = [np.asarray(sentence, np.uint32) for sentence in sentences]
        offsets = np.concatenate([[0], np.cumsum([len(array) for array in arrays], dtype=np.int64)]).astype(np.int64)
        return cls(np.concatenate([np.empty(0, np.uint32), *arrays]), offsets)

    def __getitem__(self, index: int) -> Ids:
        index = range(len(self.offsets) - 1)[index]
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @cached_property
    def lengths(self) -> Lengths:
        lengths = np.diff(self.offsets).astype(np.int32)
        if lengths.size and lengths.min() < 0:
            raise InputError(f"{self.name}.offsets is damaged: its offsets do not ascend; prepare the dataset again")
        return lengths


class Dataset:
    """A DATASET folder. All but the description is memory-mapped, or read on first use."""

    def __init__(
        self, folder: Path, meta: dict[str, Any], train: dict[str, Corpus], valid: Corpus | None, test: Corpus | None
    ) -> None:
        self.folder, self.meta, self.train, self.valid, self.test = folder, meta, train, valid, test

    @classmethod
    def open(cls, folder: Path) -> "Dataset":
        folder = Path(folder)
        meta = read_meta(folder)
        try:
            names = [entry["name"] for entry in meta["train"]]
            held_out = {split: Corpus.open(folder, split) if meta[split] is not None else None for split in HELD_OUT}
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{folder / 'dataset.json'} does not list its corpora; prepare the dataset again"
            ) from error
        train = {name: Corpus.open(folder, train_file_name(name)) for name in names}
        return cls(folder, meta, train, held_out["valid"], held_out["test"])

    @cached_property
    def tokenizers(self) -> "TokenizerPair":
        from deepnmt.data.tokenizer import TokenizerPair

        return TokenizerPair.load(self.folder)

    @cached_property
    def valid_text(self) -> Text | None:
        """The source and target lines of the validation set as the user wrote them."""
        return self._text("valid", self.valid)

    @cached_property
    def test_text(self) -> Text | None:
        return self._text("test", self.test)

    def _text(self, split: str, corpus: Corpus | None) -> Text | None:
        if corpus is None:
            return None
        source, target = (_read_lines(self.folder / f"{split}.{side}.txt", len(corpus)) for side in SIDES)
        return source, target

    def verify(self) -> None:
        """Read every byte and compare with the checksums made while writing."""
        names = [train_file_name(name) for name in self.train]
        names += [split for split in HELD_OUT if self.meta[split] is not None]
        for name in names:
            verify_corpus(self.folder, name)


HELD_OUT = ("valid", "test")


def read_meta(folder: Path) -> dict[str, Any]:
    """dataset.json of a DATASET folder; another folder or an unknown format is refused."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a dataset: there is no such folder; make one with `deepnmt prepare`")
    path = folder / "dataset.json"
    if not path.exists():
        raise InputError(f"{folder} is not a dataset: it has no dataset.json; make one with `deepnmt prepare`")
    meta = _read_json(path, f"dataset {folder}")
    version = meta.get("format")
    if version != DATASET_FORMAT:
        raise InputError(
            f"{path} has format {version!r}, and this version of deepnmt reads format {DATASET_FORMAT}; "
            "prepare the dataset again"
        )
    return meta


def verify_corpus(folder: Path, name: str) -> None:
    described = _read_json(folder / f"{name}.json", f"corpus {name} of {folder}")
    for side in SIDES:
        for kind in ("ids", "offsets"):
            path = folder / f"{name}.{side}.{kind}"
            if _checksum(path) != described[side][f"{kind}_crc32"]:
                raise InputError(f"{path} is damaged: its checksum differs; prepare the dataset again")


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _map(path: Path, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing; prepare the dataset again") from error
    if size != count * dtype.itemsize:
        raise InputError(
            f"{path} is damaged: {size:,} bytes where {count * dtype.itemsize:,} are expected; "
            "prepare the dataset again"
        )
    if count == 0:
        return np.empty(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype, mode="r", shape=(count,)).view(np.ndarray)


def _read_json(path: Path, what: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing, so {what} cannot be read; prepare the dataset again") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is damaged: not JSON ({error}); prepare the dataset again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged: not a JSON object; prepare the dataset again")
    return content


def _read_lines(path: Path, expected: int) -> list[str]:
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")[:-1]  # to the byte as written, a carriage return too
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing; prepare the dataset again") from error
    if len(lines) != expected:
        raise InputError(f"{path} has {len(lines):,} lines for {expected:,} pairs; prepare the dataset again")
    return lines


def _beside(stem: Path, kind: str) -> Path:
    return stem.with_name(f"{stem.name}.{kind}")
