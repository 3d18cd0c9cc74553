"""The fused step and the slots find what the plain search finds. Needs a GPU, or Triton's interpreter
(TRITON_INTERPRET=1)."""

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from deepnmt.decoding import continuous
from deepnmt.decoding.config import SearchConfig
from deepnmt.decoding.prepared import AlignedLinear, PreparedModel
from deepnmt.decoding.rules import Rules
from deepnmt.decoding.search import Beams, Found, search
from deepnmt.model import connections
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections.denseformer import DenseFormerConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.connections.sparse_dlcl import SparseDlclConfig
from deepnmt.model.connections.transparent_dlcl import TransparentDlclConfig
from deepnmt.model.sublayers import SUBLAYERS
from deepnmt.model.transformer import Transformer

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (torch.cuda.is_available() or INTERPRETED), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning"),  # the interpreter's
]
EOS, BANNED = 2, (0, 1, 3)
CONNECTIONS = {kind: scheme.Config() for kind, scheme in connections.CONNECTIONS.items() if scheme.is_mixture} | {
    "dlcl with a window": DlclConfig(window=2, norm_embedding=True),
    "dlcl without norms": DlclConfig(norm=False),
    "sparse-dlcl": SparseDlclConfig(block=2),
    "transparent-dlcl": TransparentDlclConfig(),
    "denseformer": DenseFormerConfig(dilation=2),
}


def small_model(norm: str = "pre", connection: str = "dlcl", **options: object) -> Transformer:
    torch.manual_seed(0)
    stacks = {
        name: StackConfig(num_layers=depth, dim=32, ffn_dim=64, num_heads=2, connection=CONNECTIONS[connection])
        for name, depth in (("encoder", 2), ("decoder", 3))
    }
    config = ModelConfig(source_vocab_size=150, target_vocab_size=150, norm=norm, tie_output=False, **stacks, **options)
    model = Transformer(config).to(DEVICE).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)  # away from the flat start
        if model.output_bias is not None:
            model.output_bias.normal_()
        model.output_weight[EOS] += 0.05  # ends come at different times
        for parameter in model.decoder.connection.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def sentences(count: int, longest: int = 12) -> list[list[int]]:
    draw = torch.Generator().manual_seed(count)
    lengths = torch.randint(1, longest, (count,), generator=draw).tolist()
    return [[*torch.randint(4, 150, (length,), generator=draw).tolist(), EOS] for length in lengths]


def plain(prepared: PreparedModel, sources: list[list[int]], rules: Rules, config: SearchConfig) -> list[list[Found]]:
    width = max(map(len, sources))
    source = torch.tensor([ids + [1] * (width - len(ids)) for ids in sources], device=DEVICE)
    return search(prepared.step, prepared.start(source, config.beam), Beams(rules, config))


def limits(sources: list[list[int]]) -> torch.Tensor:
    return torch.tensor([2 + (7 * len(ids)) % 11 for ids in sources], device=DEVICE)


def assert_same(found: list[list[Found]], expected: list[list[Found]]) -> None:
    for left, right in zip(found, expected, strict=True):
        assert [h.symbols for h in left] == [h.symbols for h in right]
        assert [h.log_prob for h in left] == pytest.approx([h.log_prob for h in right], abs=1e-3)
        assert [h.score for h in left] == pytest.approx([h.score for h in right], abs=1e-3)


def check(model: Transformer, config: SearchConfig, count: int = 3, most: int = 1024, **other: Any) -> None:
    prepared, sources = PreparedModel(model), sentences(count)
    expected = plain(prepared, sources, Rules(limits(sources), EOS, BANNED, **other), config)
    aligned = PreparedModel(model, AlignedLinear(model.output_weight, model.output_bias, 64))
    searches = continuous.ContinuousSearches(aligned, most=most)
    for _ in range(1 if INTERPRETED else 2):  # the second time over what the first one left
        assert_same(searches.search_all(sources, Rules(limits(sources), EOS, BANNED, **other), config), expected)


