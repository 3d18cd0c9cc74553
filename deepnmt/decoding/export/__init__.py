"""Exports of a MODEL to other runtimes: one file and one line in the table per format."""

from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch

from deepnmt import __version__
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.data.vocabulary import EOS
from deepnmt.decoding.export import ctranslate2, huggingface, marian, onnx
from deepnmt.decoding.export.comparison import Agreement, Runtime, Tell, compare, random_sources
from deepnmt.decoding.translator import check_vocabularies
from deepnmt.errors import InputError
from deepnmt.files import replacing, sha256, write_json
from deepnmt.model.config import ModelConfig
from deepnmt.model.storage import WEIGHTS, load_model
from deepnmt.model.transformer import Transformer
from deepnmt.settings import to_table

EXPORT_FORMAT = 1
DESCRIPTION = "export.json"


class Format(Protocol):
    """The interface of a format. It imports third-party packages only inside its functions."""

    NAME: str
    NEEDS: tuple[str, ...]  # packages needed to write the export
    RUNS_IN: str  # the package that runs the export; if it is installed, the export is verified

    def check(self, config: ModelConfig, tokenizers: TokenizerPair) -> None:
        """Raise InputError if the format cannot express this model."""

    def write(self, model: Transformer, tokenizers: TokenizerPair, folder: Path, tell: Tell) -> dict[str, Any]:
        """Write everything; return additional entries of the description."""

    def opened(self, folder: Path, config: ModelConfig, tokenizers: TokenizerPair) -> Runtime:
        """The export, ready to run."""


FORMATS: dict[str, Format] = {
    "onnx": onnx,
    "ctranslate2": ctranslate2,
    "huggingface": huggingface,
    "marian": marian,
}


def export(
    folder: Path, out: Path, to: str, texts: Sequence[str] = (), tell: Tell = lambda text: None
) -> Agreement | None:
    """Export the MODEL `folder` to the folder `out`, if it agrees with the MODEL on random sources and on `texts`.

    Returns None if the runtime is not installed, so that nothing was compared. `tell` reports progress.
    """
    form = FORMATS[to]
    missing = [name for name in form.NEEDS if find_spec(name) is None]
    if missing:
        raise InputError(f"deepnmt export --to {to} needs {', '.join(missing)}: pip install 'deepnmt[{to}]'")
    model, tokenizers = load_model(folder), TokenizerPair.load(folder)
    check_vocabularies(folder, model.config, tokenizers)
    form.check(model.config, tokenizers)
    if not tokenizers.source.ending:
        raise InputError(
            f"{folder} cannot be exported: exports end every source with </s>, which this model has not seen there; "
            "train it further (`deepnmt train --from`), or export the model that it was converted from"
        )
    given = [[*ids, EOS] for ids in tokenizers.source.encode_batch(texts) if ids]
    with replacing(out) as aside:
        aside.mkdir()
        described = form.write(model, tokenizers, aside, tell)
        agreement = None
        if find_spec(form.RUNS_IN) is not None:
            tell("comparing the export with the model")
            runtime = form.opened(aside, model.config, tokenizers)
            agreement = compare(model, runtime, [*random_sources(model.config), *given], form.NAME)
        about = {"format": EXPORT_FORMAT, "to": to, "deepnmt": __version__, "torch": torch.__version__}
        origin = {"config": to_table(model.config), "weights_sha256": sha256(folder / WEIGHTS)}
        checked = {"checked": None if agreement is None else asdict(agreement)}
        write_json(aside / DESCRIPTION, about | described | origin | checked)
    return agreement
