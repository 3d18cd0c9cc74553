"""Validation and test sets: every pair is kept, in order, with its original text; odd ones are only reported."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepnmt.data.cleaning import Judge, Keys, ReasonCounts, SeenKeys, keys
from deepnmt.data.dataset import CorpusWriter
from deepnmt.data.parallel import ParallelFile, parallel_chunks
from deepnmt.data.passes import flatten, held_out_pairs
from deepnmt.data.prepare_settings import CleaningSettings
from deepnmt.data.tokenizer import Preprocessor, TokenizerPair, split_tag

Lengths = npt.NDArray[np.integer[Any]]
_CHUNK_PAIRS = 10_000


@dataclass
class HeldOut:
    """The pairs of a held-out set."""

    split: str
    files: tuple[ParallelFile, ...]
    text: tuple[list[str], list[str]]
    tags: list[str]
    words: tuple[list[str], list[str]]
    noted: ReasonCounts
    seen: tuple[SeenKeys, SeenKeys]

    @classmethod
    def read(
        cls,
        split: str,
        files: tuple[ParallelFile, ...],
        preprocessors: tuple[Preprocessor, Preprocessor],
        tags: Sequence[str],
    ) -> "HeldOut":
        judge = Judge(CleaningSettings(), ("", ""))
        noted = ReasonCounts()
        pairs: list[tuple[str, str]] = []
        for chunk in parallel_chunks(files, _CHUNK_PAIRS):
            for number, (source, target) in enumerate(held_out_pairs(chunk), start=chunk.first_line):
                pairs.append((source, target))
                reason = judge(source, target)
                if reason is not None:
                    noted.add(reason, f"{chunk.file.source}:{number}", source, target)
        source_text, target_text = map(list, zip(*pairs, strict=True))
        tagged = [split_tag(line, tags) for line in source_text]
        words = (
            [preprocessors[0].split(rest) for _, rest in tagged],
            [preprocessors[1].split(line) for line in target_text],
        )
        seen = (SeenKeys(), SeenKeys())
        for side, lines in zip(seen, words, strict=True):
            side.add(keys(line.encode("utf-8") for line in lines if line))
        return cls(split, files, (source_text, target_text), [tag for tag, _ in tagged], words, noted, seen)

    def overlaps(self, source: Keys, target: Keys) -> npt.NDArray[np.bool_]:
        """True for training pairs that share a source or a target with this set."""
        return self.seen[0].contains(source) | self.seen[1].contains(target)

    def write(self, folder: Path, tokenizers: TokenizerPair, settings: CleaningSettings) -> dict[str, Any]:
        """Store ids and text; returns the entry of dataset.json."""
        encoded = tokenizers.source.subwords.encode_lines(self.words[0])
        prefixes = {tag: np.uint32(tokenizers.source.tag_id(tag)).tobytes() for tag in {*self.tags} - {""}}
        source = flatten([prefixes.get(tag, b"") + ids for tag, ids in zip(self.tags, encoded, strict=True)])
        target = flatten(tokenizers.target.subwords.encode_lines(self.words[1]))
        sizes = (tokenizers.source.vocab_size, tokenizers.target.vocab_size)
        with CorpusWriter(folder, self.split, sizes) as writer:
            writer.append(source, target)
        for side, lines in zip(("source", "target"), self.text, strict=True):
            with (folder / f"{self.split}.{side}.txt").open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{line}\n" for line in lines)
        self._note_long(source[1], target[1], settings)
        return {
            "files": [
                [str(file.source), str(file.target)] if file.target else [str(file.source)] for file in self.files
            ],
            "pairs": writer.pairs,
            "source_tokens": writer.source_tokens,
            "target_tokens": writer.target_tokens,
            "noted": self.noted.table(),
        }

    def _note_long(self, source: Lengths, target: Lengths, settings: CleaningSettings) -> None:
        if settings.length_unit == "words":
            source, target = (np.array([len(line.split()) for line in side]) for side in self.words)
        for i in np.flatnonzero(np.maximum(source, target) > (settings.max_length or np.inf)):
            self.noted.add("too-long", f"{self.split} pair {i + 1}", self.text[0][i], self.text[1][i])