class TestAgreement:
    pytestmark = needs_triton

    @pytest.mark.parametrize("norm", ["pre", "post"])
    @pytest.mark.parametrize("connection", CONNECTIONS)
    def test_every_model_that_can_be_fused(self, norm: str, connection: str) -> None:
        model = small_model(norm, connection)
        assert continuous.can_fuse(model)
        check(model, SearchConfig(beam=4))

    @pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
    def test_normed_queries_and_keys(self, positions: str) -> None:
        model = small_model(qk_norm=True, positions=positions)
        assert continuous.can_fuse(model)
        check(model, SearchConfig(beam=4))

    @pytest.mark.parametrize(("beam", "nbest"), [(2, 1), (3, 3), (4, 4), (5, 2)])
    @pytest.mark.parametrize("options", [{}, {"stop_early": False}, {"patience": 2.0}], ids=str)
    def test_every_search(self, beam: int, nbest: int, options: dict[str, object]) -> None:
        check(small_model(), SearchConfig(beam=beam, nbest=nbest, **options))

    @pytest.mark.parametrize(("alpha", "form"), [(-1.0, "length"), (1.3, "gnmt")])
    def test_every_penalty(self, alpha: float, form: str) -> None:
        check(small_model(), SearchConfig(beam=4, nbest=4, length_penalty=alpha, penalty_form=form))

    @pytest.mark.parametrize("most", [1, 4, 8])
    def test_sentences_that_take_the_place_of_others(self, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(continuous, "ENCODED_TOKENS", 40)
        check(small_model(), SearchConfig(beam=3), count=19, most=most)

    def test_a_least_length(self) -> None:
        check(small_model(), SearchConfig(beam=4), min_length=5)

    def test_translations_that_begin_with_a_tag(self) -> None:
        tags = torch.tensor([[7], [9], [7], [11], [9]], device=DEVICE)
        check(small_model(), SearchConfig(beam=3, nbest=3), count=5, most=4, prefix=tags, free=1)

    @pytest.mark.parametrize(
        "options",
        [
            {"activation": "gelu"},
            {"activation": "swish"},
            {"activation": "swiglu"},
            {"positions": "learned", "max_positions": 40},
            {"positions": "sinusoidal-hf", "first_position": 0, "start_id": 0, "output_bias": True},
            {"positions": "rotary"},
            {"positions": "relative", "max_distance": 2},
            {"positions": "relative", "max_distance": 20, "relative_values": False},
        ],
        ids=str,
    )
    def test_other_layers(self, options: dict[str, object]) -> None:
        check(small_model(**options), SearchConfig(beam=4))

    def test_the_vocabulary_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from deepnmt.decoding.kernels import beams_triton, step_triton

        monkeypatch.setattr(beams_triton, "VOCABULARY_BLOCK", 32)
        monkeypatch.setattr(beams_triton, "HISTORY_BLOCK", 2)
        monkeypatch.setattr(step_triton, "PAST_BLOCK", 2)
        check(small_model(), SearchConfig(beam=4, nbest=2))

    def test_a_run_that_was_given_up_leaves_nothing(self) -> None:
        prepared, sources, config = PreparedModel(small_model()), sentences(9), SearchConfig(beam=3)
        searches = continuous.ContinuousSearches(prepared, most=4)
        given_up = searches.search(sources, Rules(limits(sources), EOS, BANNED), config)
        next(given_up)
        given_up.close()
        expected = plain(prepared, sources, Rules(limits(sources), EOS, BANNED), config)
        assert_same(searches.search_all(sources, Rules(limits(sources), EOS, BANNED), config), expected)

    def test_shapes_are_used_again(self) -> None:
        searches = continuous.ContinuousSearches(PreparedModel(small_model()))
        for count in (5, 7, 8, 3):
            sources = sentences(count)
            searches.search_all(sources, Rules(limits(sources), EOS, BANNED), SearchConfig(beam=2))
        assert sorted(shape.sentences for shape in searches.recorded) == [4, 8]

    @pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter has no product of bf16")
    def test_in_half_precision_most_is_the_same(self) -> None:
        model = small_model().bfloat16()
        prepared, sources, config = PreparedModel(model), sentences(64), SearchConfig(beam=4)
        expected = plain(prepared, sources, Rules(limits(sources), EOS, BANNED), config)
        found = continuous.ContinuousSearches(prepared).search_all(sources, Rules(limits(sources), EOS, BANNED), config)
        same = sum(left[0].symbols == right[0].symbols for left, right in zip(found, expected, strict=True))
        assert same > 48
        means = [sum(h[0].score for h in hypotheses) / 64 for hypotheses in (found, expected)]
        assert means[0] == pytest.approx(means[1], abs=0.02)


def test_what_cannot_be_fused_is_left_to_the_search() -> None:
    assert not continuous.ContinuousSearches.suits(SearchConfig(beam=1))
    assert not continuous.ContinuousSearches.suits(SearchConfig(beam=9))
    assert not continuous.ContinuousSearches.suits(SearchConfig(beam=4), no_repeat_ngram=2)
    model = small_model()
    config = replace(model.config, decoder=replace(model.config.decoder, connection=DlclConfig(groups=4)))
    assert not continuous.can_fuse(Transformer(config))


@pytest.mark.parametrize("kind", SUBLAYERS)
def test_only_plain_sublayers_are_fused(kind: str) -> None:
    model = small_model(connection="residual")
    config = replace(model.config, decoder=replace(model.config.decoder, sublayer=SUBLAYERS[kind].Config()))  # type: ignore[call-arg]
    assert continuous.can_fuse(Transformer(config)) == (kind in ("pre", "post") and find_spec("triton") is not None)
