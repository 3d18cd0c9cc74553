"""The same numbers as others: the authors' code, and torch's own Transformer."""

from pathlib import Path

import numpy as np
import torch
from model_variants import DIM, NORMS, padded, scrambled, sentences, tiny_config
from pytest import mark
from torch import nn

from deepnmt.model.conversion import convert_model

AUTHORS = Path(__file__).parent / "authors"


@mark.parametrize("norm", NORMS)
def test_outputs_equal_the_authors(norm):
    path = AUTHORS / f"dlcl_{norm}.npz"
    model = convert_model(path, "dlcl")
    assert model.config.norm == norm
    with np.load(path) as stored, torch.no_grad():
        source, target_input = (torch.from_numpy(stored[name]) for name in ("source", "target_input"))
        encoded = model.encode(source)
        np.testing.assert_allclose(encoded.memories[0].numpy(), stored["encoder_output"], rtol=0, atol=1e-5)
        np.testing.assert_allclose(model(source, target_input).numpy(), stored["logits"], rtol=0, atol=1e-5)


def copy_attention(theirs: nn.MultiheadAttention, weight, bias, output):
    theirs.in_proj_weight.copy_(weight)
    theirs.in_proj_bias.copy_(bias)
    copy(theirs.out_proj, output)


def copy(theirs, ours):
    theirs.load_state_dict(ours.state_dict())


@torch.no_grad()
def torch_encoder(model):
    """nn.TransformerEncoder with the weights of our encoder."""
    pre = model.config.norm == "pre"
    layer = nn.TransformerEncoderLayer(DIM, 4, 24, dropout=0.0, batch_first=True, norm_first=pre)
    norm = nn.LayerNorm(DIM) if pre else None
    encoder = nn.TransformerEncoder(layer, 3, norm, enable_nested_tensor=False).double().eval()
    for theirs, ours in zip(encoder.layers, model.encoder.layers, strict=True):
        attention = ours.attention
        copy_attention(theirs.self_attn, attention.input.weight, attention.input.bias, attention.output)
        copy(theirs.linear1, ours.feed_forward.expand)
        copy(theirs.linear2, ours.feed_forward.contract)
        copy(theirs.norm1, ours.around_attention.norm)
        copy(theirs.norm2, ours.around_feed_forward.norm)
    if pre:
        copy(encoder.norm, model.encoder.final_norm)
    return encoder


@torch.no_grad()
def torch_decoder(model):
    pre = model.config.norm == "pre"
    layer = nn.TransformerDecoderLayer(DIM, 4, 24, dropout=0.0, batch_first=True, norm_first=pre)
    decoder = nn.TransformerDecoder(layer, 2, nn.LayerNorm(DIM) if pre else None).double().eval()
    for theirs, ours in zip(decoder.layers, model.decoder.layers, strict=True):
        attention, cross = ours.attention, ours.cross_attention
        copy_attention(theirs.self_attn, attention.input.weight, attention.input.bias, attention.output)
        weight = torch.cat([cross.query.weight, cross.key_value.weight])
        copy_attention(theirs.multihead_attn, weight, torch.cat([cross.query.bias, cross.key_value.bias]), cross.output)
        copy(theirs.linear1, ours.feed_forward.expand)
        copy(theirs.linear2, ours.feed_forward.contract)
        copy(theirs.norm1, ours.around_attention.norm)
        copy(theirs.norm2, ours.around_cross_attention.norm)
        copy(theirs.norm3, ours.around_feed_forward.norm)
    if pre:
        copy(decoder.norm, model.decoder.final_norm)
    return decoder


@mark.parametrize("norm", NORMS)
def test_residual_equals_the_transformer_of_torch(norm):
    model = scrambled(tiny_config(norm=norm))
    source, target = padded(sentences(7, 4, 5)), padded(sentences(4, 6, 3, seed=2))
    padding, length = source == 1, target.shape[1]
    with torch.no_grad():
        x = model.source_embedding(source, torch.arange(source.shape[1]))
        memory = torch_encoder(model)(x, src_key_padding_mask=padding)
        ours = model.encode(source)
        torch.testing.assert_close(ours.memories[0][~padding], memory[~padding], rtol=1e-9, atol=1e-9)

        y = model.target_embedding(target, torch.arange(length))
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        features = torch_decoder(model)(y, memory, tgt_mask=future, memory_key_padding_mask=padding)
        real = target != 1
        logits = features @ model.target_embedding.tokens.weight.T
        torch.testing.assert_close(model(source, target)[real], logits[real], rtol=1e-9, atol=1e-9)


def test_sinusoids_have_sines_first_and_begin_after_the_padding_id():
    """Position p, dimension i: sin(p / 10000^(i / (d/2 - 1))), the cosines in the second half; p starts at 2."""
    model = scrambled(tiny_config())
    with torch.no_grad():
        model.source_embedding.tokens.weight.zero_()
        embedded = model.source_embedding(torch.full((1, 5), 4), torch.arange(5))[0]
    place = torch.arange(2, 7).double()[:, None]
    angles = place * 10_000.0 ** (-torch.arange(DIM // 2).double() / (DIM // 2 - 1))
    torch.testing.assert_close(embedded.double(), torch.cat([angles.sin(), angles.cos()], 1), rtol=1e-5, atol=1e-5)
