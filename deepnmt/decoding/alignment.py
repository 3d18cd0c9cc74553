"""Word alignments: cross-attention between subwords, merged into words and links."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepnmt.data.sentence_pieces import SPACE
from deepnmt.data.subword_nmt import SEPARATOR, SubwordNmt
from deepnmt.data.tokenizer import Tokenizer
from deepnmt.model.attention import KeysValues, Visibility
from deepnmt.model.cache import attend_slots
from deepnmt.model.transformer import Transformer

MAX_WEIGHTS = 2**20  # of a head, computed at a time: memory is limited


@dataclass(frozen=True, eq=False)
class Alignment:
    """Rows are target words, columns source words; each row sums to one."""

    source_words: list[str]
    target_words: list[str]
    weights: np.ndarray[tuple[int, int], np.dtype[np.float32]]

    @property
    def links(self) -> list[tuple[int, int]]:
        """(source word, target word): for each target word the source word it attends to most."""
        return [(k, i) for i, k in enumerate(self.weights.argmax(1).tolist())] if self.source_words else []

    @classmethod
    def joined(cls, parts: "Sequence[Alignment]") -> "Alignment":
        """The alignment of a text from those of its pieces: no link crosses a cut."""
        return cls(
            [word for part in parts for word in part.source_words],
            [word for part in parts for word in part.target_words],
            torch.block_diag(*(torch.from_numpy(part.weights) for part in parts)).numpy(),
        )


def word_spans(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """The span of each word in the text, in order; that of a word which is not found is empty."""
    spans, at = [], 0
    for word in words:
        start = text.find(word, at) if word else -1
        spans.append((at, at) if start < 0 else (start, start + len(word)))
        at = spans[-1][1]
    return spans


@torch.inference_mode()
def attention(model: Transformer, source: Tensor, targets: Sequence[Sequence[int]], eos: int) -> list[Tensor]:
    """The cross-attention of the last layer, averaged over its heads, with `targets` forced.

    source: (B, S) -> for each target a matrix (len(target) + 1, S): the last row belongs to the end; rows sum to one.
    """
    length = max(map(len, targets)) + 1
    inputs = torch.tensor([[eos, *target, *[eos] * (length - len(target) - 1)] for target in targets])
    most = max(MAX_WEIGHTS // (length * source.shape[1]), 1)
    weights: list[Tensor] = []
    for ids, symbols in zip(source.split(most), inputs.to(source.device).split(most), strict=True):
        seen = _WeighedVisibility(ids == model.config.pad_id)
        model.decode(symbols, model.encode(ids), seen)
        weights += seen.weights.cpu()
    return [matrix[: len(target) + 1] for matrix, target in zip(weights, targets, strict=True)]


class _WeighedVisibility(Visibility):
    """Sees the whole source, and keeps the weights (B, T, S) of the last layer that attended, averaged over heads."""

    weights: Tensor

    def __init__(self, padding: Tensor) -> None:
        """padding: (B, S)"""
        self.mask = torch.zeros(padding.shape, device=padding.device).masked_fill(padding, -torch.inf)[:, None, None]

    def attend(self, query: Tensor, seen: KeysValues, dropout: float) -> Tensor:
        """query: (B, T, heads, head_dim), seen: (B, S, heads, head_dim)"""
        block = KeysValues(*(part.transpose(1, 2).float() for part in seen))
        attended, weights = attend_slots(query.transpose(1, 2), [block], self.mask)
        self.weights = weights.mean(1)
        return attended.to(query.dtype)


def align_words(
    weights: Tensor, source: Sequence[int], target: Sequence[int], tokenizers: tuple[Tokenizer, Tokenizer]
) -> Alignment:
    """From subwords to words. weights: (len(target) + 1, at least len(source) + 1), ends included.

    The weights of a target word are the mean over its subwords, those of a source word the sum over its subwords. Ends
    and language tags are left out, and the rest is normalised to sum to one.
    """
    columns, rows = (
        [place for place, number in enumerate(ids) if not tokenizer.is_language(number)]
        for tokenizer, ids in zip(tokenizers, (source, target), strict=True)
    )
    inside = weights[rows][:, columns].double() + 1e-12
    source, target = [source[place] for place in columns], [target[place] for place in rows]
    (source_words, columns_of), (target_words, rows_of) = map(group, tokenizers, (source, target))
    by_column = torch.zeros(len(target), len(source_words), dtype=torch.double).index_add_(1, columns_of, inside)
    words = torch.zeros(len(target_words), len(source_words), dtype=torch.double).index_add_(0, rows_of, by_column)
    return Alignment(source_words, target_words, (words / words.sum(1, keepdim=True)).float().numpy())


def group(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[list[str], Tensor]:
    """The words that these subwords spell, and for each subword the number of its word."""
    spaced = not isinstance(tokenizer.subwords, SubwordNmt)  # words begin with a space, or end without the separator
    words: list[list[int]] = []
    index = []
    before = ""
    for number in ids:
        piece = tokenizer.piece(number)
        if not words or (piece.startswith(SPACE) if spaced else not before.endswith(SEPARATOR)):
            words.append([])
        words[-1].append(number)
        index.append(len(words) - 1)
        before = piece
    return [_spelled(tokenizer, word) for word in words], torch.tensor(index, dtype=torch.long)


def _spelled(tokenizer: Tokenizer, word: Sequence[int]) -> str:
    if any(number >= len(tokenizer.subwords.pieces) for number in word):
        return "".join(tokenizer.piece(number) for number in word)  # a tag
    return tokenizer.subwords.decode(word).strip()
