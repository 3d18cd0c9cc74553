"""`deepnmt.backtranslate`: synthetic parallel text from monolingual text and a model of the opposite direction."""

from pathlib import Path
from typing import Any

from deepnmt.api.synthetic import SyntheticText, check_text, synthesise
from deepnmt.errors import InputError


def backtranslate(
    model: str | Path,
    text: str | Path,
    out: str | Path,
    *,
    device: str | None = None,
    precision: str = "fp32",
    chunk: int | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    **settings: Any,
) -> SyntheticText | None:
    """Translate `text` with a MODEL and write `out`.LANGUAGE for both languages; resume an interrupted call.

    `settings` are the fields of `TranslationConfig`; without `beam`, translations are sampled, which gives better
    training data (https://arxiv.org/abs/1808.09381). `source_lang` and `target_lang` are for multilingual models. Under
    torchrun, each rank translates its share of the chunks (of `chunk` lines), and the last one to finish merges them;
    the others return None. The result does not depend on the number of ranks.
    """
    check_text(Path(text))
    if "nbest" in settings:
        raise InputError("backtranslate writes one translation per line: omit nbest")
    settings.setdefault("sampling", "beam" not in settings)
    return synthesise(
        [Path(model)],
        Path(text),
        Path(out),
        title="backtranslate",
        sides=("source", "target"),
        device=device,
        precision=precision,
        chunk=chunk,
        source_lang=source_lang,
        target_lang=target_lang,
        **settings,
    )
