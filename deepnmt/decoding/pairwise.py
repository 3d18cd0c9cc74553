"""chrF and BLEU of every text with every other as its reference, equal to sacreBLEU's sentence scores."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deepnmt.errors import InputError
from deepnmt.languages import base_language

Integers = npt.NDArray[np.integer[Any]]
Matrix = npt.NDArray[np.float64]  # entry i, j: of hypothesis i with reference j, at most 100
CHRF_ORDER, BLEU_ORDER = 6, 4
BETA = 2  # chrF gives recall this many times the weight of precision


@cache
def pairwise(name: str, language: str) -> Callable[[Sequence[str]], Matrix]:
    """The scores `name` of all pairs of some texts in this language."""
    return chrf if name == "chrf" else partial(bleu, words=_bleu_words(base_language(language)))


def chrf(texts: Sequence[str]) -> Matrix:
    """chrF2 (Popović 2015, https://aclanthology.org/W15-3049) over the n-grams that both texts are long enough for."""
    characters = ["".join(text.split()).encode("utf-32-le", "surrogatepass") for text in texts]
    precision, recall, orders = np.zeros((3, len(texts), len(texts)))
    for counts, matches in ngram_matches([np.frombuffer(codes, dtype="<u4") for codes in characters], CHRF_ORDER):
        some = np.maximum(counts, 1)
        precision += matches / some[:, None]
        recall += matches / some
        orders += (counts[:, None] > 0) & (counts > 0)
    precision, recall = (mean / np.maximum(orders, 1) for mean in (precision, recall))
    weighted = BETA**2 * precision + recall
    product = (1 + BETA**2) * precision * recall
    return 100 * np.divide(product, weighted, out=np.zeros_like(product), where=weighted > 0)


def bleu(texts: Sequence[str], words: Callable[[str], str]) -> Matrix:
    """BLEU (Papineni et al. 2002, https://aclanthology.org/P02-1040) over the n-grams that the hypothesis is long
    enough for; precisions of zero are replaced by halving (`exp` smoothing)."""
    split = [words(text.rstrip()).split() for text in texts]
    ids = {word: number for number, word in enumerate(dict.fromkeys(word for text in split for word in text))}
    found = list(ngram_matches([np.array([ids[word] for word in text], dtype=int) for text in split], BLEU_ORDER))
    log_precisions, substitute = np.zeros((len(texts), len(texts))), np.ones((len(texts), len(texts)))
    for counts, matches in found:
        has_any = counts[:, None] > 0
        substitute[has_any & (matches == 0)] /= 2
        precisions = np.where(matches > 0, matches, substitute) / np.maximum(counts, 1)[:, None]
        log_precisions += np.where(has_any, np.log(precisions), 0)
    lengths, shared_words = found[0]
    brevity = np.minimum(1 - lengths / np.maximum(lengths, 1)[:, None], 0)
    mean = log_precisions / lengths.clip(1, BLEU_ORDER)[:, None]
    return np.where(shared_words > 0, 100 * np.exp(brevity + mean), 0)


def ngram_matches(sequences: Sequence[Integers], longest: int) -> Iterator[tuple[Integers, Matrix]]:
    """For n = 1 .. longest: the number of n-grams of each sequence (N,), and the number that each two share (N, N).

    Two sequences share an n-gram as often as the one does that has it less often. With its first, second, ...
    occurrence as different features, that is the number of features that both have: a product of a 0/1 matrix with
    itself, instead of N * N intersections.
    """
    lengths = np.array([len(sequence) for sequence in sequences])
    owners = np.repeat(np.arange(len(sequences)), lengths)
    symbols = np.unique(np.concatenate(sequences), return_inverse=True)[1]
    starts = np.arange(len(symbols))
    ends = np.repeat(lengths.cumsum(), lengths)
    grams = symbols
    for size in range(1, longest + 1):
        if size > 1:
            fits = starts + size <= ends[starts]
            starts = starts[fits]
            pairs = grams[fits] * len(symbols) + symbols[starts + size - 1]
            grams = np.unique(pairs, return_inverse=True)[1]
        yield np.maximum(lengths - size + 1, 0), _shared(grams, owners[starts], len(sequences))


def _shared(grams: Integers, owners: Integers, count: int) -> Matrix:
    """The number of common n-grams of each two of `count` sequences; owners: of each n-gram, ascending"""
    order = np.argsort(grams, kind="stable")
    grams, owners = grams[order], owners[order]
    place = np.arange(len(grams))
    begins = np.append(True, (grams[1:] != grams[:-1]) | (owners[1:] != owners[:-1]))[: len(grams)]
    occurrence = place - np.maximum.accumulate(np.where(begins, place, 0))
    features = np.unique(grams * (len(grams) + 1) + occurrence, return_inverse=True)[1]
    table = torch.zeros(count, features.max(initial=-1) + 1)
    table.numpy()[owners, features] = 1
    # By torch, which keeps to the number of threads of this translation, as numpy's library may not.
    return (table @ table.T).double().numpy()


def _bleu_words(language: str) -> Callable[[str], str]:
    """sacreBLEU's tokeniser for this language."""
    from sacrebleu.metrics.bleu import BLEU

    try:
        return BLEU(trg_lang=language).tokenizer
    except (RuntimeError, ImportError) as error:
        remedy = f"pip install 'sacrebleu[{language}]', or use chrf"
        raise InputError(f"mbr = bleu needs sacreBLEU's word tokeniser for {language!r}: {remedy}") from error
