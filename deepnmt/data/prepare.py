"""Raw parallel text to a DATASET folder: clean to a spool, learn subwords, encode; nothing is left half-written.

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from deepnmt import __version__
from deepnmt.data import learning
from deepnmt.data.cleaning import LANGUAGE_CHECKS, REASONS, UNAVOIDABLE, Account, Limits, SeenKeys, pair_keys
from deepnmt.data.dataset import DATASET_FORMAT, CorpusWriter, train_file_name
from deepnmt.data.held_out import HeldOut
from deepnmt.data.passes import CleanChunk, Cleaner, Encoder, WordCounter
from deepnmt.data.pretokenizer import PRETOKENIZERS
from deepnmt.data.spool import Spool
from deepnmt.data.subword_nmt import Codes
from deepnmt.data.text import ParallelFile, parallel_chunks
from deepnmt.data.tokenizer import NORMALIZATIONS, Tokenizer, TokenizerPair, Writing
from deepnmt.data.workers import Workers, apart
from deepnmt.devices import available_cores
from deepnmt.errors import InputError, RunError
from deepnmt.files import replacing, write_json
from deepnmt.progress import progress

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


@dataclass(frozen=True, kw_only=True)
class PrepareSettings:
    """Everything that decides what a dataset is, except the text itself. Pairs of values are (source, target)."""

    source_lang: str
    target_lang: str
    subwords: Literal["bpe", "unigram"] = "bpe"
    joint: bool = True
    vocab_sizes: tuple[int, int] = (32000, 32000)
    min_frequency: int = 5
    byte_fallback: bool = True
    character_coverage: float = 0.9999
    tokenizer_lines: int = 1_000_000
    tokenizer: tuple[Path, ...] = ()
    codes: tuple[Path, Path] | None = None
    pretokenizers: tuple[str, str] = ("none", "none")
    lowercase: bool = False
    normalization: str = "nfc"
    max_length: int = 100
    max_ratio: float = 3.0
    length_unit: Literal["subwords", "words"] = "subwords"
    language_check: str = "none"
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_choice("--pretokenizer", self.pretokenizers, PRETOKENIZERS)
        _check_choice("--normalization", [self.normalization], NORMALIZATIONS)
        _check_choice("--language-check", [self.language_check], LANGUAGE_CHECKS)
        _check_choice("--keep", self.keep, [reason for reason in REASONS if reason not in UNAVOIDABLE])
        if min(self.vocab_sizes) < 1 or self.max_length < 0 or self.min_frequency < 1 or self.tokenizer_lines < 1:
            raise InputError(
                "--vocab-size, --min-frequency and --tokenizer-lines must be at least 1, --max-length at least 0"
            )
        if self.max_ratio != 0 and self.max_ratio < 1:
            raise InputError(f"--max-ratio is {self.max_ratio}; it must be at least 1, or 0 for no limit")
        if not 0 < self.character_coverage <= 1:
            raise InputError(f"--character-coverage is {self.character_coverage}; it must be above 0 and at most 1")
        if self.tokenizer and self.codes:
            raise InputError("--tokenizer and --source-codes exclude each other")

    @property
    def limits(self) -> Limits:
        return Limits(
            max_length=self.max_length,
            max_ratio=self.max_ratio,
            length_unit=self.length_unit,
            keep=self.keep,
            language_check=self.language_check,
        )

    @property
    def writings(self) -> tuple[Writing, Writing]:
        source, target = (
            Writing(language, pretokenizer=name, lowercase=self.lowercase, normalization=self.normalization)
            for language, name in zip((self.source_lang, self.target_lang), self.pretokenizers, strict=True)
        )
        return source, target

    def table(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "tokenizer": [str(p) for p in self.tokenizer],
            "codes": [str(p) for p in self.codes or ()],
        }


def _check_choice(option: str, values: Any, choices: Any) -> None:
    for value in values:
        if value not in choices:
            raise InputError(f"{option} {value!r} is not known; one of {', '.join(choices)}")


def prepare(
    corpora: list[CorpusInput],
    settings: PrepareSettings,
    out: Path,
    *,
    valid: tuple[ParallelFile, ...] = (),
    test: tuple[ParallelFile, ...] = (),
    num_workers: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Make the DATASET folder `out`; returns the content of its dataset.json. No workers given means all cores."""
    _check_corpora(corpora)
    _check_out(out, overwrite)
    _remove_leftovers(out)
    with _explaining_full_disk(out), replacing(out) as folder:
        folder.mkdir()
        with Workers(num_workers or available_cores()) as workers:
            meta = _Preparation(corpora, settings, folder, workers).run({"valid": valid, "test": test})
        write_json(folder / "dataset.json", meta)
    return meta


