"""Raw parallel text to a DATASET folder: clean, learn subwords, encode; nothing is left half-written.

Three passes over chunks of pairs, on all cores and with results in order: the dataset does not depend on the number of
workers, nor memory on the size of the text.
"""

import errno
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import accumulate, chain
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepnmt import __version__
from deepnmt.data import learning
from deepnmt.data.cleaning import Keys, ReasonCounts, SeenKeys, pair_keys
from deepnmt.data.dataset import DATASET_FORMAT, CorpusWriter, Dataset, train_file_name
from deepnmt.data.held_out import HeldOut, keys_by_language, overlaps, sample, write_held_out
from deepnmt.data.parallel import (
    CHUNK_PAIRS,
    TWO_COLUMNS,
    ParallelFile,
    RawChunk,
    parallel_chunks,
    warn_of_misalignment,
)
from deepnmt.data.passes import CleanChunk, Cleaner, SpoolChunk, count_words, encode
from deepnmt.data.prepare_settings import REASONS, PrepareSettings
from deepnmt.data.split_text import warn_of_split_text
from deepnmt.data.subword_nmt import Codes
from deepnmt.data.subwords import Subwords
from deepnmt.data.tokenizer import LanguageTags, Preprocessor, Tokenizer, TokenizerPair
from deepnmt.data.vocabulary import SPECIAL_PIECES, UNK
from deepnmt.data.worker_pool import WorkerPool
from deepnmt.devices import available_cores
from deepnmt.errors import InputError, RunError
from deepnmt.files import check_out, remove_leftovers, replacing, write_json
from deepnmt.languages import code_named
from deepnmt.progress import progress, say
from deepnmt.text import check_readable

_CHUNKS_COUNTED = 5

# Of a target language, before the source (Johnson et al. 2017, https://arxiv.org/abs/1611.04558).
LANGUAGE_TAG = "<2{}>"

Languages = tuple[str, str]  # source and target
Chunks = dict[str, list[SpoolChunk]]  # by corpus


@dataclass(frozen=True)
class CorpusInput:
    """A corpus: its files, its languages, its weight in the mixture, and the tag before its source sentences."""

    name: str
    files: tuple[ParallelFile, ...]
    languages: Languages
    weight: float = 1.0
    tag: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", self.name):
            raise InputError(f"corpus name {self.name!r} may only contain letters, digits, '_', '-' and '.'")
        for side, code in zip(("source_lang", "target_lang"), self.languages, strict=True):
            if not re.fullmatch(r"\w[\w@.-]*", code):
                raise InputError(f"{side} = {code!r} is not a language code, such as en or pt-BR")
            if known := code_named(code):
                raise InputError(f"{side} = {code!r} is not a language code; use {known}")
        if not 0 < self.weight < inf:
            raise InputError(f"the weight of corpus {self.name} is {self.weight}; it must be above zero and finite")
        if self.tag is not None and (self.tag.split() != [self.tag] or self.tag in SPECIAL_PIECES):
            raise InputError(
                f"the tag of corpus {self.name} is {self.tag!r}; it must be one word, not a special symbol"
            )


