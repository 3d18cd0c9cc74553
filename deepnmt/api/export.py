"""`deepnmt.export`: a MODEL for another runtime, verified against the original model before it is kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepnmt.decoding.export import DESCRIPTION, FORMATS
from deepnmt.decoding.export import export as export_model
from deepnmt.decoding.export.argos import SUFFIX, check_package, export_package
from deepnmt.decoding.export.comparison import Agreement
from deepnmt.files import check_out
from deepnmt.progress import say


@dataclass(frozen=True)
class Export:
    """What was written, a folder or a file, and how closely it agrees with the model; None: nothing here can run it."""

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
    """Write the MODEL folder `model` in the format `to`, with all that is needed to translate with it.

    Where the package that runs the format is installed, nothing is kept unless it agrees with the model on random
    sources and on `sentences`. `out` is by default the model's folder with the format after its name. `argos` packs an
    export to CTranslate2 into one file for Argos Translate and LibreTranslate.
    """
    if to not in FORMATS:
        raise ValueError(f"to = {to!r} must be one of {', '.join(FORMATS)}")
    if argos and to != "ctranslate2":
        raise ValueError(f"argos = true packs an export to ctranslate2, not to {to}")
    folder = Path(model).resolve()
    suffix = SUFFIX if argos else f"-{to}"
    path = Path(out) if out is not None else folder.with_name(folder.name + suffix)
    if argos:
        check_package(path, overwrite)
        return Export(path, export_package(Path(model), path, sentences, say))
    check_out(path, overwrite, "an export", DESCRIPTION)
    return Export(path, export_model(Path(model), path, to, sentences, say))
