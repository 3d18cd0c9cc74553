"""The sentences that an epoch draws from several corpora, by weight and temperature, the same on every machine."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from deepnmt.errors import InputError

Sentences = npt.NDArray[np.integer]


class Mixture:
    """An epoch of corpora with n_i sentences and weights w_i holds N = sum of w_i n_i sentences.

    At temperature T, corpus i gets a share of (w_i n_i)^(1/T) / sum of (w_j n_j)^(1/T): w_i n_i sentences at T = 1, and
    more equal shares at higher T. A corpus is read in rounds, each a new permutation, and an epoch continues where the
    last one stopped. So after any number of epochs, the counts of any two sentences of a corpus differ by at most one,
    and an epoch of a single corpus of weight one is every sentence once.
    """

    def __init__(self, pools: Sequence[Sentences], weights: Sequence[float], temperature: float, seed: int) -> None:
        self.pools, self.seed = pools, seed
        shares = np.array([len(pool) * weight for pool, weight in zip(pools, weights, strict=True)])
        if not shares.sum() > 0:
            raise InputError("nothing to train on: every corpus is empty or has weight zero (batching.weights)")
        tempered = (shares / shares.sum()) ** (1 / temperature)
        draws = shares.sum() * tempered / tempered.sum()
        self.draws = [max(1, round(draw)) if draw > 0 else 0 for draw in draws.tolist()]

    def draw(self, epoch: int) -> Sentences:
        """The sentences of an epoch as a multiset, not yet shuffled."""
        return np.concatenate([part for corpus in range(len(self.pools)) for part in self._read(corpus, epoch)])

    def _read(self, corpus: int, epoch: int) -> list[Sentences]:
        pool, draws = self.pools[corpus], self.draws[corpus]
        position, stop = epoch * draws, (epoch + 1) * draws
        parts = []
        while position < stop:
            number, offset = divmod(position, len(pool))
            taken = min(len(pool) - offset, stop - position)
            if taken == len(pool):  # then its order does not matter
                parts.append(pool)
            else:
                order = shuffled(len(pool), random_bits(self.seed, "round", corpus, number))
                parts.append(pool[order[offset : offset + taken]])
            position += taken
        return parts


PURPOSES = ("round", "order", "batches", "resample")


def random_bits(seed: int, purpose: str, *key: int) -> np.random.PCG64:
    """A separate generator for each purpose and key, so that no draw depends on earlier ones."""
    return np.random.PCG64(np.random.SeedSequence([seed, PURPOSES.index(purpose), *key]))


def shuffled(count: int, bits: np.random.PCG64) -> npt.NDArray[np.int64]:
    """A permutation from raw bits, which are the same in all versions of numpy (unlike `Generator.permutation`)."""
    return np.argsort(bits.random_raw(count), kind="stable")
