"""Train, study and serve translation models with very deep Transformers.

The names in `__all__` are what others may build on; everything else is internal.
They are imported on first use, so that `import deepnmt` and `deepnmt --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepnmt.decoding.translator import Translator as Translator
    from deepnmt.evaluation.scores import score as score
    from deepnmt.model.storage import load_model as load_model

__version__ = "0.1.0"

_HOMES = {
    "Translator": "deepnmt.decoding.translator",
    "load_model": "deepnmt.model.storage",
    "score": "deepnmt.evaluation.scores",
}
__all__ = ["Translator", "load_model", "score"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'deepnmt' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
