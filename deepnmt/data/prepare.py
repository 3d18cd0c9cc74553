"""Raw parallel text to a DATASET folder: clean, learn subwords, encode; nothing is left half-written.

Three passes, each over chunks of pairs in all cores with results in order, so that the dataset does not depend on the
number of workers and memory does not depend on the size of the text.
"""

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepnmt import __version__
from deepnmt.data import learning
from deepnmt.data.cleaning import Judge, ReasonCounts, SeenKeys, pair_keys
from deepnmt.data.dataset import DATASET_FORMAT, CorpusWriter, Dataset, train_file_name
from deepnmt.data.held_out import HeldOut
from deepnmt.data.parallel import ParallelFile, parallel_chunks
from deepnmt.data.passes import CleanChunk, Cleaner, Encoder, WordCounter
from deepnmt.data.prepare_settings import REASONS, PrepareSettings
from deepnmt.data.spool import Spool
from deepnmt.data.subword_nmt import Codes
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.data.worker_pool import WorkerPool, apart
from deepnmt.devices import available_cores
from deepnmt.errors import InputError, RunError
from deepnmt.files import check_out, replacing, write_json
from deepnmt.progress import progress
from deepnmt.text import check_readable

CHUNK_PAIRS = 10_000
_CHUNKS_COUNTED = 5


@dataclass(frozen=True, kw_only=True)
class CorpusInput:
    """A training corpus: its files, its weight in the mixture, and the tag put before its sources."""

    name: str
    files: tuple[ParallelFile, ...]
    weight: float = 1.0
    tag: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", self.name):
            raise InputError(f"corpus name {self.name!r} may have letters, digits, '_', '-' and '.' only")
        if not self.weight > 0:
            raise InputError(f"the weight of corpus {self.name} is {self.weight}; it must be above zero")
        if self.tag is not None and (not self.tag or self.tag.split() != [self.tag]):
            raise InputError(f"the tag of corpus {self.name} is {self.tag!r}; it must be one word")


def make_dataset(
    corpora: list[CorpusInput],
    settings: PrepareSettings,
    out: Path,
    *,
    valid: tuple[ParallelFile, ...] = (),
    test: tuple[ParallelFile, ...] = (),
    workers: int | None = None,
    overwrite: bool = False,
) -> Dataset:
    """Write the DATASET folder `out` with this number of processes (default: all cores), and open it."""
    _check_corpora(corpora)
    check_out(out, overwrite, "a dataset", "dataset.json")
    files = [*valid, *test, *(file for corpus in corpora for file in corpus.files)]
    for path in {path for file in files for path in (file.source, file.target) if path}:
        check_readable(path)
    preparation = _Preparation(corpora, settings)
    _remove_leftovers(out.resolve())
    with _explaining_full_disk(out), replacing(out) as folder:
        folder.mkdir()
        with WorkerPool(workers or available_cores()) as pool:
            meta = preparation.run(folder, pool, {"valid": valid, "test": test})
        write_json(folder / "dataset.json", meta)
    return Dataset.open(out)


