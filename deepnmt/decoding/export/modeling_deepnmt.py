"""A translation model of deepnmt that transformers has no class for: its layers may read mixtures of all layers below.

Load it with `AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)`. This file belongs to the exported
folder and needs torch and transformers only. Its plain pre-norm and post-norm follow "Attention is all you need"; the
mixtures are dynamic linear combination of layers, https://arxiv.org/abs/1906.01787.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu, "swiglu": F.silu}
STACK = {"layers": 1, "dim": 8, "ffn_dim": 8, "heads": 1, "norm": "pre", "connection": None}
DEFAULTS = {
    "vocab_size": 4,
    "decoder_vocab_size": 4,
    "encoder_stack": STACK,
    "decoder_stack": STACK,
    "norm_kind": "layer",
    "activation": "relu",
    "positions": "sinusoidal",
    "max_positions": 1024,
    "first_position": 2,
    "scale_embeddings": True,
    "share_embeddings": False,
    "tie_output": True,
    "output_bias": False,
    "dropout": 0.0,
}


class DeepnmtConfig(PretrainedConfig):
    """`encoder_stack` and `decoder_stack` are tables: layers, dim, ffn_dim, heads, norm (pre or post), connection.

    A connection is null (residual) or a table: `groups`, the weights of each pair of layers, and `norms`, which outputs
    (pre-norm) or mixtures (post-norm) are normalised, the embedding first.
    """

    model_type = "deepnmt"
    is_encoder_decoder = True

    def __init__(self, **settings) -> None:
        settings = DEFAULTS | settings
        for name in DEFAULTS:
            setattr(self, name, settings.pop(name))
        self.hidden_size = self.decoder_stack["dim"]
        self.num_hidden_layers = self.decoder_stack["layers"]
        self.num_attention_heads = self.decoder_stack["heads"]
        super().__init__(**{"tie_word_embeddings": self.share_embeddings, **settings})


def new_norm(config: DeepnmtConfig, dim: int) -> nn.Module:
    return nn.RMSNorm(dim, eps=1e-6) if config.norm_kind == "rms" else nn.LayerNorm(dim)


class DeepnmtEmbedding(nn.Module):
    """Tokens, scaled by the square root of the width, and positions: sines then cosines, or learned."""

    def __init__(self, config: DeepnmtConfig, vocab_size: int, dim: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, dim, config.pad_token_id)
        self.scale = math.sqrt(dim) if config.scale_embeddings else 1.0
        self.first_position = config.first_position
        self.positions = None
        if config.positions == "learned":
            self.positions = nn.Embedding(config.max_positions + config.first_position, dim)
        count = dim // 2
        self.num_steps = max(count - 1, 1) if config.positions == "sinusoidal" else count

    def forward(self, ids: Tensor, past: int = 0) -> Tensor:
        places = torch.arange(past, past + ids.shape[1], device=ids.device) + self.first_position
        tokens = self.tokens(ids) * self.scale
        if self.positions is not None:
            return tokens + self.positions(places)
        index = torch.arange(tokens.shape[-1] // 2, device=ids.device, dtype=torch.float32)
        angles = places[:, None].float() * torch.exp(index * (-math.log(10_000) / self.num_steps))
        return tokens + torch.cat([angles.sin(), angles.cos()], dim=-1).to(tokens.dtype)


class DeepnmtAttention(nn.Module):
    """Queries, keys and values are packed; `memory_dim` makes it attend to the encoder's result."""

    def __init__(self, dim: int, heads: int, memory_dim: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        if memory_dim is None:
            self.input = nn.Linear(dim, 3 * dim)
        else:
            self.query, self.key_value = nn.Linear(dim, dim), nn.Linear(memory_dim, 2 * dim)
        self.output = nn.Linear(dim, dim)

    def split(self, x: Tensor, parts: int) -> list[Tensor]:
        """(batch, positions, parts * dim) -> parts of (batch, heads, positions, head_dim)"""
        return [part.transpose(1, 2) for part in x.unflatten(-1, (parts, self.heads, -1)).unbind(2)]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=visible)
        return self.output(attended.transpose(1, 2).flatten(2))


