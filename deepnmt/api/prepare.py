"""`deepnmt.prepare`: raw parallel text becomes a DATASET folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepnmt.data.dataset import Dataset
from deepnmt.data.parallel import ParallelFile
from deepnmt.data.prepare import CorpusInput, make_dataset
from deepnmt.data.prepare_settings import PrepareSettings
from deepnmt.errors import InputError

Paths = str | Path | Sequence[str | Path]


def prepare(
    *,
    out: str | Path,
    source_lang: str,
    target_lang: str,
    source: Paths = (),
    target: Paths = (),
    tsv: Paths = (),
    corpora: Mapping[str, tuple[str | Path, str | Path]] | None = None,
    weights: Mapping[str, float] | None = None,
    tags: Mapping[str, str] | None = None,
    valid_source: Paths = (),
    valid_target: Paths = (),
    valid_tsv: Paths = (),
    test_source: Paths = (),
    test_target: Paths = (),
    test_tsv: Paths = (),
    workers: int | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Dataset:
    """Clean parallel text, learn subwords, encode it, and write everything to the folder `out`.

    Text is one file or several (plain, .gz, .xz, .bz2, .zst): `source` and `target` line by line, or `tsv` with both in
    two columns; these are the training corpus called `train`. `corpora` are further ones by name, each a pair of files;
    `weights` and `tags` are by the name of a corpus. `settings` are the fields of `PrepareSettings`, such as
    `vocab_size=8000` or `vocab_size=(8000, 6000)`. `workers` is the number of processes (default: all cores); the
    dataset does not depend on it.
    """
    files = {"train": _pair_files("", source, target, tsv)}
    for name, pair in (corpora or {}).items():
        if files.get(name):
            raise InputError(f"two corpora are called {name!r}")
        files[name] = (ParallelFile(*map(Path, pair)),)
    files = {name: listed for name, listed in files.items() if listed}
    for option, named in (("weights", weights), ("tags", tags)):
        for name in named or {}:
            if name not in files:
                raise InputError(f"{option} names corpus {name!r}; the corpora are {', '.join(files) or 'none'}")
    if workers is not None and workers < 1:
        raise InputError(f"workers = {workers} must be at least 1")
    return make_dataset(
        [
            CorpusInput(name=name, files=listed, weight=(weights or {}).get(name, 1.0), tag=(tags or {}).get(name))
            for name, listed in files.items()
        ],
        PrepareSettings(source_lang=source_lang, target_lang=target_lang, **_as_tuples(settings)),
        Path(out),
        valid=_pair_files("valid_", valid_source, valid_target, valid_tsv),
        test=_pair_files("test_", test_source, test_target, test_tsv),
        workers=workers,
        overwrite=overwrite,
    )


def _pair_files(prefix: str, source: Paths, target: Paths, tsv: Paths) -> tuple[ParallelFile, ...]:
    sources, targets = _paths(source), _paths(target)
    if len(sources) != len(targets):
        raise InputError(f"{prefix}source has {len(sources)} files and {prefix}target {len(targets)}; they go in pairs")
    pairs = [ParallelFile(*pair) for pair in zip(sources, targets, strict=True)]
    return (*pairs, *map(ParallelFile, _paths(tsv)))


def _paths(paths: Paths) -> tuple[Path, ...]:
    return (Path(paths),) if isinstance(paths, str | Path) else tuple(map(Path, paths))


def _as_tuples(settings: dict[str, Any]) -> dict[str, Any]:
    """One value where `PrepareSettings` has a tuple stands for itself."""
    made = dict(settings)
    for name in ("tokenizer", "codes"):
        if name in made:
            made[name] = _paths(made[name])
    for name in ("vocab_size", "pretokenizer", "keep"):
        if name in made:
            made[name] = (made[name],) if isinstance(made[name], str | int) else tuple(made[name])
    return made
