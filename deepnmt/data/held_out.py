"""Validation and test sets: every pair is kept, in order, with its original text; unusual pairs are only reported."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepnmt.data.cleaning import Judge, Keys, ReasonCounts, keys
from deepnmt.data.dataset import SIDES, CorpusWriter
from deepnmt.data.parallel import CHUNK_PAIRS, ParallelFile, parallel_chunks
from deepnmt.data.passes import flatten
from deepnmt.data.prepare_settings import CleaningSettings
from deepnmt.data.tokenizer import Preprocessor, TokenizerPair, split_tag
from deepnmt.errors import InputError
from deepnmt.files import write_text
from deepnmt.text import joined


class HeldOut:
    """The pairs of a held-out set, as text, words and keys of the words."""

    def __init__(
        self,
        split: str,
        files: tuple[ParallelFile, ...],
        preprocessors: Sequence[Preprocessor],
        tags: Sequence[str],
    ) -> None:
        self.split, self.files, self.noted = split, files, ReasonCounts()
        self.text: tuple[list[str], list[str]] = ([], [])
        judge = Judge(CleaningSettings(), ("", ""))
        for chunk in parallel_chunks(files, CHUNK_PAIRS):
            for number, columns in chunk.numbered():
                if len(columns) != 2:
                    raise InputError(f"line {number:,} of {chunk.file} has {len(columns)} columns instead of two")
                source, target = (column.decode("utf-8", "replace") for column in columns)
                self.text[0].append(source)
                self.text[1].append(target)
                if reason := judge(source, target):
                    self.noted.add(reason, f"{chunk.file.source}:{number}", source, target)
        tagged = [split_tag(line, tags) for line in self.text[0]]
        self.tags = [tag for tag, _ in tagged]
        self.words = (
            [preprocessors[0].split(rest) for _, rest in tagged],
            [preprocessors[1].split(line) for line in self.text[1]],
        )
        self.keys = [keys(line.encode("utf-8") for line in lines if line) for lines in self.words]

    def overlaps(self, source: Keys, target: Keys) -> npt.NDArray[np.bool_]:
        """True for training pairs that share a source or a target with this set."""
        return np.isin(source, self.keys[0]) | np.isin(target, self.keys[1])

    def write(self, folder: Path, tokenizers: TokenizerPair, settings: CleaningSettings) -> dict[str, Any]:
        """Store ids and text; returns the entry of dataset.json."""
        encoded = tokenizers.source.subwords.encode_lines(self.words[0])
        openings = {tag: array("I", tokenizers.source.opening(tag)).tobytes() for tag in {*self.tags}}
        source = flatten([openings[tag] + ids for tag, ids in zip(self.tags, encoded, strict=True)])
        target = flatten(tokenizers.target.subwords.encode_lines(self.words[1]), tokenizers.target.opening())
        with CorpusWriter(folder, self.split, tokenizers.vocab_sizes) as writer:
            writer.append(source, target)
        for side, lines in zip(SIDES, self.text, strict=True):
            write_text(folder / f"{self.split}.{side}.txt", joined(lines))
        lengths = np.maximum(source.lengths, target.lengths)
        if settings.length_unit == "words":
            lengths = np.array([max(len(s.split()), len(t.split())) for s, t in zip(*self.words, strict=True)])
        for i in np.flatnonzero(lengths > (settings.max_length or np.inf)):
            self.noted.add("too-long", f"{self.split} pair {i + 1}", self.text[0][i], self.text[1][i])
        files = [list(map(str, file.paths)) for file in self.files]
        return {"files": files, **writer.counts(), "noted": self.noted.table()}
