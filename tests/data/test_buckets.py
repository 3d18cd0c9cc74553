import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deepnmt.data.buckets import Buckets

lengths = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=30)


def padded(pairs: list[tuple[int, int]]) -> int:
    """The positions that a bucket tight around these pairs takes."""
    return len(pairs) * sum(max(side) for side in zip(*pairs, strict=True))


def fit(pairs: list[tuple[int, int]], budget: int, max_shapes: int) -> tuple[Buckets, np.ndarray]:
    source, target = np.array(pairs).T
    buckets = Buckets.fit(source, target, np.ones(len(pairs)), budget, max_shapes)
    return buckets, buckets.assign(source, target)


@given(pairs=lengths)
def test_the_first_cut_is_the_one_that_saves_most_padding(pairs: list[tuple[int, int]]) -> None:
    # A batch holds one row of any of these, so any part fills one. Three shapes: two parts, and one for the overflow.
    buckets, bucket_of = fit([(s + 10, t + 10) for s, t in pairs], 19, 3)
    taken = int((buckets.sources + buckets.targets)[bucket_of].sum())
    best = padded([(s + 10, t + 10) for s, t in pairs])
    for axis, at in itertools.product((0, 1), range(1, 10)):
        halves = [[(p[0] + 10, p[1] + 10) for p in pairs if (p[axis] < at) == side] for side in (True, False)]
        if all(halves):
            best = min(best, sum(map(padded, halves)))
    assert taken == best


@given(pairs=lengths, budget=st.integers(9, 60), max_shapes=st.integers(2, 12))
def test_buckets_hold_their_sentences_and_overflow_into_longer_ones(
    pairs: list[tuple[int, int]], budget: int, max_shapes: int
) -> None:
    buckets, bucket_of = fit(pairs, budget, max_shapes)
    source, target = np.array(pairs).T
    assert (source <= buckets.sources[bucket_of]).all()
    assert (target <= buckets.targets[bucket_of]).all()
    assert len(buckets.rows) <= max_shapes
    assert (buckets.rows >= 1).all()
    assert (buckets.rows * np.maximum(buckets.sources, buckets.targets) <= budget).all()
    assert buckets.overflow[-1] == -1
    for bucket, onward in enumerate(buckets.overflow[:-1]):
        assert onward > bucket
        assert buckets.sources[onward] >= buckets.sources[bucket]
        assert buckets.targets[onward] >= buckets.targets[bucket]


def test_very_long_sentences_do_not_make_a_bucket_each() -> None:
    rng = np.random.default_rng(0)
    source = rng.integers(1, 20_000, 5000)
    buckets = Buckets.fit(source, source, np.ones(5000), 20_000, 4000)
    bucket_of = buckets.assign(source, source)
    assert len(buckets.rows) < 600
    assert (buckets.sources[bucket_of] >= source).all()
    assert (buckets.sources[bucket_of] <= np.maximum(256, source * 1.04)).mean() > 0.9, "told apart to a 32nd"
