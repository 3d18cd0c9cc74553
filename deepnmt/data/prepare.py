"""Raw parallel text to a DATASET folder: clean, learn subwords, encode; nothing is left half-written.

Three passes over chunks of pairs, on all cores and with results in order: the dataset does not depend on the number of
workers, nor memory on the size of the text.
"""

import errno
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepnmt import __version__
from deepnmt.data import learning
from deepnmt.data.cleaning import ReasonCounts, SeenKeys, pair_keys
from deepnmt.data.dataset import DATASET_FORMAT, CorpusWriter, Dataset, train_file_name
from deepnmt.data.held_out import HeldOut, sample
from deepnmt.data.parallel import CHUNK_PAIRS, ParallelFile, RawChunk, parallel_chunks
from deepnmt.data.passes import CleanChunk, Cleaner, SpoolChunk, count_words, encode
from deepnmt.data.prepare_settings import REASONS, PrepareSettings
from deepnmt.data.split_text import warn_of_split_text
from deepnmt.data.subword_nmt import Codes
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import SPECIAL_PIECES, UNK
from deepnmt.data.worker_pool import WorkerPool
from deepnmt.devices import available_cores
from deepnmt.errors import InputError, RunError
from deepnmt.files import check_out, remove_leftovers, replacing, write_json
from deepnmt.progress import progress
from deepnmt.text import check_readable

_CHUNKS_COUNTED = 5

Chunks = dict[str, list[SpoolChunk]]  # by corpus


@dataclass(frozen=True)
class CorpusInput:
    """A training corpus: its files, its weight in the mixture, and the tag before its source sentences."""

    name: str
    files: tuple[ParallelFile, ...]
    weight: float = 1.0
    tag: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", self.name):
            raise InputError(f"corpus name {self.name!r} may only contain letters, digits, '_', '-' and '.'")
        if not 0 < self.weight < inf:
            raise InputError(f"the weight of corpus {self.name} is {self.weight}; it must be above zero and finite")
        if self.tag is not None and (self.tag.split() != [self.tag] or self.tag in SPECIAL_PIECES):
            raise InputError(
                f"the tag of corpus {self.name} is {self.tag!r}; it must be one word, not a special symbol"
            )


def make_dataset(
    corpora: list[CorpusInput],
    held_out: dict[str, tuple[ParallelFile, ...]],
    settings: PrepareSettings,
    out: Path,
    *,
    workers: int | None = None,
    overwrite: bool = False,
) -> Dataset:
    """Write the DATASET folder `out` with this number of processes (default: all cores), and open it."""
    if not corpora:
        raise InputError("no training text: give source and target, tsv or a corpus")
    if settings.hold_out and held_out["valid"]:
        raise InputError("hold_out takes the validation set from the training text: omit it, or valid_source")
    check_out(out, overwrite, "a dataset", "dataset.json")
    for file in (file for files in (*held_out.values(), *(corpus.files for corpus in corpora)) for file in files):
        for path in file.paths:
            check_readable(path)
    preparation = _Preparation(corpora, settings)
    remove_leftovers(out.resolve())
    try:
        with replacing(out) as folder:
            folder.mkdir()
            with WorkerPool(workers or available_cores()) as pool:
                meta = preparation.run(folder, pool, held_out)
            write_json(folder / "dataset.json", meta)
            check_out(out, overwrite, "a dataset", "dataset.json")  # again: another process may have made it meanwhile
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise RunError(f"no space left to write {out} ({error.strerror}); nothing was written") from error
        raise
    return Dataset.open(out)


