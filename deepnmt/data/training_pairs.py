"""The pairs of all training corpora as one sequence, without those too long to train on."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from deepnmt.data.corpus_mixture import Sentences
from deepnmt.data.dataset import Corpus, Lengths, Side
from deepnmt.errors import InputError


class TrainingPairs:
    """Sentences are numbered through all corpora in their order; `lengths` (source, target) count eos."""

    def __init__(self, corpora: Mapping[str, Corpus], max_length: int, setting: str) -> None:
        """Pairs longer than `max_length`, eos counted, are skipped; `setting` is the name of that limit in messages."""
        self.corpora = corpora
        sizes = np.array([len(corpus) for corpus in corpora.values()], np.int64)
        self._bases = np.cumsum(sizes) - sizes
        source, target = (with_eos([corpus.sides[side].lengths for corpus in corpora.values()]) for side in (0, 1))
        self.lengths: tuple[Lengths, Lengths] = source, target
        self.usable: npt.NDArray[np.bool_] = (source <= max_length) & (target <= max_length)
        numbers: Sentences = np.arange(len(source), dtype=np.uint32 if len(source) < 1 << 32 else np.int64)
        of_corpora = (slice(base, base + size) for base, size in zip(self._bases, sizes, strict=True))
        self.pools = [numbers[own][self.usable[own]] for own in of_corpora]  # the usable sentences of each corpus
        self._longest_used, self._setting = max_length - 1, setting
        if not self.usable.any():
            raise InputError(f"nothing to train on: {self.report() or 'the dataset has no training pairs'}")

    def gather(self, sentences: Sentences, side: int) -> Side:
        sides = [corpus.sides[side] for corpus in self.corpora.values()]
        if len(sides) == 1:
            return sides[0].take(sentences)
        owners = np.searchsorted(self._bases, sentences, "right") - 1
        parts = [sides[i].take(sentences[owners == i] - self._bases[i]) for i in np.unique(owners)]
        ids, lengths = (np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "lengths"))
        return Side.joined(ids, lengths).take(np.argsort(np.argsort(owners, kind="stable")))

    def report(self) -> str | None:
        """One sentence about the skipped pairs, or None."""
        counts = ", ".join(
            f"{len(corpus) - len(pool):,} of {len(corpus):,} in {name}"
            for (name, corpus), pool in zip(self.corpora.items(), self.pools, strict=True)
            if len(pool) < len(corpus)
        )
        limit = f"pairs longer than {self._longest_used:,} tokens are skipped (batching.{self._setting})"
        return f"{limit}: {counts}" if counts else None


def with_eos(lengths: list[npt.NDArray[np.integer]]) -> Lengths:
    return np.concatenate([np.empty(0, np.int32), *lengths]).astype(np.int32) + np.int32(1)
