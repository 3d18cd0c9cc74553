"""`deepnmt.likelihood`: the probability of given translations under a model."""

from pathlib import Path

from deepnmt.decoding.likelihood import Likelihood
from deepnmt.decoding.translator import Translator
from deepnmt.evaluation.scores import read_parallel
from deepnmt.progress import progress


def likelihood(
    model: str | Path,
    source: str | Path,
    target: str | Path,
    *,
    device: str | None = None,
    precision: str = "fp32",
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> list[Likelihood]:
    """The log probability under a MODEL of each subword of the lines of the file `target`, given those of `source`.

    `model`, `device` and `precision` are those of `Translator`; `source_lang` and `target_lang` are for multilingual
    models. `Translator.likelihoods` does the same for lists of texts.
    """
    texts, translations = read_parallel(source, target)
    translator = Translator(model, device, precision).for_languages(source_lang, target_lang)
    with progress("likelihood", total=len(texts)) as shown:
        return translator.likelihoods(texts, translations, done=shown.advance)