class _Preparation:
    """One call of `make_dataset`: what the passes hand to each other. Nothing is written before `run`."""

    folder: Path
    workers: WorkerPool

    def __init__(self, corpora: list[CorpusInput], settings: PrepareSettings) -> None:
        self.corpora, self.settings = corpora, settings
        self.dropped = {corpus.name: ReasonCounts() for corpus in corpora}
        self.read = dict.fromkeys(self.dropped, 0)
        self.tags = tuple(dict.fromkeys(corpus.tag for corpus in corpora if corpus.tag))
        preprocessors = _preprocessors(settings)
        self.given = learning.given(settings.tokenizer, preprocessors, self.tags) if settings.tokenizer else None
        self.codes = (Codes.read(settings.codes[0]), Codes.read(settings.codes[-1])) if settings.codes else None
        # A given tokeniser has its own normalisation and words.
        pair = self.given
        self.preprocessors = (pair.source.preprocessor, pair.target.preprocessor) if pair else preprocessors
        Judge(
            settings, (self.preprocessors[0].language, self.preprocessors[1].language)
        )  # refuses an unknown language now
        self.known_tags = pair.source.tags if pair else self.tags
        self.tokenizer_meta: dict[str, Any] = {"given": True} if pair else {}

    def run(
        self, folder: Path, workers: WorkerPool, held_out_files: dict[str, tuple[ParallelFile, ...]]
    ) -> dict[str, Any]:
        """Write all but dataset.json to the folder; returns the content of that."""
        self.folder, self.workers = folder, workers
        started = time.monotonic()
        held_out = {
            split: HeldOut.read(split, files, self.preprocessors, self.known_tags) if files else None
            for split, files in held_out_files.items()
        }
        with contextlib.ExitStack() as stack:
            spools = {
                corpus.name: stack.enter_context(Spool(self.folder, train_file_name(corpus.name)))
                for corpus in self.corpora
            }
            self._clean(spools, [one for one in held_out.values() if one])
            tokenizers = self.given or self._learn(spools)
            tokenizers.save(self.folder)
            train = [self._encode(corpus, spools[corpus.name], tokenizers) for corpus in self.corpora]
        splits = {
            split: one.write(self.folder, tokenizers, self.settings) if one else None for split, one in held_out.items()
        }
        return self._describe(tokenizers, train, splits, time.monotonic() - started)

    def _clean(self, spools: dict[str, Spool], held_out: list[HeldOut]) -> None:
        """First pass: write the pairs that are kept to the spool."""
        seen = SeenKeys()
        with progress("cleaning", unit="pairs") as shown:
            for corpus in self.corpora:
                chunks = parallel_chunks(corpus.files, CHUNK_PAIRS)
                spool, dropped = spools[corpus.name], self.dropped[corpus.name]
                for chunk in self.workers.in_order(Cleaner, (self.settings, self.preprocessors), chunks):
                    dropped.merge(chunk.dropped)
                    self.read[corpus.name] += chunk.pairs_read
                    self._spool(chunk, spool, seen, held_out, dropped)
                    shown.advance(chunk.pairs_read)
                spool.finish()
                if not spool.pairs:
                    raise InputError(_nothing_left(corpus, dropped))

    def _spool(
        self, chunk: CleanChunk, spool: Spool, seen: SeenKeys, held_out: list[HeldOut], dropped: ReasonCounts
    ) -> None:
        """Write a chunk without pairs that overlap with held-out sets or were seen before."""
        keep = self.settings.keep
        reasons = np.full(len(chunk.lines), "", "U9")
        if "overlap" not in keep:
            for one in held_out:
                reasons[one.overlaps(chunk.source_keys, chunk.target_keys)] = "overlap"
        if "duplicate" not in keep:
            fresh = seen.add(pair_keys(chunk.source_keys, chunk.target_keys))
            reasons[~fresh & (reasons == "")] = "duplicate"
        if not reasons.any():
            spool.append(chunk.source, chunk.target, chunk.file, chunk.lines)
            return
        source, target = (side.removesuffix(b"\n").split(b"\n") for side in (chunk.source, chunk.target))
        kept = np.flatnonzero(reasons == "")
        for i in np.flatnonzero(reasons):
            texts = (side[i].decode("utf-8") for side in (source, target))
            dropped.add(str(reasons[i]), f"{chunk.file}:{chunk.lines[i]}", *texts)
        source_text, target_text = (b"".join(side[i] + b"\n" for i in kept) for side in (source, target))
        spool.append(source_text, target_text, chunk.file, chunk.lines[kept])

    def _learn(self, spools: dict[str, Spool]) -> TokenizerPair:
        """Second pass: count words, and learn subwords from the counts."""
        settings = self.settings
        words, lines = self._count_words(spools)
        self.tokenizer_meta = {
            "given": False,
            "learnt_from_pairs": lines,
            "different_words": [len(side) for side in words],
        }
        if self.codes:
            subwords = learning.from_codes(self.codes, words, settings)
        elif self.workers.num_workers == 1:
            subwords = learning.learn(words, settings)
        else:
            different = len(words[0]) + len(words[1])
            with progress("learning subwords", different, unit="words") as shown:
                subwords = apart(learning.learn, words, settings, waiting=lambda: shown.advance(0))
                shown.advance(different)
        source, target = (
            Tokenizer(side, preprocessor, self.tags)
            for side, preprocessor in zip(subwords, self.preprocessors, strict=True)
        )
        return TokenizerPair(source, target)

    def _count_words(self, spools: dict[str, Spool]) -> tuple[tuple[dict[str, int], dict[str, int]], int]:
        total = sum(spool.pairs for spool in spools.values())
        stride = -(-total // self.settings.tokenizer_lines)
        words: tuple[dict[str, int], dict[str, int]] = ({}, {})
        lines = 0
        chunks = [chunk for spool in spools.values() for chunk in spool]
        # Several chunks at a time: most of the work is adding up the counts of the workers.
        groups = [chunks[start : start + _CHUNKS_COUNTED] for start in range(0, len(chunks), _CHUNKS_COUNTED)]
        with progress("counting words", total, unit="pairs") as shown:
            for *sides, counted, pairs in self.workers.in_order(WordCounter, (stride,), groups):
                for table, counts in zip(words, sides, strict=True):
                    for word, count in counts.items():
                        table[word] = table.get(word, 0) + count
                lines += counted
                shown.advance(pairs)
        return words, lines

    def _encode(self, corpus: CorpusInput, spool: Spool, tokenizers: TokenizerPair) -> dict[str, Any]:
        """Third pass: ids, flat and memory-mappable."""
        sizes = (tokenizers.source.vocab_size, tokenizers.target.vocab_size)
        dropped = self.dropped[corpus.name]
        unknown = np.zeros(2, np.int64)
        arguments = (tokenizers, self.settings, corpus.tag)
        with (
            progress(f"encoding {corpus.name}", spool.pairs, unit="pairs") as shown,
            CorpusWriter(self.folder, train_file_name(corpus.name), sizes) as writer,
        ):
            for chunk in self.workers.in_order(Encoder, arguments, spool):
                writer.append(chunk.source, chunk.target)
                dropped.merge(chunk.dropped)
                unknown += chunk.unknown
                shown.advance(chunk.pairs_read)
            if not writer.pairs:
                raise InputError(_nothing_left(corpus, dropped))
        return {
            "name": corpus.name,
            "files": [
                [str(file.source), str(file.target)] if file.target else [str(file.source)] for file in corpus.files
            ],
            "pairs_read": self.read[corpus.name],
            "pairs": writer.pairs,
            "source_tokens": writer.source_tokens,
            "target_tokens": writer.target_tokens,
            "source_unknown": int(unknown[0]),
            "target_unknown": int(unknown[1]),
            "weight": corpus.weight,
            "tag": corpus.tag,
        }

    def _describe(
        self, tokenizers: TokenizerPair, train: list[dict[str, Any]], splits: dict[str, Any], seconds: float
    ) -> dict[str, Any]:
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
            **splits,
            "cleaning": {name: dropped.table() for name, dropped in self.dropped.items()},
            "seconds": round(seconds, 1),
        }