class DeepnmtLayer(nn.Module):
    """Attention, attention to the source (decoder), feed-forward; a norm before each (pre) or after its sum (post)."""

    def __init__(self, config: DeepnmtConfig, stack: dict, number: int, memory_dim: int | None) -> None:
        super().__init__()
        dim, heads = stack["dim"], stack["heads"]
        self.number, self.pre = number, stack["norm"] == "pre"
        self.activation, self.gated = ACTIVATIONS[config.activation], config.activation == "swiglu"
        self.attention, self.attention_norm = DeepnmtAttention(dim, heads), new_norm(config, dim)
        if memory_dim is not None:
            self.cross_attention = DeepnmtAttention(dim, heads, memory_dim)
            self.cross_attention_norm = new_norm(config, dim)
        self.expand = nn.Linear(dim, (2 if self.gated else 1) * stack["ffn_dim"])
        self.contract = nn.Linear(stack["ffn_dim"], dim)
        self.feed_forward_norm = new_norm(config, dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, visible, memory=None, memory_visible=None, cache=None):
        x = self.around(self.attention_norm, x, lambda x: self.attend_itself(x, visible, cache))
        if memory is not None:
            x = self.around(
                self.cross_attention_norm, x, lambda x: self.attend_memory(x, memory, memory_visible, cache)
            )
        return self.around(self.feed_forward_norm, x, self.feed_forward)

    def around(self, norm, x, function):
        if self.pre:
            return x + self.dropout(function(norm(x)))
        return norm(x + self.dropout(function(x)))

    def attend_itself(self, x, visible, cache):
        query, keys, values = self.attention.split(self.attention.input(x), 3)
        if cache is not None:
            keys, values = cache.self_attention_cache.update(keys, values, self.number)
        return self.attention.attend(query, keys, values, visible)

    def attend_memory(self, x, memory, visible, cache):
        attention = self.cross_attention
        (query,) = attention.split(attention.query(x), 1)
        if cache is not None and cache.is_updated.get(self.number):
            kept = cache.cross_attention_cache.layers[self.number]
            keys, values = kept.keys, kept.values
        else:
            keys, values = attention.split(attention.key_value(memory), 2)
            if cache is not None:
                keys, values = cache.cross_attention_cache.update(keys, values, self.number)
                cache.is_updated[self.number] = True
        return attention.attend(query, keys, values, visible)

    def feed_forward(self, x):
        x = self.expand(x)
        if self.gated:
            gate, x = x.chunk(2, dim=-1)
            return self.contract(self.activation(gate) * x)
        return self.contract(self.activation(x))


