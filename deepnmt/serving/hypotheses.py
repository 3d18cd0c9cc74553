"""Translations as the server keeps and sends them: small in memory, counted in bytes, written as JSON row by row."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from sys import getsizeof

import numpy as np

from deepnmt.decoding.alignment import Alignment
from deepnmt.decoding.translator import Hypothesis

SCALE = 1000  # weights have three decimals
_DECIMALS = [f"{thousandths / SCALE:g}" for thousandths in range(SCALE + 1)]


@dataclass(frozen=True, slots=True)
class ServedAlignment:
    """Weights in thousandths: (target words, source words)."""

    source_words: list[str]
    target_words: list[str]
    weights: np.ndarray[tuple[int, int], np.dtype[np.uint16]]

    @classmethod
    def of(cls, alignment: Alignment) -> "ServedAlignment":
        shape = len(alignment.target_words), len(alignment.source_words)
        weights = np.rint(np.array(alignment.weights, dtype=np.float64).reshape(shape) * SCALE).astype(np.uint16)
        return cls(alignment.source_words, alignment.target_words, weights)

    @property
    def links(self) -> list[tuple[int, int]]:
        """(source word, target word): for each target word the source word with the largest weight."""
        return [(k, i) for i, k in enumerate(self.weights.argmax(1).tolist())] if self.source_words else []

    @property
    def size(self) -> int:
        words = sum(map(getsizeof, self.source_words)) + sum(map(getsizeof, self.target_words))
        lists = 8 * (len(self.source_words) + len(self.target_words))
        return 300 + words + lists + self.weights.nbytes

    def json(self) -> str:
        rows = ",".join("[" + ",".join([_DECIMALS[weight] for weight in row]) + "]" for row in self.weights.tolist())
        table = {"source_words": self.source_words, "target_words": self.target_words, "links": self.links}
        return f'{_json(table)[:-1]},"weights":[{rows}]}}'


@dataclass(frozen=True, slots=True)
class ServedHypothesis:
    text: str
    score: float
    alignment: ServedAlignment | None = None

    @classmethod
    def of(cls, hypothesis: Hypothesis) -> "ServedHypothesis":
        alignment = None if hypothesis.alignment is None else ServedAlignment.of(hypothesis.alignment)
        return cls(hypothesis.text, round(hypothesis.score, 4), alignment)

    @property
    def size(self) -> int:
        return getsizeof(self) + getsizeof(self.text) + 24 + (self.alignment.size if self.alignment else 0)

    def json(self) -> str:
        table = _json({"text": self.text, "score": self.score})
        return table if self.alignment is None else f'{table[:-1]},"alignment":{self.alignment.json()}}}'


Hypotheses = Sequence[ServedHypothesis]  # of one sentence, best first


def size_of(hypotheses: Hypotheses) -> int:
    return sum(hypothesis.size for hypothesis in hypotheses)


def sentence_json(source: str, gap: str, hypotheses: Hypotheses) -> str:
    best, *others = (hypothesis.json() for hypothesis in hypotheses)
    table = f"{_json({'source': source})[:-1]},{best[1:-1]},{_json({'gap': gap})[1:]}"
    return f'{table[:-1]},"alternatives":[{",".join(others)}]}}' if others else table


def _json(table: dict[str, object]) -> str:
    return json.dumps(table, ensure_ascii=False, separators=(",", ":"))