def _nothing_left(corpus: CorpusInput, dropped: ReasonCounts) -> str:
    reasons = ", ".join(f"{REASONS[reason]} {count:,}" for reason, count in dropped.counts.items())
    return f"no pair of corpus {corpus.name} is left after cleaning ({reasons}): {corpus.files[0]}"


def _check_corpora(corpora: list[CorpusInput]) -> None:
    if not corpora:
        raise InputError("no training text: give source and target, tsv or a corpus")
    names = [corpus.name for corpus in corpora]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two corpora are called {name!r}")


def _preprocessors(settings: PrepareSettings) -> tuple[Preprocessor, Preprocessor]:
    source, target = (
        Preprocessor(
            language,
            pretokenizer=settings.pretokenizer[i],
            lowercase=settings.lowercase,
            normalization=settings.normalization,
        )
        for language, i in ((settings.source_lang, 0), (settings.target_lang, -1))
    )
    return source, target


def _remove_leftovers(out: Path) -> None:
    """Remove what killed calls left next to `out`, but not what running ones write."""
    for folder in out.parent.glob(f".{out.name}.*.partial"):
        number = folder.name.split(".")[-2]
        if number.isdecimal() and not _is_running(int(number)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def _explaining_full_disk(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise RunError(f"no space left to write {out} ({error.strerror}); nothing was written") from error
        raise
