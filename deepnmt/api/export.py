"""`deepnmt.export`: export a MODEL to another runtime, verified against the original."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepnmt.decoding.export import DESCRIPTION, FORMATS
from deepnmt.decoding.export import export as export_model
from deepnmt.decoding.export.argos import SUFFIX, check_package, export_package
from deepnmt.decoding.export.comparison import Agreement
from deepnmt.errors import InputError
from deepnmt.files import check_out
from deepnmt.progress import say


@dataclass(frozen=True)
class Export:
    """The folder or file written, and its agreement with the model; None if the runtime is not installed."""

    path: Path
    agreement: Agreement | None


def export(
    model: str | Path,
    out: str | Path | None = None,
    *,
    to: str,
    argos: bool = False,
    sentences: Sequence[str] = (),
    overwrite: bool = False,
) -> Export:
    """Export the MODEL folder `model` to the format `to`, with everything needed to translate.

    If the package that runs the format is installed, the export is kept only if it agrees with the model on random
    sources and on `sentences`. `out` defaults to the model's folder name followed by the format. `argos` packs an
    export to CTranslate2 into one file for Argos Translate and LibreTranslate. `overwrite` replaces an earlier export.
    """
    if to not in FORMATS:
        raise InputError(f"to = {to!r} must be one of {', '.join(FORMATS)}")
    if argos and to != "ctranslate2":
        raise InputError(f"`argos=True` packs an export to ctranslate2, not to {to}")
    folder = Path(model).resolve()
    suffix = SUFFIX if argos else f"-{to}"
    path = Path(out) if out is not None else folder.with_name(folder.name + suffix)
    if argos:
        check_package(path, overwrite)
        return Export(path, export_package(Path(model), path, sentences, say))
    check_out(path, overwrite, "an export", DESCRIPTION)
    return Export(path, export_model(Path(model), path, to, sentences, say))
