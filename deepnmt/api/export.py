"""`deepnmt.export`: a MODEL for another runtime, verified against the original model before it is kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepnmt.decoding import export as onnx
from deepnmt.decoding.export_check import Agreement
from deepnmt.files import check_out
from deepnmt.progress import say

FORMATS = ("onnx",)


@dataclass(frozen=True)
class Export:
    """The folder that was written, and how closely it agrees with the model."""

    folder: Path
    agreement: Agreement


def export(
    model: str | Path,
    out: str | Path | None = None,
    *,
    to: str = FORMATS[0],
    sentences: Sequence[str] = (),
    overwrite: bool = False,
) -> Export:
    """Write the MODEL folder `model` as two ONNX graphs with all that is needed to translate with them.

    Nothing is kept unless the graphs agree with the model on random sources and on `sentences`. `out` is by default
    the model's folder with `-onnx` after its name.
    """
    if to not in FORMATS:
        raise ValueError(f"to = {to!r} must be one of {', '.join(FORMATS)}")
    folder = Path(model).resolve()
    path = Path(out) if out is not None else folder.with_name(f"{folder.name}-{to}")
    check_out(path, overwrite, "an export", onnx.DESCRIPTION)
    return Export(path, onnx.export(Path(model), path, sentences, say))
