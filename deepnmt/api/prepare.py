"""`deepnmt.prepare`: raw parallel text to a DATASET folder."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepnmt.data.dataset import Dataset
from deepnmt.data.parallel import ParallelFile
from deepnmt.data.prepare import CorpusInput, Languages, make_dataset
from deepnmt.data.prepare_settings import PrepareSettings
from deepnmt.errors import InputError
from deepnmt.settings import from_table

Paths = str | Path | Sequence[str | Path]
Directions = Mapping[tuple[str, str], tuple[Paths, Paths]]  # source and target files by source and target language
SEVERAL = {"vocab_size", "pretokenizer", "keep", "tokenizer", "codes"}  # settings with several values


def prepare(
    *,
    out: str | Path,
    source_lang: str | None = None,
    target_lang: str | None = None,
    source: Paths = (),
    target: Paths = (),
    tsv: Paths = (),
    memory: Paths = (),
    corpora: Mapping[str, tuple[str | Path, str | Path]] | None = None,
    weights: Mapping[str, float] | None = None,
    tags: Mapping[str, str] | None = None,
    valid_source: Paths = (),
    valid_target: Paths = (),
    valid_tsv: Paths = (),
    valid_memory: Paths = (),
    test_source: Paths = (),
    test_target: Paths = (),
    test_tsv: Paths = (),
    test_memory: Paths = (),
    directions: Directions | None = None,
    valid_directions: Directions | None = None,
    test_directions: Directions | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Dataset:
    """Clean parallel text, learn subwords, encode it, and write everything to the DATASET folder `out`.

    `source_lang` and `target_lang` are codes, such as en and pt-BR.

    Text is one or several files (plain, .gz, .xz, .bz2, .zst): `source` and `target` with corresponding lines, `tsv`
    with two columns, or `memory` (TMX or XLIFF). These form the training corpus called `train`; `corpora` adds others
    by name, each a pair of files, and `weights` and `tags` are by corpus name. The validation set is `valid_source` and
    `valid_target`, `valid_tsv` or `valid_memory`, or `hold_out=2000` takes one out of the training text; a test set is
    `test_source` and `test_target`, `test_tsv` or `test_memory`. `settings` are the fields of `PrepareSettings`, such
    as `vocab_size=8000` or `vocab_size=(8000, 6000)`. `workers` is the number of processes (default: all cores); it
    does not affect the result. `overwrite` replaces an existing DATASET.

    For a multilingual model, `directions` has the training text by languages, {("en", "de"): (source, target)}, instead
    of all of this, and `valid_directions` and `test_directions` the other sets; the corpora are called `en-de` and so
    on. `hold_out` then counts for each direction.
    """
    bilingual = {
        "train": (source, target, tsv, memory),
        "valid": (valid_source, valid_target, valid_tsv, valid_memory),
        "test": (test_source, test_target, test_tsv, test_memory),
    }
    several = {"train": directions, "valid": valid_directions, "test": test_directions}
    if any(several.values()):
        _refuse_beside_directions(source_lang, target_lang, corpora, tags, *map(any, bilingual.values()))
        inputs = {split: _directions(listed or {}) for split, listed in several.items()}
    else:
        inputs = _one_direction(source_lang, target_lang, bilingual, corpora or {})
    if workers is not None and workers < 1:
        raise InputError(f"workers = {workers} must be at least 1")
    listed = {name: _listed(settings[name]) for name in SEVERAL & settings.keys()}
    chosen = from_table(PrepareSettings, {**settings, **listed})
    train = _mixed(inputs.pop("train"), weights or {}, tags or {})
    return make_dataset(train, inputs, chosen, Path(out), workers=workers, overwrite=overwrite)


def _refuse_beside_directions(*given: object) -> None:
    if any(given):
        raise InputError(
            "directions come with their languages and files: omit source_lang, target_lang, source, target, tsv, "
            "memory, corpora and tags"
        )


def _one_direction(
    source_lang: str | None,
    target_lang: str | None,
    files: Mapping[str, tuple[Paths, Paths, Paths, Paths]],
    corpora: Mapping[str, tuple[str | Path, str | Path]],
) -> dict[str, list[CorpusInput]]:
    """The corpora of each split, `files` by split; `corpora` are further ones for training."""
    if source_lang is None or target_lang is None:
        raise InputError("no languages: give source_lang and target_lang, or directions")
    languages = source_lang, target_lang
    inputs = {split: _bilingual(split, *given, languages) for split, given in files.items()}
    for name, pair in corpora.items():
        if isinstance(pair, str | Path) or len(pair) != 2:
            raise InputError(f"corpus {name!r} must be a source file and a target file, not {pair!r}")
        inputs["train"].append(CorpusInput(name, (ParallelFile(*map(Path, pair)),), languages))
    return inputs


def _directions(files: Directions) -> list[CorpusInput]:
    """A corpus for each direction, named by its languages."""
    found = []
    for languages, pair in files.items():
        if isinstance(languages, str) or len(languages) != 2 or isinstance(pair, str | Path) or len(pair) != 2:
            raise InputError(
                f"a direction is a pair of languages with its source and target files, not {languages!r}: {pair!r}"
            )
        name = re.sub(r"[^\w.-]", "_", "-".join(languages), flags=re.ASCII)
        found += _bilingual(name, *pair, (), (), languages)
    return found


def _mixed(corpora: list[CorpusInput], weights: Mapping[str, float], tags: Mapping[str, str]) -> list[CorpusInput]:
    """The corpora with their weights and tags."""
    names = [corpus.name for corpus in corpora]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two corpora have the name {name!r}")
    for option, given in (("weights", weights), ("tags", tags)):
        for name in given:
            if name not in names:
                raise InputError(f"{option} names corpus {name!r}; the corpora are {', '.join(names) or 'none'}")
    return [replace(corpus, weight=weights.get(corpus.name, 1.0), tag=tags.get(corpus.name)) for corpus in corpora]


def _bilingual(
    name: str, source: Paths, target: Paths, tsv: Paths, memory: Paths, languages: Languages
) -> list[CorpusInput]:
    """The corpus of these files, if there are any."""
    sources, targets = _listed(source), _listed(target)
    if len(sources) != len(targets):
        count, prefix = len(sources), "" if name == "train" else f"{name}_"
        files = "1 file" if count == 1 else f"{count} files"
        raise InputError(f"{prefix}source has {files} but {prefix}target has {len(targets)}")
    pairs = [*zip(sources, targets, strict=True), *zip(_listed(tsv))]
    memories = (ParallelFile(Path(path), languages=languages) for path in _listed(memory))
    found = (*(ParallelFile(*map(Path, pair)) for pair in pairs), *memories)
    return [CorpusInput(name, found, languages)] if found else []


def _listed(value: Any) -> Sequence[Any]:
    """Turn a single value into a list."""
    return [value] if isinstance(value, str | Path | int) else value