class _Preparation:
    """The state that the passes of one call share. Nothing is written before `run`."""

    folder: Path
    workers: WorkerPool

    def __init__(self, corpora: list[CorpusInput], settings: PrepareSettings) -> None:
        self.corpora, self.settings = corpora, settings
        self.dropped = {corpus.name: ReasonCounts() for corpus in corpora}
        self.sampled = np.empty(0, np.uint64)  # the keys of the pairs held out
        self.tags = tuple(dict.fromkeys(corpus.tag for corpus in corpora if corpus.tag))
        self.preprocessors = [
            Preprocessor(language, settings.pretokenizer[i], settings.lowercase, settings.normalization)
            for language, i in ((settings.source_lang, 0), (settings.target_lang, -1))
        ]
        self.codes = [Codes.read(settings.codes[i]) for i in (0, -1)] if settings.codes else None
        self.given = learning.given(settings.tokenizer, self.preprocessors, self.tags) if settings.tokenizer else None
        self.known_tags = self.given.source.tags if self.given else self.tags
        self.tokenizer_meta: dict[str, Any] = {"given": True} if self.given else {}
        if self.given:  # it has its own normalisation and words
            asked = self.preprocessors
            self.preprocessors = [self.given.source.preprocessor, self.given.target.preprocessor]
            for i in (0, -1):
                _refuse_contradictions(settings.tokenizer[i], asked[i], self.preprocessors[i])
        self.cleaner = Cleaner(settings, self.preprocessors)  # raises now if a language is not supported

    def run(
        self, folder: Path, workers: WorkerPool, held_out_files: dict[str, tuple[ParallelFile, ...]]
    ) -> dict[str, Any]:
        """Write everything but dataset.json to the folder, and return the content of that."""
        self.folder, self.workers = folder, workers
        started = time.monotonic()
        held_out = {
            split: HeldOut(split, files, self._chunks(files), self.preprocessors, self.known_tags)
            for split, files in held_out_files.items()
            if files
        }
        if self.settings.hold_out:
            held_out["valid"] = self._sample(self.settings.hold_out, list(held_out.values()))
        with tempfile.TemporaryDirectory(prefix="spool-", dir=folder) as spool:
            chunks = self._clean(Path(spool), list(held_out.values()))
            tokenizers = self.given or self._learn(chunks)
            tokenizers.save(folder)
            train = [self._encode(corpus, chunks[corpus.name], tokenizers) for corpus in self.corpora]
        splits = {split: one.write(folder, tokenizers, self.settings) for split, one in held_out.items()}
        return {
            "format": DATASET_FORMAT,
            "deepnmt": __version__,
            "source_lang": self.settings.source_lang,
            "target_lang": self.settings.target_lang,
            "settings": self.settings.table(),
            "shared_vocabulary": tokenizers.shared,
            "source_vocab_size": tokenizers.source.vocab_size,
            "target_vocab_size": tokenizers.target.vocab_size,
            "tokenizer": self.tokenizer_meta,
            "train": train,
            **{split: splits.get(split) for split in held_out_files},
            "cleaning": {name: dropped.table() for name, dropped in self.dropped.items()},
            "seconds": round(time.monotonic() - started, 1),
        }

    def _chunks(self, files: Sequence[ParallelFile]) -> Iterator[RawChunk]:
        languages = self.settings.source_lang, self.settings.target_lang
        return warn_of_split_text(parallel_chunks(files, CHUNK_PAIRS), languages)

    def _sample(self, count: int, others: list[HeldOut]) -> HeldOut:
        """A validation set from the first corpus without a tag; back-translations have one."""
        untagged = [corpus for corpus in self.corpora if not corpus.tag]
        if not untagged:
            raise InputError("hold_out needs a corpus without a tag")
        files = untagged[0].files
        chosen = sample(files, count, self.cleaner, others)
        held_out = HeldOut("valid", files, [chosen], self.preprocessors, self.known_tags)
        self.sampled = pair_keys(*held_out.keys)
        return held_out

    def _clean(self, spool: Path, held_out: list[HeldOut]) -> Chunks:
        """First pass: write the kept pairs to the spool, chunk by chunk."""
        seen = SeenKeys()
        kept: Chunks = {corpus.name: [] for corpus in self.corpora}
        with progress("cleaning", unit="pairs") as shown:
            for corpus in self.corpora:
                dropped = self.dropped[corpus.name]
                for chunk in self.workers.in_order(self.cleaner, self._chunks(corpus.files)):
                    pairs = len(chunk.numbers) + dropped.merge(chunk.dropped)
                    rows = self._without_repetitions(chunk, seen, held_out, dropped)
                    if len(rows):
                        path = spool / f"{corpus.name}-{len(kept[corpus.name])}"
                        path.write_bytes(b"".join(side[i] + b"\n" for side in chunk.lines for i in rows))
                        kept[corpus.name].append(SpoolChunk(path, chunk.file, chunk.numbers[rows]))
                    shown.advance(pairs)
                if not kept[corpus.name]:
                    raise InputError(_nothing_left(corpus, dropped))
        return kept

    def _without_repetitions(
        self, chunk: CleanChunk, seen: SeenKeys, held_out: list[HeldOut], dropped: ReasonCounts
    ) -> npt.NDArray[np.int64]:
        """The pairs of a chunk that do not overlap with held-out sets and were not seen before."""
        reasons = np.full(len(chunk.numbers), "", "U9")
        pairs = pair_keys(*chunk.keys)
        repeated = ~seen.add(pairs)
        if "overlap" not in self.settings.keep:
            for one in held_out:
                reasons[one.overlaps(*chunk.keys)] = "overlap"
        if "duplicate" not in self.settings.keep:
            reasons[repeated & (reasons == "")] = "duplicate"
        sampled = np.isin(pairs, self.sampled)
        reasons[sampled] = np.where(repeated[sampled], "duplicate", "held-out")
        for i in np.flatnonzero(reasons):
            texts = (side[i].decode("utf-8") for side in chunk.lines)
            dropped.add(str(reasons[i]), f"{chunk.file}:{chunk.numbers[i]}", *texts)
        return np.flatnonzero(reasons == "")

    def _learn(self, chunks: Chunks) -> TokenizerPair:
        """Second pass: count words, and learn subwords from the counts."""
        words, lines = self._count_words([chunk for listed in chunks.values() for chunk in listed])
        if not all(words):
            longest = f"{self.settings.longest_word():,} characters"
            raise InputError(
                f"every word is longer than {longest}, too long for max_length = {self.settings.max_length}"
            )
        different = [len(side) for side in words]
        self.tokenizer_meta = {"given": False, "learnt_from_pairs": lines, "different_words": different}
        if self.codes:
            subwords = learning.from_codes(self.codes, words, self.settings)
        else:
            with progress("learning subwords", sum(different), unit="words") as shown:
                (subwords,) = self.workers.in_order(partial(learning.learn, settings=self.settings), [words])
                shown.advance(sum(different))
        return TokenizerPair(*(Tokenizer(*side, self.tags) for side in zip(subwords, self.preprocessors, strict=True)))

    def _count_words(self, chunks: list[SpoolChunk]) -> tuple[tuple[dict[str, int], dict[str, int]], int]:
        *before, total = accumulate((len(chunk.numbers) for chunk in chunks), initial=0)
        stride = -(-total // self.settings.tokenizer_lines)
        words: tuple[dict[str, int], dict[str, int]] = ({}, {})
        lines = 0
        # Several chunks at a time, since most of the time goes into adding up the workers' counts.
        numbered = list(zip(before, chunks, strict=True))
        groups = [numbered[start : start + _CHUNKS_COUNTED] for start in range(0, len(chunks), _CHUNKS_COUNTED)]
        with progress("counting words", -(-total // stride), unit="pairs") as shown:
            count = partial(count_words, stride, self.settings.longest_word())
            for *sides, counted in self.workers.in_order(count, groups):
                for table, counts in zip(words, sides, strict=True):
                    for word, number in counts.items():
                        table[word] = table.get(word, 0) + number
                lines += counted
                shown.advance(counted)
        return words, lines

    def _encode(self, corpus: CorpusInput, chunks: list[SpoolChunk], tokenizers: TokenizerPair) -> dict[str, Any]:
        """Third pass: ids, flat and memory-mappable."""
        dropped = self.dropped[corpus.name]
        unknown = np.zeros(2, np.int64)
        with (
            progress(f"encoding {corpus.name}", sum(len(chunk.numbers) for chunk in chunks), unit="pairs") as shown,
            CorpusWriter(self.folder, train_file_name(corpus.name), tokenizers.vocab_sizes) as writer,
        ):
            encode_chunk = partial(encode, tokenizers, self.settings, corpus.tag)
            for source, target, too_long in self.workers.in_order(encode_chunk, chunks):
                writer.append(source, target)
                unknown += [np.count_nonzero(side.ids == UNK) for side in (source, target)]
                shown.advance(len(source) + dropped.merge(too_long))
            if not writer.pairs:
                raise InputError(_nothing_left(corpus, dropped))
        return {
            "name": corpus.name,
            "files": [list(map(str, file.paths)) for file in corpus.files],
            "pairs_read": writer.pairs + dropped.counts.total(),
            **writer.counts(),
            "source_unknown": int(unknown[0]),
            "target_unknown": int(unknown[1]),
            "weight": corpus.weight,
            "tag": corpus.tag,
        }


def _refuse_contradictions(tokenizer: Path, asked: Preprocessor, given: Preprocessor) -> None:
    """A given tokeniser keeps its own preprocessing: another one that was asked for would have no effect."""
    if asked.language != given.language:
        raise InputError(f"{tokenizer} is a tokeniser for {given.language}, not {asked.language}")
    for field in fields(Preprocessor):
        wanted, has = getattr(asked, field.name), getattr(given, field.name)
        if wanted not in (field.default, has):
            raise InputError(
                f"{field.name} = {str(wanted).lower()} has no effect on a given tokeniser, and {tokenizer} has "
                f"{str(has).lower()}; omit it, or learn new subwords"
            )


def _nothing_left(corpus: CorpusInput, dropped: ReasonCounts) -> str:
    reasons = ", ".join(f"{REASONS[reason]} {count:,}" for reason, count in dropped.counts.items())
    return f"no pair of corpus {corpus.name} is left after cleaning {corpus.files[0]} ({reasons})"
