"""`deepnmt.distill`: what a student learns from, the source of a parallel text with the translations of a teacher.

Sequence-level knowledge distillation, Kim and Rush 2016 (https://arxiv.org/abs/1606.07947).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepnmt.api.synthetic import SyntheticText, check_text, synthesise
from deepnmt.api.translate import PLAIN
from deepnmt.decoding.config import TranslationConfig
from deepnmt.decoding.jobs import count_lines
from deepnmt.decoding.translator import Hypothesis, default_settings
from deepnmt.errors import InputError
from deepnmt.settings import from_table
from deepnmt.text import iterate_lines


def distill(
    model: str | Path | Sequence[str | Path],
    source: str | Path,
    out: str | Path,
    *,
    reference: str | Path | None = None,
    device: str | None = None,
    precision: str = "fp32",
    chunk: int | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    **settings: Any,
) -> SyntheticText | None:
    """Translate the source of a parallel text with a teacher, a MODEL or an ensemble; write `out`.LANGUAGE for both
    languages.

    With `reference`, the target of that text, each line gets the one of its `nbest` translations (default: `beam`) that
    is most like its reference, by chrF; without it, the best one. `settings` are the fields of `TranslationConfig`;
    with `mbr`, the best one is that of MBR. An interrupted call is resumed, and torchrun shares the work, as in
    `backtranslate`.
    """
    folders = [Path(folder) for folder in ([model] if isinstance(model, str | Path) else model)]
    source, out = Path(source), Path(out)
    check_text(source)
    if settings.get("sampling"):
        raise InputError("distill writes the best translations: omit sampling")
    if reference is not None and settings.get("mbr"):
        raise InputError("mbr and the reference both choose the translation: omit one of them")
    lines_of, inputs = PLAIN, []
    if reference is not None:
        reference = Path(reference)
        check_text(reference)
        if (lines := count_lines(reference)) != (wanted := count_lines(source)):
            raise InputError(f"{reference} has {lines:,} lines but {source} has {wanted:,}; it needs one for each")
        beam = from_table(TranslationConfig, (default_settings(folders[0]) if folders else {}) | settings).beam
        settings.setdefault("nbest", beam)
        lines_of, inputs = _MostLike(reference).lines, [reference]
    elif "nbest" in settings:
        raise InputError("nbest is the number of translations to choose from by the reference: give the reference too")
    return synthesise(
        folders,
        source,
        out,
        lines_of,
        title="distill",
        inputs=inputs,
        device=device,
        precision=precision,
        chunk=chunk,
        source_lang=source_lang,
        target_lang=target_lang,
        **settings,
    )


class _MostLike:
    """The hypothesis of each line that is most like its reference; of equal ones, the first."""

    def __init__(self, references: Path) -> None:
        from sacrebleu.metrics.chrf import CHRF

        self.chrf, self.references = CHRF(), enumerate(iterate_lines(references), start=1)

    def lines(self, number: int, text: str, found: list[Hypothesis]) -> list[str]:
        """The numbers of the lines rise from call to call."""
        reference = next(line for at, line in self.references if at == number).decode(errors="replace")
        best = max(found, key=lambda each: self.chrf.sentence_score(each.text, [reference]).score)
        return PLAIN(number, text, [best])