class _Preparation:
    """One call of `prepare`: what the passes hand to each other."""

    def __init__(self, corpora: list[CorpusInput], settings: PrepareSettings, folder: Path, workers: Workers) -> None:
        self.corpora, self.settings, self.folder, self.workers = corpora, settings, folder, workers
        self.accounts = {corpus.name: Account() for corpus in corpora}
        self.read = dict.fromkeys(self.accounts, 0)
        self.tags = tuple(dict.fromkeys(corpus.tag for corpus in corpora if corpus.tag))
        self.given = learning.given(settings.tokenizer, settings.writings, self.tags) if settings.tokenizer else None
        self.codes = (Codes.read(settings.codes[0]), Codes.read(settings.codes[1])) if settings.codes else None
        # A tokeniser brings its own way of writing.
        pair = self.given
        self.writings = (pair.source.writing, pair.target.writing) if pair else settings.writings
        self.known_tags = pair.source.tags if pair else self.tags
        self.tokenizer_meta: dict[str, Any] = {"given": True} if pair else {}

    def run(self, held_out_files: dict[str, tuple[ParallelFile, ...]]) -> dict[str, Any]:
        started = time.monotonic()
        held_out = {
            split: HeldOut.read(split, files, self.writings, self.known_tags) if files else None
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
            split: one.write(self.folder, tokenizers, self.settings.limits) if one else None
            for split, one in held_out.items()
        }
        return self._describe(tokenizers, train, splits, time.monotonic() - started)

    def _clean(self, spools: dict[str, Spool], held_out: list[HeldOut]) -> None:
        """First pass: what stays goes to the spool."""
        seen = SeenKeys()
        with progress("cleaning", unit="pairs") as shown:
            for corpus in self.corpora:
                chunks = parallel_chunks(corpus.files, CHUNK_PAIRS)
                spool, account = spools[corpus.name], self.accounts[corpus.name]
                for chunk in self.workers.in_order(Cleaner, (self.settings.limits, self.writings), chunks):
                    account.merge(chunk.account)
                    self.read[corpus.name] += chunk.pairs_read
                    self._spool(chunk, spool, seen, held_out, account)
                    shown.advance(chunk.pairs_read)
                spool.finish()
                if not spool.pairs:
                    raise InputError(_nothing_left(corpus, account))

    def _spool(
        self, chunk: CleanChunk, spool: Spool, seen: SeenKeys, held_out: list[HeldOut], account: Account
    ) -> None:
        """Write a chunk without what occurs in the held-out sets or has been seen before."""
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
            account.add(str(reasons[i]), f"{chunk.file}:{chunk.lines[i]}", *texts)
        source_text, target_text = (b"".join(side[i] + b"\n" for i in kept) for side in (source, target))
        spool.append(source_text, target_text, chunk.file, chunk.lines[kept])

    def _learn(self, spools: dict[str, Spool]) -> TokenizerPair:
        """Second pass: count words, and learn subwords from the counts."""
        settings = self.settings
        words, lines = self._count_words(spools)
        how = learning.SubwordSettings(
            subwords=settings.subwords,
            joint=settings.joint,
            vocab_sizes=settings.vocab_sizes,
            min_frequency=settings.min_frequency,
            byte_fallback=settings.byte_fallback,
            character_coverage=settings.character_coverage,
        )
        self.tokenizer_meta = {
            "given": False,
            "learnt_from_pairs": lines,
            "different_words": [len(side) for side in words],
        }
        if self.codes:
            subwords = learning.from_codes(self.codes, words, how)
        elif self.workers.num_workers == 1:
            subwords = learning.learn(words, how)
        else:
            different = len(words[0]) + len(words[1])
            with progress("learning subwords", different, unit="words") as shown:
                subwords = apart(learning.learn, words, how, waiting=lambda: shown.advance(0))
                shown.advance(different)
        source, target = (
            Tokenizer(side, writing, self.tags) for side, writing in zip(subwords, self.writings, strict=True)
        )
        return TokenizerPair(source, target)

    def _count_words(self, spools: dict[str, Spool]) -> tuple[tuple[dict[str, int], dict[str, int]], int]:
        total = sum(spool.pairs for spool in spools.values())
        stride = -(-total // self.settings.tokenizer_lines)
        words: tuple[dict[str, int], dict[str, int]] = ({}, {})
        lines = 0
        chunks = [chunk for spool in spools.values() for chunk in spool]
        # Several chunks at a time: most of the work here is adding up the counts of the workers.
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
        account = self.accounts[corpus.name]
        unknown = np.zeros(2, np.int64)
        arguments = (tokenizers, self.settings.limits, corpus.tag)
        with (
            progress(f"encoding {corpus.name}", spool.pairs, unit="pairs") as shown,
            CorpusWriter(self.folder, train_file_name(corpus.name), sizes) as writer,
        ):
            for chunk in self.workers.in_order(Encoder, arguments, spool):
                writer.append_flat(chunk.source, chunk.target)
                account.merge(chunk.account)
                unknown += chunk.unknown
                shown.advance(chunk.pairs_read)
            if not writer.pairs:
                raise InputError(_nothing_left(corpus, account))
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
            "cleaning": {name: account.table() for name, account in self.accounts.items()},
            "seconds": round(seconds, 1),
        }


def _nothing_left(corpus: CorpusInput, account: Account) -> str:
    dropped = ", ".join(f"{REASONS[reason]} {count:,}" for reason, count in account.counts.items())
    return f"no pair of corpus {corpus.name} is left after cleaning ({dropped}): {corpus.files[0]}"


def _check_corpora(corpora: list[CorpusInput]) -> None:
    if not corpora:
        raise InputError("no training text: give --source and --target, --tsv or --corpus")
    names = [corpus.name for corpus in corpora]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two corpora are called {name!r}")


def _check_out(out: Path, overwrite: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"--out {out} is a file; give the name of a folder")
    if not any(out.iterdir()):
        return
    if not (out / "dataset.json").exists():
        raise InputError(f"--out {out} is a folder with other things in it; it is not replaced, even with --overwrite")
    if not overwrite:
        raise InputError(f"--out {out} is a dataset already; use --overwrite to replace it")


def _remove_leftovers(out: Path) -> None:
    """What a killed call left beside `out`; one that still runs is not touched."""
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
