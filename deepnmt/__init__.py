"""Train, study and serve translation models with very deep Transformers.

The names in `__all__` are the public API; everything else is internal.
They are imported on first use, so that `import deepnmt` and `deepnmt --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from deepnmt import errors as errors

if TYPE_CHECKING:
    from deepnmt.api.average import average as average
    from deepnmt.api.bench import bench_generation as bench_generation
    from deepnmt.api.bench import bench_training as bench_training
    from deepnmt.api.convert import convert as convert
    from deepnmt.api.convert import fold as fold
    from deepnmt.api.evaluate import evaluate as evaluate
    from deepnmt.api.export import export as export
    from deepnmt.api.inspect import inspect_curves as inspect_curves
    from deepnmt.api.inspect import inspect_gradients as inspect_gradients
    from deepnmt.api.inspect import inspect_layers as inspect_layers
    from deepnmt.api.inspect import inspect_size as inspect_size
    from deepnmt.api.inspect import inspect_weights as inspect_weights
    from deepnmt.api.likelihood import likelihood as likelihood
    from deepnmt.api.prepare import prepare as prepare
    from deepnmt.api.shortlist import make_shortlist as make_shortlist
    from deepnmt.api.synthetic import backtranslate as backtranslate
    from deepnmt.api.synthetic import distill as distill
    from deepnmt.api.train import Run as Run
    from deepnmt.api.train import train as train
    from deepnmt.api.translate import translate_document as translate_document
    from deepnmt.api.translate import translate_file as translate_file
    from deepnmt.config import load_recipe as load_recipe
    from deepnmt.decoding.translator import Translator as Translator
    from deepnmt.errors import InputError as InputError
    from deepnmt.errors import RunError as RunError
    from deepnmt.evaluation.scores import compare as compare
    from deepnmt.evaluation.scores import score as score
    from deepnmt.model.storage import load_model as load_model

__version__ = "0.1.0"

_HOMES = {
    "InputError": "errors",
    "Run": "api.train",
    "RunError": "errors",
    "Translator": "decoding.translator",
    "average": "api.average",
    "backtranslate": "api.synthetic",
    "bench_generation": "api.bench",
    "bench_training": "api.bench",
    "compare": "evaluation.scores",
    "convert": "api.convert",
    "distill": "api.synthetic",
    "evaluate": "api.evaluate",
    "export": "api.export",
    "fold": "api.convert",
    "inspect_curves": "api.inspect",
    "inspect_gradients": "api.inspect",
    "inspect_layers": "api.inspect",
    "inspect_size": "api.inspect",
    "inspect_weights": "api.inspect",
    "likelihood": "api.likelihood",
    "load_model": "model.storage",
    "load_recipe": "config",
    "make_shortlist": "api.shortlist",
    "prepare": "api.prepare",
    "score": "evaluation.scores",
    "train": "api.train",
    "translate_document": "api.translate",
    "translate_file": "api.translate",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'deepnmt' has no attribute {name!r}")
    return getattr(import_module(f"deepnmt.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """For completion in a notebook: the public names, also those that are not imported yet, and no others."""
    return sorted({"errors", *__all__, *(name for name in globals() if name.startswith("__"))})
