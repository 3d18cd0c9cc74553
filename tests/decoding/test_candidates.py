"""The quick top-k is the plain one."""

import pytest
import torch

from deepnmt.decoding.candidates import log_normaliser, top_symbols


@pytest.mark.parametrize("vocab_size", [3, 64, 65, 640, 1000, 32_003])
@pytest.mark.parametrize("count", [1, 4, 8])
def test_top_symbols_are_those_of_topk(vocab_size, count):
    for seed in range(20):
        logits = torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(seed))
        logits[:, seed % vocab_size] = -torch.inf
        logits[0, -1] = 9.0  # the incomplete block at the end counts too
        values, symbols = top_symbols(logits, count)
        expected = logits.topk(min(count, vocab_size), dim=1)
        assert torch.equal(values, expected.values)
        finite = expected.values > -torch.inf
        assert torch.equal(symbols[finite], expected.indices[finite])


def test_normaliser_is_log_sum_exp():
    logits = torch.randn(7, 5000) * 20
    expected = logits.double().exp().sum(1, keepdim=True).log()
    torch.testing.assert_close(log_normaliser(logits).double(), expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("vocab_size", [3, 5003, 32_000, 70_001])
def test_a_normaliser_does_not_depend_on_the_place_of_its_row(vocab_size, threads):
    logits = torch.randn(21, vocab_size) * 5
    logits[3, 1:], logits[4, 0] = -torch.inf, torch.nan
    expected = torch.cat([log_normaliser(row) for row in logits.split(1)])
    torch.testing.assert_close(expected, logits.logsumexp(1, keepdim=True), equal_nan=True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for parts in (logits.split(21), logits.split(20), logits.split(2), logits.split(1)):
            found = torch.cat([log_normaliser(part) for part in parts])
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    finally:
        torch.set_num_threads(before)
