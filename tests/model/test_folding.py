"""A folded model is plain, and computes what it was folded from."""

from dataclasses import replace

import torch
from model_variants import SUBLAYER_VARIANTS, padded, scrambled, sentences, tiny_config
from pytest import mark

from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.folding import folded, folded_config
from deepnmt.model.sublayers import SUBLAYERS

FOLDS = {kind: scheme.folds_into for kind, scheme in SUBLAYERS.items() if scheme.folds_into}


def logits(model):
    return model(padded(sentences(7, 4)), padded(sentences(5, 6, seed=2)))


def kinds(config):
    return [config.sublayer_of(stack).kind for stack in (config.encoder, config.decoder)]


def test_the_schemes_that_fold():
    known = {"deepnorm": "post", "admin": "post", "scaled": "pre", "layer-scale": "pre"}
    assert known.items() <= FOLDS.items()


@mark.parametrize("options", [{}, {"norm_kind": "rms"}, {"qk_norm": True}, {"positions": "rotary"}], ids=str)
@mark.parametrize("kind", FOLDS)
def test_what_folds_is_a_plain_model_that_computes_the_same(kind, options):
    model = scrambled(tiny_config(norm=kind, **options))
    plain = folded(model)
    assert kinds(plain.config) == [FOLDS[kind]] * 2
    torch.testing.assert_close(logits(plain), logits(model), rtol=0, atol=1e-13)
    assert folded(plain) is plain


def test_an_epsilon_of_its_own_is_folded_too():
    config = tiny_config(norm="deepnorm")
    model = scrambled(replace(config, encoder=replace(config.encoder, norm_eps=0.1)))
    assert not torch.allclose(logits(model), logits(scrambled(config)))
    torch.testing.assert_close(logits(folded(model)), logits(model), rtol=0, atol=1e-13)


@mark.parametrize("kind", FOLDS)
def test_between_mixtures_only_what_needs_no_norm_below_folds(kind):
    model = scrambled(tiny_config(encoder=DlclConfig(), norm=kind))
    plain = folded(model)
    assert kinds(plain.config) == ["admin" if kind == "admin" else FOLDS[kind], FOLDS[kind]]
    torch.testing.assert_close(logits(plain), logits(model), rtol=0, atol=1e-13)


@mark.parametrize("kind", sorted(SUBLAYER_VARIANTS.keys() - FOLDS))
def test_others_stay_as_they_are(kind):
    model = scrambled(tiny_config(norm=kind))
    assert folded(model) is model
    assert folded_config(model.config) == model.config
