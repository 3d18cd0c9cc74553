"""Models of other toolkits. Each format is one file, which reads its files into a `ForeignModel`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from deepnmt.model.conversion import dlcl, fairseq, huggingface, marian, opennmt, sockeye
from deepnmt.model.conversion.reading import ForeignModel
from deepnmt.model.conversion.rebuild import Numbering, rebuild
from deepnmt.model.transformer import Transformer

FORMATS: dict[str, Callable[[Path], ForeignModel]] = {
    "dlcl": dlcl.read,
    "fairseq": fairseq.read,
    "opennmt-py": opennmt.read,
    "marian": marian.read,
    "sockeye": sockeye.read,
    "m2m100": partial(huggingface.read_like_fairseq, "m2m_100", "pre"),
    "nllb": partial(huggingface.read_like_fairseq, "m2m_100", "pre"),
    "fsmt": partial(huggingface.read_like_fairseq, "fsmt", "post"),  # fairseq's models of WMT19
    "exported": huggingface.read_exported,
}

# Formats whose checkpoints have the vocabularies, so that no dictionaries are needed.
WITH_VOCABULARIES = ("opennmt-py", "sockeye")


def convert_model(path: Path, toolkit: str, numbering: Numbering | None = None) -> Transformer:
    """The model of a checkpoint or folder, in eval mode; `numbering` maps our symbols to its rows."""
    return rebuild(FORMATS[toolkit](path), numbering)
