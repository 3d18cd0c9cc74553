"""Which word was translated from which: cross-attention between subwords, gathered into words and links."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepnmt.data.tokenizer import Tokenizer
from deepnmt.model.transformer import Transformer


@dataclass(frozen=True)
class Alignment:
    """Rows are target words, columns source words; each row sums to one. `links` are (source word, target word)."""

    source_words: list[str]
    target_words: list[str]
    weights: list[list[float]]

    @property
    def links(self) -> list[tuple[int, int]]:
        """For each target word the source word it looks at most."""
        return [(max(range(len(row)), key=row.__getitem__), i) for i, row in enumerate(self.weights) if row]

    def shifted(self, following: "Alignment") -> "Alignment":
        """This alignment and that of a piece of text that follows: no link crosses the cut."""
        before, after = [0.0] * len(self.source_words), [0.0] * len(following.source_words)
        return Alignment(
            self.source_words + following.source_words,
            self.target_words + following.target_words,
            [row + after for row in self.weights] + [before + row for row in following.weights],
        )


def word_spans(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Where each word stands in the text, in order; a word that is not found is empty."""
    spans, at = [], 0
    for word in words:
        start = text.find(word, at) if word else -1
        spans.append((at, at) if start < 0 else (start, start + len(word)))
        at = spans[-1][1]
    return spans


@torch.inference_mode()
def attention(model: Transformer, source: Tensor, targets: Sequence[Sequence[int]], eos: int) -> list[Tensor]:
    """The cross-attention of the last layer, mean of its heads, while the model is made to say `targets`.

    source: (B, S) -> for each target a matrix (len(target) + 1, S): the last row is that of the end; rows sum to one.
    """
    cache = model.start(model.encode(source), need_attention=True)
    length = max(map(len, targets)) + 1
    inputs = torch.full((len(targets), length), eos, device=source.device)
    for row, target in zip(inputs, targets, strict=True):
        row[1 : len(target) + 1] = torch.tensor(target, dtype=torch.long)
    rows = []
    for symbols in inputs.T:
        _, cache = model.step(symbols, cache)
        assert cache.attention is not None
        rows.append(cache.attention.float())
    weights = torch.stack(rows, dim=1).cpu()
    return [matrix[: len(target) + 1] for matrix, target in zip(weights, targets, strict=True)]


def align_words(
    weights: Tensor, source: Sequence[int], target: Sequence[int], tokenizers: tuple[Tokenizer, Tokenizer]
) -> Alignment:
    """From subwords to words. weights: (len(target) + 1, at least len(source) + 1), ends included.

    A target word looks where its subwords look on average; a source word is looked at as much as its subwords together;
    what goes to the ends is left out and the rest made to sum to one again.
    """
    source_tokenizer, target_tokenizer = tokenizers
    source_words, source_index = group(source_tokenizer, source)
    target_words, target_index = group(target_tokenizer, target)
    if not source_words or not target_words:
        return Alignment(source_words, target_words, [[] for _ in target_words])
    inside = weights[: len(target), : len(source)].double() + 1e-12
    columns = torch.zeros(len(target), len(source_words), dtype=torch.double)
    columns.index_add_(1, torch.tensor(source_index), inside)
    rows = torch.zeros(len(target_words), len(source_words), dtype=torch.double)
    rows.index_add_(0, torch.tensor(target_index), columns)
    return Alignment(source_words, target_words, (rows / rows.sum(1, keepdim=True)).tolist())


def group(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[list[str], list[int]]:
    """The words that these subwords write, and for each subword the number of its word."""
    words: list[list[int]] = []
    index = []
    continued = False
    for number in ids:
        begins, continues = _boundaries(tokenizer, number)
        if not words or (begins and not continued):
            words.append([])
        words[-1].append(number)
        index.append(len(words) - 1)
        continued = continues
    return [_spelled(tokenizer, word) for word in words], index


def _spelled(tokenizer: Tokenizer, word: Sequence[int]) -> str:
    if any(number >= len(tokenizer.subwords.pieces) for number in word):
        return "".join(tokenizer.piece(number) for number in word)  # a tag
    return tokenizer.subwords.decode(word).strip()


def _boundaries(tokenizer: Tokenizer, number: int) -> tuple[bool, bool]:
    """Does this subword begin a word, and does the next one belong to the same word whatever it is?"""
    piece = tokenizer.piece(number)
    if tokenizer.subwords.kind == "sentencepiece":
        return piece.startswith("\u2581"), False
    return True, piece.endswith("@@")
