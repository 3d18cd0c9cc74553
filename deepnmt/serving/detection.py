"""Which of a few languages a text is in, with py3langid (the extra `langid`)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from deepnmt.languages import base_language
from deepnmt.serving.limits import RefusedError

EXAMINED = 2_000  # characters


def detect_language(text: str, languages: Sequence[str]) -> tuple[str, float]:
    """The most probable of these language codes and its confidence in percent."""
    distinct = tuple(dict.fromkeys(languages))
    if len(distinct) == 1:
        return distinct[0], 100.0
    code, probability = _identifier(distinct).rank(text[:EXAMINED])[0]
    return next(language for language in distinct if base_language(language) == code), round(
        100 * float(probability), 1
    )


@lru_cache(maxsize=8)
def _identifier(languages: tuple[str, ...]) -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        message = "language detection is unavailable: it needs py3langid (pip install 'deepnmt[langid]')"
        raise RefusedError(400, f"{message}; name the source language instead of auto") from None
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    known = {base_language(language) for language in languages} & set(identifier.labels)
    if not known:
        raise RefusedError(400, f"py3langid knows none of {', '.join(languages)}; name the source language")
    identifier.set_languages(known)
    return identifier