class DeepnmtMixture(nn.Module):
    """What follows layer l is sum_k W[l, k] y_k over all outputs so far, y_0 being the embedding.

    Pre-norm normalises the outputs, post-norm the mixtures (and y_0, if it has a norm).
    """

    def __init__(self, config: DeepnmtConfig, stack: dict) -> None:
        super().__init__()
        count, dim, connection = stack["layers"] + 1, stack["dim"], stack["connection"]
        self.weight = nn.Parameter(torch.zeros(count, count, connection["groups"]))
        self.norms = nn.ModuleList([new_norm(config, dim) if k else nn.Identity() for k in connection["norms"]])
        self.pre = stack["norm"] == "pre"

    def write(self, history: list[Tensor], output: Tensor) -> None:
        first = not history
        history.append(self.norms[len(history)](output) if self.pre or first else output)

    def read(self, history: list[Tensor]) -> Tensor:
        row, dim = len(history) - 1, history[0].shape[-1]
        weights = self.weight[row].repeat(1, dim // self.weight.shape[2])  # dimension i has weight i modulo groups
        mixed = torch.zeros_like(history[0])
        for weight, output in zip(weights, history, strict=False):
            mixed = torch.addcmul(mixed, output, weight.to(output.dtype))
        return mixed if self.pre else self.norms[row](mixed)


class DeepnmtStack(nn.Module):
    def __init__(self, config: DeepnmtConfig, stack: dict, vocab_size: int, memory_dim: int | None = None) -> None:
        super().__init__()
        self.embedding = DeepnmtEmbedding(config, vocab_size, stack["dim"])
        self.layers = nn.ModuleList([DeepnmtLayer(config, stack, k, memory_dim) for k in range(stack["layers"])])
        self.connection = DeepnmtMixture(config, stack) if stack["connection"] else None
        self.final_norm = new_norm(config, stack["dim"]) if stack["norm"] == "pre" else nn.Identity()

    def run(self, x: Tensor, *given) -> Tensor:
        if self.connection is None:
            for layer in self.layers:
                x = layer(x, *given)
            return self.final_norm(x)
        history = []
        self.connection.write(history, x)
        for layer in self.layers:
            self.connection.write(history, layer(self.connection.read(history), *given))
        return self.final_norm(self.connection.read(history))


class DeepnmtEncoder(DeepnmtStack):
    main_input_name = "input_ids"

    def forward(self, input_ids, attention_mask=None, **ignored):
        mask = input_ids != self.embedding.tokens.padding_idx if attention_mask is None else attention_mask.bool()
        return BaseModelOutput(last_hidden_state=self.run(self.embedding(input_ids), mask[:, None, None, :]))


class DeepnmtDecoder(DeepnmtStack):
    def forward(self, ids, memory, memory_mask, cache=None):
        past, length = (0 if cache is None else cache.get_seq_length()), ids.shape[1]
        place = torch.arange(past + length, device=ids.device)
        visible = (place[None, :] <= place[past:, None])[None, None]
        return self.run(self.embedding(ids, past), visible, memory, memory_mask[:, None, None, :], cache)


class DeepnmtForConditionalGeneration(PreTrainedModel, GenerationMixin):
    config_class = DeepnmtConfig
    main_input_name = "input_ids"
    _supports_sdpa = True

    def __init__(self, config: DeepnmtConfig) -> None:
        super().__init__(config)
        source, target = config.encoder_stack, config.decoder_stack
        self.encoder = DeepnmtEncoder(config, source, config.vocab_size)
        self.decoder = DeepnmtDecoder(config, target, config.decoder_vocab_size, source["dim"])
        dim, size = target["dim"], config.decoder_vocab_size
        self.output = None if config.tie_output else nn.Linear(dim, size, bias=False)
        self.output_bias = nn.Parameter(torch.zeros(size)) if config.output_bias else None
        if config.share_embeddings:
            self._tied_weights_keys = {"decoder.embedding.tokens.weight": "encoder.embedding.tokens.weight"}
        self.post_init()

    def get_encoder(self, *args, **kwargs):
        return self.encoder

    def get_decoder(self, *args, **kwargs):
        return self.decoder

    def get_input_embeddings(self):
        return self.encoder.embedding.tokens

    def set_input_embeddings(self, value):
        self.encoder.embedding.tokens = value

    def prepare_decoder_input_ids_from_labels(self, labels):
        shifted = labels.new_full(labels.shape, self.config.decoder_start_token_id)
        shifted[:, 1:] = labels[:, :-1].masked_fill(labels[:, :-1] == -100, self.config.pad_token_id)
        return shifted

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        decoder_input_ids=None,
        encoder_outputs=None,
        past_key_values=None,
        labels=None,
        use_cache=None,
        **ignored,
    ):
        """The decoder's ids are padded at their ends, if at all."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        memory = encoder_outputs[0]
        if attention_mask is None:
            known = input_ids is not None
            attention_mask = input_ids != self.config.pad_token_id if known else memory.new_ones(memory.shape[:2])
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        cache = past_key_values if isinstance(past_key_values, EncoderDecoderCache) else None
        features = self.decoder(decoder_input_ids, memory, attention_mask.bool(), cache)
        weight = self.decoder.embedding.tokens.weight if self.output is None else self.output.weight
        logits = F.linear(features, weight, self.output_bias)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Seq2SeqLMOutput(loss=loss, logits=logits, past_key_values=cache, encoder_last_hidden_state=memory)
