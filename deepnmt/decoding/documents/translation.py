"""Translates a document: each of its sentences once, in chunks that can be stored."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from deepnmt.decoding.alignment import Alignment
from deepnmt.decoding.documents.document import Part
from deepnmt.decoding.glossary import Glossary
from deepnmt.decoding.jobs import chunk_lines
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
    document: Part, translator: Translator, terms: Mapping[str, str] | Glossary | None, **settings: Any
) -> str:
    """The document in the target language. Placeholders are kept unless the settings say otherwise."""
    found: dict[str, Hypothesis] = {}
    for some in translations(sentences_of(document), translator, terms, **settings):
        found |= some
    return written(document, found)


def translations(
    sentences: Mapping[str, bool],
    translator: Translator,
    terms: Mapping[str, str] | Glossary | None,
    warn: Warn | None = None,
    done: Callable[[int], None] | None = None,
    **settings: Any,
) -> Iterator[dict[str, Hypothesis]]:
    """The best hypothesis for each sentence, a chunk of them at a time."""
    settings = {"keep_placeholders": True, **settings, "nbest": 1}
    size = chunk_lines(None, translator.device.type)
    for aligned in (False, True):  # alignments take time, and few sentences need them
        rest = iter([text for text in sentences if sentences[text] is aligned])
        while texts := list(islice(rest, size)):

            def say(number: int, message: str, texts: list[str] = texts) -> None:
                assert warn is not None
                warn(texts[number], message)

            found = translator.translate_nbest(
                texts, terms=terms, warn=say if warn else None, done=done, **{**settings, "alignments": aligned}
            )
            yield {text: best for text, (best, *_) in zip(texts, found, strict=True)}


def written(document: Part, found: Mapping[str, Hypothesis]) -> str:
    own = (found.get(text) or Hypothesis(text, 0.0, 0.0, []) for text, _ in document.sentences)
    return document.written(replace(hypothesis, text=one_line(hypothesis.text)) for hypothesis in own)


def stored(found: Mapping[str, Hypothesis]) -> bytes:
    """As lines, of what a document needs of each hypothesis."""
    lines = []
    for sentence, hypothesis in found.items():
        alignment = hypothesis.alignment
        words = None if alignment is None else [alignment.source_words, alignment.target_words]
        weights = None if alignment is None else alignment.weights.tolist()
        lines.append(json.dumps([sentence, hypothesis.text, words, weights]))
    return "".join(f"{line}\n" for line in lines).encode()


def restored(lines: Iterable[bytes]) -> dict[str, Hypothesis]:
    found: dict[str, Hypothesis] = {}
    for line in lines:
        sentence, text, words, weights = json.loads(line)
        alignment = None
        if words is not None:
            source, target = words
            matrix = np.array(weights, dtype=np.float32).reshape(len(target), len(source))
            alignment = Alignment(source, target, matrix)
        found[sentence] = Hypothesis(text, 0.0, 0.0, [], alignment)
    return found
