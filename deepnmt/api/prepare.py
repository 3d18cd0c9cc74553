"""`deepnmt.prepare`: raw parallel text to a DATASET folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepnmt.data.dataset import Dataset
from deepnmt.data.parallel import ParallelFile
from deepnmt.data.prepare import CorpusInput, make_dataset
from deepnmt.data.prepare_settings import PrepareSettings
from deepnmt.errors import InputError
from deepnmt.settings import from_table

Paths = str | Path | Sequence[str | Path]
SEVERAL = {"vocab_size", "pretokenizer", "keep", "tokenizer", "codes"}  # settings with several values


def prepare(
    *,
    out: str | Path,
    source_lang: str,
    target_lang: str,
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
    """
    languages = source_lang, target_lang
    files = {"train": _pair_files("", source, target, tsv, memory, languages)}
    for name, pair in (corpora or {}).items():
        if files.get(name):
            raise InputError(f"two corpora have the name {name!r}")
        if isinstance(pair, str | Path) or len(pair) != 2:
            raise InputError(f"corpus {name!r} must be a source file and a target file, not {pair!r}")
        files[name] = (ParallelFile(*map(Path, pair)),)
    files = {name: listed for name, listed in files.items() if listed}
    if workers is not None and workers < 1:
        raise InputError(f"workers = {workers} must be at least 1")
    held_out = {
        "valid": _pair_files("valid_", valid_source, valid_target, valid_tsv, valid_memory, languages),
        "test": _pair_files("test_", test_source, test_target, test_tsv, test_memory, languages),
    }
    listed = {name: _listed(settings[name]) for name in SEVERAL & settings.keys()}
    table = {"source_lang": source_lang, "target_lang": target_lang, **settings, **listed}
    weights, tags = weights or {}, tags or {}
    for option, names in (("weights", weights), ("tags", tags)):
        for name in names:
            if name not in files:
                raise InputError(f"{option} names corpus {name!r}; the corpora are {', '.join(files) or 'none'}")
    named = [CorpusInput(name, listed, weights.get(name, 1.0), tags.get(name)) for name, listed in files.items()]
    chosen = from_table(PrepareSettings, table)
    return make_dataset(named, held_out, chosen, Path(out), workers=workers, overwrite=overwrite)


def _pair_files(
    prefix: str, source: Paths, target: Paths, tsv: Paths, memory: Paths, languages: tuple[str, str]
) -> tuple[ParallelFile, ...]:
    sources, targets = _listed(source), _listed(target)
    if len(sources) != len(targets):
        files = "1 file" if len(sources) == 1 else f"{len(sources)} files"
        raise InputError(f"{prefix}source has {files} but {prefix}target has {len(targets)}")
    pairs = [*zip(sources, targets, strict=True), *zip(_listed(tsv))]
    memories = (ParallelFile(Path(path), languages=languages) for path in _listed(memory))
    return (*(ParallelFile(*map(Path, pair)) for pair in pairs), *memories)


def _listed(value: Any) -> Sequence[Any]:
    """Turn a single value into a list."""
    return [value] if isinstance(value, str | Path | int) else value
