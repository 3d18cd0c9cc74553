"""The recorded search finds what the search finds: replayed on a GPU, elsewhere by calling what would be recorded."""

from typing import Any

import pytest
import torch

from deepnmt.decoding import graphed
from deepnmt.decoding.config import LengthPenalty, SearchConfig
from deepnmt.decoding.engine import Engine
from deepnmt.decoding.rules import Rules
from deepnmt.decoding.search import beam_search
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.transformer import Transformer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Called:
    """In place of a CUDA graph: replaying is calling."""

    def __init__(self) -> None:
        self.replay: Any = None


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> graphed.GraphedSearches:
    torch.manual_seed(0)
    stacks = {
        name: StackConfig(num_layers=depth, dim=32, ffn_dim=64, num_heads=4, connection=DlclConfig())
        for name, depth in (("encoder", 5), ("decoder", 2))
    }
    model = Transformer(ModelConfig(source_vocab_size=200, target_vocab_size=200, **stacks)).to(DEVICE).eval()
    with torch.no_grad():
        model.output_weight.mul_(3)  # sharper, so that hypotheses differ in score
    if DEVICE == "cpu":

        def record(self: graphed.GraphedSearch) -> None:
            self._start()
            self._step()
            self.start_graph.replay, self.step_graph.replay = self._start, self._step  # type: ignore[method-assign]

        monkeypatch.setattr(torch.cuda, "CUDAGraph", Called)
        monkeypatch.setattr(graphed.GraphedSearch, "_record", record)
    return graphed.GraphedSearches(Engine(model))


@pytest.mark.parametrize("nbest", [1, 4])
@pytest.mark.parametrize("sentences", [1, 3, 9])
def test_recorded_equals_stepwise(searches: graphed.GraphedSearches, sentences: int, nbest: int) -> None:
    config = SearchConfig(beam=4, nbest=nbest, penalty=LengthPenalty(alpha=0.6))
    for length in (7, 18, 5):  # the second time of a shape is a replay of what another batch left
        source = torch.randint(4, 200, (sentences, length), device=DEVICE)
        source[0, 4:] = 1
        limits = torch.randint(5, 20, (sentences,), device=DEVICE)

        def rules(limits: torch.Tensor = limits) -> Rules:
            return Rules(limits, 2, (0, 1, 3))

        assert searches.suits(rules(), config)
        stepwise = beam_search(searches.engine.step, searches.engine.start(source, 4), rules(), config)
        recorded = searches.search(source, rules(), config)
        for left, right in zip(stepwise, recorded, strict=True):
            assert [found.symbols for found in left] == [found.symbols for found in right]
            assert [found.score for found in left] == pytest.approx([found.score for found in right], abs=1e-4)


def test_what_it_does_not_suit_is_left_to_the_search() -> None:
    config = SearchConfig(beam=4)
    limits = torch.tensor([5, 6])
    assert graphed.GraphedSearches.suits(Rules(limits, 2), config)
    assert not graphed.GraphedSearches.suits(Rules(limits, 2, no_repeat_ngram=2), config)
    assert not graphed.GraphedSearches.suits(Rules(limits, 2, prefix=torch.tensor([[4], [5]])), config)
    assert not graphed.GraphedSearches.suits(Rules(limits, 2), SearchConfig(beam=1))
    assert not graphed.GraphedSearches.suits(Rules(torch.full((2000,), 5), 2), config)
