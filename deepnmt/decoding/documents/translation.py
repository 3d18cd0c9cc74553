"""Translates a document: all its sentences in one go, each of them once."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from deepnmt.decoding.documents.document import Part
from deepnmt.decoding.glossary import Glossary
from deepnmt.decoding.lines import one_line
from deepnmt.decoding.translator import Hypothesis, Translator

Warn = Callable[[str, str], None]  # the sentence and the message


def sentences_of(document: Part) -> dict[str, bool]:
    """The different sentences with words in them, and whether alignments are needed."""
    found: dict[str, bool] = {}
    for text, aligned in document.sentences:
        if any(map(str.isalnum, text)):
            found[text] = aligned or found.get(text, False)
    return found


def translated(
    document: Part,
    translator: Translator,
    terms: Mapping[str, str] | Glossary | None,
    warn: Warn | None = None,
    done: Callable[[int], None] | None = None,
    **settings: Any,
) -> str:
    """The document in the target language. Placeholders are kept unless the settings say otherwise."""
    settings = {"keep_placeholders": True, **settings, "nbest": 1}
    sentences = sentences_of(document)
    hypotheses: dict[str, Hypothesis] = {}
    for aligned in (False, True):  # alignments take time, and few sentences need them
        texts = [text for text in sentences if sentences[text] is aligned]

        def say(number: int, message: str, texts: list[str] = texts) -> None:
            assert warn is not None
            warn(texts[number], message)

        found = translator.translate_nbest(
            texts, terms=terms, warn=say if warn else None, done=done, **{**settings, "alignments": aligned}
        )
        hypotheses |= {text: best for text, (best, *_) in zip(texts, found, strict=True)}
    own = (hypotheses.get(text) or Hypothesis(text, 0.0, 0.0, []) for text, _ in document.sentences)
    return document.written(replace(hypothesis, text=one_line(hypothesis.text)) for hypothesis in own)
