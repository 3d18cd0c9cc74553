"""Translations without a model, for documents: each looks at the words of the source as a model would."""

import numpy as np

from deepnmt.decoding.alignment import Alignment
from deepnmt.decoding.translator import Hypothesis


def hypothesis(text, target_words, links):
    """A translation whose words look at one source word each."""
    words = text.split()
    alignment = Alignment(words, target_words, np.eye(len(words), dtype=np.float32)[list(links)])
    return Hypothesis(" ".join(target_words), 0.0, 0.0, [], alignment)


def same(text):
    return Hypothesis(text, 0.0, 0.0, [])


def backwards(text):
    """The words in capitals, the last one first."""
    words = text.split()
    return hypothesis(text, [word.upper() for word in reversed(words)], range(len(words) - 1, -1, -1))


def doubled(text):
    """Every word twice, at both ends of the sentence."""
    words = [word.lower() for word in text.split()]
    return hypothesis(text, [*words, *words], [*range(len(words)), *range(len(words))])


def silent(text):
    return hypothesis(text, [], [])


TRANSLATIONS = [same, backwards, doubled, silent]


def written(document, translate):
    """The document with every sentence translated."""
    return document.written(translate(sentence) for sentence, _ in document.sentences)
