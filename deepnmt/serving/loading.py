"""Loads the models of a server, and checks their glossaries."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.decoding.translator import Translator
from deepnmt.errors import InputError
from deepnmt.languages import base_language
from deepnmt.serving.limits import Limits
from deepnmt.serving.models import Models, ServedModel
from deepnmt.serving.prometheus import Metrics
from deepnmt.serving.terms import TermsFile


def load_models(
    names: Sequence[str],
    device: str,
    precision: str,
    limits: Limits,
    metrics: Metrics,
    shortlist: bool = False,
    terms: Sequence[str] = (),
) -> Models:
    """Each name is FOLDER or NAME=FOLDER; without a name, a model is called by its folder's name. Each of the terms is
    FILE or SOURCE-TARGET=FILE."""
    files = [TermsFile.read(given) for given in terms]
    folders: dict[str, Path] = {}
    for given in names:
        name, _, path = given.partition("=")
        folder = Path(given if Path(given).is_dir() or not path else path)  # runs/lr=3/model is a folder
        name = name if name and folder == Path(path) else folder.resolve().name
        if not folder.is_dir():
            raise InputError(f"{folder} is not a MODEL folder")
        if name in folders:
            raise InputError(f"two models are called {name}: rename one, as in other={folder}")
        folders[name] = folder
    translators = {name: Translator(folder, device, precision, shortlist) for name, folder in folders.items()}
    models = Models(
        ServedModel(name, _languages(pair), translator, limits, metrics, pair.languages, files)
        for name, translator in translators.items()
        for pair in translator.tokenizers
    )
    for given, file in zip(terms, files, strict=True):
        _check_terms(given, file, models)
    for model in models:  # or the first requests would all encode the same terms
        model.glossaries.of_files(model.source, model.target)
    return models


def _check_terms(given: str, file: TermsFile, models: Models) -> None:
    """Refuse terms for languages that are not served, or which the models cannot spell."""
    is_served = False
    for model in models:
        sources, targets = [model.source, *model.choices[0]], [model.target, *model.choices[1]]
        pairs = ((source, target) for source in sources for target in targets if file.serves(source, target))
        for source, target in islice(pairs, 1):
            is_served = True
            try:
                model.glossaries.encoded(file.terms, source, target)
            except InputError as error:
                raise InputError(f"{given}: {error}") from None
    if not is_served:
        raise InputError(f"--terms {given}: no model translates {file.languages}")


def _languages(pair: TokenizerPair) -> tuple[str, str]:
    """The languages of a pair; where it does not fix them, preferably from English to the first other language."""
    sources, targets = pair.languages
    if pair.source.language in sources:
        sources = [pair.source.language]
    if pair.target.language in targets:
        targets = [pair.target.language]
    sources = sorted(sources, key=lambda code: base_language(code) != "en")
    pairs = ((source, target) for source in sources for target in targets if source != target)
    return next(pairs, (sources[0], targets[0]))
