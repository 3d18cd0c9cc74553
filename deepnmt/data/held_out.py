"""Validation and test sets: every pair is kept, in order, with its original text; unusual pairs are only reported.

A validation set may be a sample of the training text.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepnmt.data.cleaning import Judge, Keys, ReasonCounts, SeenKeys, keys, pair_keys
from deepnmt.data.dataset import SIDES, CorpusWriter, Side
from deepnmt.data.parallel import CHUNK_PAIRS, ParallelFile, RawChunk, parallel_chunks
from deepnmt.data.passes import Cleaner, flatten
from deepnmt.data.prepare_settings import CleaningSettings
from deepnmt.data.tokenizer import Preprocessor, TokenizerPair, split_tag
from deepnmt.errors import InputError
from deepnmt.files import write_text
from deepnmt.progress import progress
from deepnmt.text import joined

LEAST_REST = 5  # a sample is at most this part of the text
SPARE = 4  # candidates for each place in a sample, in case some are not clean


class HeldOut:
    """The pairs of a held-out set in one direction, as text, words and keys of the words."""

    def __init__(
        self,
        files: tuple[ParallelFile, ...],
        chunks: Iterable[RawChunk],
        preprocessors: Sequence[Preprocessor],
        tags: Sequence[str],
    ) -> None:
        self.files, self.noted = files, ReasonCounts()
        self.languages = preprocessors[0].language, preprocessors[1].language
        self.text: tuple[list[str], list[str]] = ([], [])
        judge = Judge(CleaningSettings(), ("", ""))
        for chunk in chunks:
            for number, columns in chunk.numbered():
                if len(columns) != 2:
                    raise InputError(f"line {number:,} of {chunk.file} has {len(columns)} columns instead of two")
                source, target = (column.decode("utf-8", "replace") for column in columns)
                self.text[0].append(source)
                self.text[1].append(target)
                if reason := judge(source, target):
                    self.noted.add(reason, f"{chunk.file.source}:{number}", source, target)
        tagged = (split_tag(line, tags) for line in self.text[0]), (("", line) for line in self.text[1])
        self.words = [
            [(tag, preprocessor.split(rest)) for tag, rest in lines]
            for preprocessor, lines in zip(preprocessors, tagged, strict=True)
        ]
        self.keys = [keys(line.encode("utf-8") for _, line in lines if line) for lines in self.words]

    def __len__(self) -> int:
        return len(self.text[0])

    def encode(self, tokenizers: TokenizerPair) -> tuple[Side, Side]:
        pair = tokenizers.for_languages(*self.languages)
        return flatten(pair.source.encode_words(self.words[0])), flatten(pair.target.encode_words(self.words[1]))

    def note_long(self, encoded: tuple[Side, Side], settings: CleaningSettings, where: str, before: int) -> None:
        """Note the pairs that a training corpus would drop; `before`: pairs before them in the set."""
        lengths = np.maximum(*(side.lengths for side in encoded))
        if settings.length_unit == "words":
            counts = ([len(line.split()) for _, line in lines] for lines in self.words)
            lengths = np.maximum(*map(np.array, counts))
        for i in np.flatnonzero(lengths > (settings.max_length or np.inf)):
            self.noted.add("too-long", f"{where} pair {before + i + 1}", self.text[0][i], self.text[1][i])


def keys_by_language(held_out: Iterable[HeldOut]) -> dict[str, Keys]:
    """The keys of all held-out text."""
    found: dict[str, list[Keys]] = {}
    for one in held_out:
        for language, side in zip(one.languages, one.keys, strict=True):
            found.setdefault(language, []).append(side)
    return {language: np.unique(np.concatenate(listed)) for language, listed in found.items()}


def overlaps(pairs: Sequence[Keys], languages: Sequence[str], held_out: Mapping[str, Keys]) -> npt.NDArray[np.bool_]:
    """True for pairs with a side that is held out in the same language; in any direction and on any side."""
    sides = zip(pairs, languages, strict=True)
    return np.logical_or(*(np.isin(side, held_out.get(language, ())) for side, language in sides))


def write_held_out(
    split: str, parts: Sequence[HeldOut], folder: Path, tokenizers: TokenizerPair, settings: CleaningSettings
) -> dict[str, Any]:
    """Store the ids and text of a set, one direction after the other; returns the entry of dataset.json."""
    noted = ReasonCounts()
    with CorpusWriter(folder, split, tokenizers.vocab_sizes) as writer:
        for part in parts:
            encoded = part.encode(tokenizers)
            part.note_long(encoded, settings, split, writer.pairs)
            writer.append(*encoded)
            noted.merge(part.noted)
    for i, side in enumerate(SIDES):
        write_text(folder / f"{split}.{side}.txt", joined([line for part in parts for line in part.text[i]]))
    return {
        "files": [list(map(str, file.paths)) for part in parts for file in part.files],
        **writer.counts(),
        "directions": [[*part.languages, len(part)] for part in parts],
        "noted": noted.table(),
    }


def sample(files: Sequence[ParallelFile], count: int, cleaner: Cleaner, others: Sequence[HeldOut]) -> RawChunk:
    """This number of different clean pairs: those with the smallest hashes, which are spread over the text.

    They do not depend on the order of the text, and most of them stay when text is added.
    """
    for path in (path for file in files for path in file.paths):
        if not path.is_file():
            raise InputError(f"{path} is not a regular file; hold_out reads the text twice")
    found: dict[int, list[bytes]] = {}
    with progress("holding out", unit="pairs") as shown:
        for chunk in parallel_chunks(files, CHUNK_PAIRS):
            pairs = [columns for _, columns in chunk.numbered() if len(columns) == 2]
            found |= zip(keys(map(b"\t".join, pairs)).tolist(), pairs, strict=True)
            found = dict(nsmallest(SPARE * count, found.items()))
            shown.advance(len(chunk))
    text = " and ".join(map(str, files))
    if count > shown.done // LEAST_REST:
        raise InputError(
            f"hold_out = {count} is more than a fifth of the {shown.done:,} pairs of {text}; hold out fewer"
        )
    sides = [[pair[side] for pair in found.values()] for side in (0, 1)]
    clean = cleaner(RawChunk(files[0], 1, sides))
    usable = SeenKeys().add(pair_keys(*clean.keys))
    usable &= ~overlaps(clean.keys, cleaner.languages, keys_by_language(others))
    # In words, since there are no subwords yet: what is too long in words is too long in any unit.
    lengths = ([line.count(b" ") + 1 for line in lines] for lines in clean.lines)
    judged = [cleaner.settings.judge_lengths(*pair) for pair in zip(*lengths, strict=True)]
    usable &= np.array([reason is None for reason in judged], bool)
    rows = clean.numbers[usable][:count] - 1
    if len(rows) < count:
        tried = f"{len(found):,} pairs of {text}"
        raise InputError(f"hold_out = {count}, but of {tried} that were tried only {len(rows):,} are clean")
    return RawChunk(ParallelFile(Path("valid")), 1, [[side[row] for row in rows] for side in sides])