def make_dataset(
    corpora: list[CorpusInput],
    held_out: dict[str, list[CorpusInput]],
    settings: PrepareSettings,
    out: Path,
    *,
    workers: int | None = None,
    overwrite: bool = False,
) -> Dataset:
    """Write the DATASET folder `out` with this number of processes (default: all cores), and open it.

    Held-out sets have an entry for each direction, in which corpora may translate too.
    """
    if not corpora:
        raise InputError("no training text: give source and target, tsv or a corpus")
    if settings.hold_out and held_out["valid"]:
        raise InputError("hold_out takes the validation set from the training text: omit it, or valid_source")
    check_out(out, overwrite, "a dataset", "dataset.json")
    for corpus in (*corpora, *chain.from_iterable(held_out.values())):
        for path in (path for file in corpus.files for path in file.paths):
            check_readable(path)
        for file in (file for file in corpus.files if file.is_swapped(*corpus.languages)):
            source_lang, target_lang = corpus.languages
            say(f"{file.source} is given as {source_lang} and {file.target} as {target_lang}; are they swapped?")
    preparation = _Preparation(corpora, held_out, settings)
    remove_leftovers(out.resolve())
    try:
        with replacing(out) as folder:
            folder.mkdir()
            with WorkerPool(workers or available_cores()) as pool:
                meta = preparation.run(folder, pool)
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

    def __init__(
        self, corpora: list[CorpusInput], held_out: dict[str, list[CorpusInput]], settings: PrepareSettings
    ) -> None:
        self.corpora, self.held_out, self.settings = corpora, held_out, settings
        self.directions = list(dict.fromkeys(corpus.languages for corpus in corpora))
        self.dropped = {corpus.name: ReasonCounts() for corpus in corpora}
        self.sampled: dict[Languages, Keys] = {}  # the keys of the pairs held out
        self.tags = tuple(dict.fromkeys(corpus.tag for corpus in corpora if corpus.tag))
        self.preprocessors = [
            Preprocessor(language, settings.pretokenizer[i], settings.lowercase, settings.normalization)
            for language, i in zip(self.directions[0], (0, -1), strict=True)
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
            if len(self.directions) > 1 and not self.given.is_multilingual:
                self.given = self._tokenizers([self.given.source.subwords, self.given.target.subwords])
            for pair in self.directions:
                self.given.for_languages(*pair)  # raises now if it has no such language
        # Raises now if a language is not supported.
        self.cleaners = {pair: Cleaner(settings, self._preprocessors(pair)) for pair in self.directions}
        known = [set(side) for side in zip(*self.directions, strict=True)]
        for corpus in chain.from_iterable(held_out.values()):
            if not all(language in side for language, side in zip(corpus.languages, known, strict=True)):
                listed = ", ".join(map(" to ".join, self.directions))
                raise InputError(f"{corpus.files[0]} is {' to '.join(corpus.languages)}; the training text is {listed}")

    def _preprocessors(self, languages: Languages) -> list[Preprocessor]:
        return [replace(side, language=code) for side, code in zip(self.preprocessors, languages, strict=True)]

    def run(self, folder: Path, workers: WorkerPool) -> dict[str, Any]:
        """Write everything but dataset.json to the folder, and return the content of that."""
        self.folder, self.workers = folder, workers
        started = time.monotonic()
        held_out = {
            split: [self._held_out(corpus, self._chunks(corpus)) for corpus in corpora]
            for split, corpora in self.held_out.items()
        }
        if self.settings.hold_out:
            held_out["valid"] = [
                self._sample(self.settings.hold_out, pair, held_out["test"]) for pair in self.directions
            ]
        with tempfile.TemporaryDirectory(prefix="spool-", dir=folder) as spool:
            chunks = self._clean(Path(spool), [*held_out["valid"], *held_out["test"]])
            tokenizers = self.given or self._learn(chunks)
            tokenizers.save(folder)
            train = [self._encode(corpus, chunks[corpus.name], tokenizers) for corpus in self.corpora]
        splits = {
            split: write_held_out(split, parts, folder, tokenizers, self.settings) if parts else None
            for split, parts in held_out.items()
        }
        source_lang, target_lang = self.directions[0]
        return {
            "format": DATASET_FORMAT,
            "deepnmt": __version__,
            "source_lang": source_lang,
            "target_lang": target_lang,
            "directions": self.directions,
            "settings": self.settings.table(),
            "shared_vocabulary": tokenizers.shared,
            "source_vocab_size": tokenizers.source.vocab_size,
            "target_vocab_size": tokenizers.target.vocab_size,
            "tokenizer": self.tokenizer_meta,
            "train": train,
            **splits,
            "cleaning": {name: dropped.table() for name, dropped in self.dropped.items()},
            "seconds": round(time.monotonic() - started, 1),
        }

    def _chunks(self, corpus: CorpusInput) -> Iterator[RawChunk]:
        chunks = warn_of_misalignment(parallel_chunks(corpus.files, CHUNK_PAIRS))
        return warn_of_split_text(chunks, corpus.languages)

    def _held_out(self, corpus: CorpusInput, chunks: Iterable[RawChunk]) -> HeldOut:
        return HeldOut(corpus.files, chunks, self._preprocessors(corpus.languages), self.known_tags)

    def _sample(self, count: int, languages: Languages, others: list[HeldOut]) -> HeldOut:
        """A validation set from the first corpus without a tag; back-translations have one."""
        untagged = [corpus for corpus in self.corpora if corpus.languages == languages and not corpus.tag]
        if not untagged:
            raise InputError("hold_out needs a corpus without a tag")
        chosen = sample(untagged[0].files, count, self.cleaners[languages], others)
        held_out = self._held_out(untagged[0], [chosen])
        self.sampled[languages] = pair_keys(*held_out.keys)
        return held_out

    def _clean(self, spool: Path, held_out: list[HeldOut]) -> Chunks:
        """First pass: write the kept pairs to the spool, chunk by chunk."""
        seen, held_out_keys = {languages: SeenKeys() for languages in self.directions}, keys_by_language(held_out)
        kept: Chunks = {corpus.name: [] for corpus in self.corpora}
        with progress("cleaning", unit="pairs") as shown:
            for corpus in self.corpora:
                dropped = self.dropped[corpus.name]
                for chunk in self.workers.in_order(self.cleaners[corpus.languages], self._chunks(corpus)):
                    pairs = len(chunk.numbers) + dropped.merge(chunk.dropped)
                    rows = self._without_repetitions(corpus, chunk, seen[corpus.languages], held_out_keys)
                    if len(rows):
                        path = spool / f"{corpus.name}-{len(kept[corpus.name])}"
                        path.write_bytes(b"".join(side[i] + b"\n" for side in chunk.lines for i in rows))
                        kept[corpus.name].append(SpoolChunk(path, chunk.file, chunk.numbers[rows]))
                    shown.advance(pairs)
                if not kept[corpus.name]:
                    raise InputError(_nothing_left(corpus, dropped))
        return kept

    def _without_repetitions(
        self, corpus: CorpusInput, chunk: CleanChunk, seen: SeenKeys, held_out: Mapping[str, Keys]
    ) -> npt.NDArray[np.int64]:
        """The pairs of a chunk that do not overlap with held-out sets and were not seen before."""
        reasons = np.full(len(chunk.numbers), "", "U9")
        pairs = pair_keys(*chunk.keys)
        repeated = ~seen.add(pairs)
        if "overlap" not in self.settings.keep:
            reasons[overlaps(chunk.keys, corpus.languages, held_out)] = "overlap"
        if "duplicate" not in self.settings.keep:
            reasons[repeated & (reasons == "")] = "duplicate"
        sampled = np.isin(pairs, self.sampled.get(corpus.languages, ()))
        reasons[sampled] = np.where(repeated[sampled], "duplicate", "held-out")
        for i in np.flatnonzero(reasons):
            texts = (side[i].decode("utf-8") for side in chunk.lines)
            self.dropped[corpus.name].add(str(reasons[i]), f"{chunk.file}:{chunk.numbers[i]}", *texts)
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
        return self._tokenizers(subwords)

    def _tokenizers(self, subwords: Sequence[Subwords]) -> TokenizerPair:
        """The source announces the target's language where there are several; its own needs no tag."""
        sources, targets = (list(dict.fromkeys(side)) for side in zip(*self.directions, strict=True))
        by_language = {code: LANGUAGE_TAG.format(code) for code in targets} if len(targets) > 1 else {}
        announced = LanguageTags("target", by_language) if by_language else None
        untagged, tags = sources if len(sources) > 1 else (), (*self.tags, *by_language.values())
        source = Tokenizer(subwords[0], self.preprocessors[0], tags, announced, untagged=untagged)
        return TokenizerPair(source, Tokenizer(subwords[1], self.preprocessors[1], tags))

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
            pair = tokenizers.for_languages(*corpus.languages)
            encode_chunk = partial(encode, pair, self.settings, corpus.tag)
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
            "languages": corpus.languages,
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
    reasons = ", ".join(f"{REASONS[reason]}: {count:,}" for reason, count in dropped.counts.items())
    remedy = f"; {TWO_COLUMNS}" if "columns" in dropped.counts else ""
    return f"no pair of corpus {corpus.name} ({corpus.files[0]}) is left after cleaning ({reasons}){remedy}"
