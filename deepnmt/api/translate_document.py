"""`deepnmt.translate_document`: translate a document in memory."""

from collections.abc import Mapping
from typing import Any

from deepnmt.decoding.documents.formats import read_document
from deepnmt.decoding.documents.translation import translated
from deepnmt.decoding.glossary import Glossary
from deepnmt.decoding.translator import Translator


def translate_document(
    translator: Translator,
    document: str,
    file_format: str,
    *,
    terms: Mapping[str, str] | Glossary | None = None,
    **settings: Any,
) -> str:
    """Translate a `document` with a `translator`; everything but its text is kept.

    `file_format` is html, markdown, po, srt, vtt, xliff or text.
    `terms` and `settings` are those of `Translator.translate`; placeholders and URLs are kept by default.
    """
    language = translator.tokenizers[0].target.language
    return translated(read_document(document, file_format, language), translator, terms, **settings)
