"""Hypotheses as the server keeps and sends them: their size in bytes, and their JSON."""

from collections.abc import Sequence
from sys import getsizeof
from typing import Any

import numpy as np
from pydantic_core import to_json

from deepnmt.decoding.translator import Hypothesis

Hypotheses = Sequence[Hypothesis]  # of one sentence, best first


def size_of(hypotheses: Hypotheses) -> int:
    """In memory; the JSON is of about the same size."""
    size = sum(150 + getsizeof(hypothesis.text) for hypothesis in hypotheses)
    for alignment in (hypothesis.alignment for hypothesis in hypotheses if hypothesis.alignment):
        words = [*alignment.source_words, *alignment.target_words]
        size += 400 + alignment.weights.nbytes + sum(8 + getsizeof(word) for word in words)
    return size


def sentence_table(source: str, gap: str, hypotheses: Hypotheses) -> dict[str, Any]:
    best, *others = map(_table, hypotheses)
    table = {"source": source, **best, "gap": gap}
    return {**table, "alternatives": others} if others else table


def _table(hypothesis: Hypothesis) -> dict[str, Any]:
    table: dict[str, Any] = {"text": hypothesis.text, "score": round(hypothesis.score, 4)}
    if (found := hypothesis.alignment) is not None:
        table["alignment"] = {**vars(found), "links": found.links}
    return table


def encode_json(table: dict[str, Any]) -> bytes:
    """Weights become lists one matrix after the other, so that a long answer takes little memory besides its text."""
    return to_json(table, fallback=lambda weights: weights.astype(np.float64).round(3).tolist())
