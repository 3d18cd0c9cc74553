"""Checkpoints of the authors' code (their fairseq fork) and of fairseq itself into our names and config."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from deepnmt.errors import InputError
from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import ConnectionConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.connections.residual import ResidualConfig
from deepnmt.model.foreign import ForeignModel, read_npz, read_torch
from deepnmt.model.storage import fill, weights
from deepnmt.model.transformer import Transformer


def convert_dlcl(path: Path) -> Transformer:
    """The model of a checkpoint of the authors' trainer, or of an .npz of its parameters."""
    foreign = read_npz(path) if path.suffix == ".npz" else read_torch(path)
    return _rebuild(ForeignModel(path, _renumber_norms(foreign.state), foreign.settings))


def convert_fairseq(path: Path) -> Transformer:
    """The model of a checkpoint of fairseq's `transformer` (0.9 and later, as long as it stores `args`)."""
    foreign = read_torch(path)
    for name in ("no_token_positional_embeddings", "no_scale_embedding", "cross_self_attention", "no_cross_attention"):
        if foreign.settings.get(name):
            raise InputError(f"{path} was made with {name}, which deepnmt does not have")
    return _rebuild(ForeignModel(path, _to_authors_names(foreign), foreign.settings))


CONVERTERS: dict[str, Callable[[Path], Transformer]] = {"dlcl": convert_dlcl, "fairseq": convert_fairseq}


def _rebuild(foreign: ForeignModel) -> Transformer:
    try:
        model = Transformer(_config(foreign))
    except ValueError as error:
        raise InputError(f"{foreign.path}: {error}") from error
    fill(weights(model), _rename(foreign, model.config), foreign.path)
    return model.eval()


_MODERN_NORMS = {
    "encoder": {"self_attn_layer_norm": 0, "final_layer_norm": 1},
    "decoder": {"self_attn_layer_norm": 0, "encoder_attn_layer_norm": 1, "final_layer_norm": 2},
}


def _to_authors_names(foreign: ForeignModel) -> dict[str, Tensor]:
    """fairseq has since split the packed projections, named the norms and stored the output projection on its own."""
    state: dict[str, Tensor] = {}
    for name, tensor in foreign.state.items():
        if match := re.fullmatch(r"(.+_attn)\.([qkv])_proj\.(weight|bias)", name):
            if match[2] == "q":
                state |= _packed(
                    match[1], match[3], [foreign.tensor(name.replace("q_proj", f"{p}_proj")) for p in "qkv"]
                )
        elif match := re.fullmatch(r"(encoder|decoder)\.(layers\.\d+)\.(\w+_layer_norm)\.(weight|bias)", name):
            number = _MODERN_NORMS[match[1]].get(match[3], match[3])
            state[f"{match[1]}.{match[2]}.layer_norms.{number}.{match[4]}"] = tensor
        elif name == "decoder.output_projection.weight":
            if not torch.equal(tensor, foreign.tensor("decoder.embed_tokens.weight")):
                state["decoder.embed_out"] = tensor
        else:
            state[name] = tensor
    return state


def _packed(attention: str, kind: str, parts: list[Tensor]) -> dict[str, Tensor]:
    """The projections of one attention as one tensor; as two where the source has another width."""
    if len({part.shape for part in parts}) == 1:
        return {f"{attention}.in_proj_{kind}": torch.cat(parts)}
    return {f"{attention}.query_{kind}": parts[0], f"{attention}.key_value_{kind}": torch.cat(parts[1:])}


def _renumber_norms(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """An early version of their code kept the weights as a matrix, and counted the norms of y_1, y_2, ... from zero."""
    for side in ("encoder", "decoder"):
        weight = state.get(f"{side}.history.weight")
        if weight is not None and weight.dim() == 2:
            norms = [name for name in state if name.startswith(f"{side}.history.layer_norms.")]
            moved = {re.sub(r"\d+", lambda index: str(int(index[0]) + 1), name): state.pop(name) for name in norms}
            state |= moved | {f"{side}.history.weight": weight.unsqueeze(2)}
    return state


def _config(foreign: ForeignModel) -> ModelConfig:
    state = foreign.state
    source, target = (foreign.tensor(f"{side}.embed_tokens.weight") for side in ("encoder", "decoder"))
    shared = source.shape == target.shape and torch.equal(source, target)
    norms = {side: f"{side}.layer_norm.weight" in state for side in ("encoder", "decoder")}
    if norms["encoder"] != norms["decoder"]:
        raise InputError(f"{foreign.path} has pre-norm in one stack and post-norm in the other: no such model here")
    learned_positions = "encoder.embed_positions.weight" in state
    pad_id = int(foreign.settings.get("pad", 1))
    return ModelConfig(
        source_vocab_size=source.shape[0],
        target_vocab_size=target.shape[0],
        norm="pre" if norms["encoder"] else "post",
        encoder=_stack_config(foreign, "encoder"),
        decoder=_stack_config(foreign, "decoder"),
        share_embeddings=shared,
        tie_output="decoder.embed_out" not in state,
        positions="learned" if learned_positions else "sinusoidal",
        max_positions=len(state["encoder.embed_positions.weight"]) - pad_id - 1
        if learned_positions
        else ModelConfig.max_positions,
        activation=_activation(foreign),
        dropout=float(foreign.settings.get("dropout", 0.1)),
        attention_dropout=float(foreign.settings.get("attention_dropout", 0.0)),
        ffn_dropout=float(foreign.settings.get("relu_dropout", 0.0) or foreign.settings.get("activation_dropout", 0.0)),
        pad_id=pad_id,
    )


def _activation(foreign: ForeignModel) -> Literal["relu", "gelu"]:
    name = foreign.settings.get("activation_fn", "relu")
    if name not in ("relu", "gelu"):
        raise InputError(f"{foreign.path} was made with activation_fn = {name}, which deepnmt does not have")
    return name


def _stack_config(foreign: ForeignModel, side: str) -> StackConfig:
    depths = {int(match[1]) for name in foreign.state if (match := re.match(rf"{side}\.layers\.(\d+)\.", name))}
    if depths != set(range(len(depths))) or not depths:
        raise InputError(f"{foreign.path} has no layers {side}.layers.0, 1, ... in a row")
    return StackConfig(
        num_layers=len(depths),
        dim=foreign.tensor(f"{side}.embed_tokens.weight").shape[1],
        ffn_dim=foreign.tensor(f"{side}.layers.0.fc1.weight").shape[0],
        num_heads=int(foreign.setting(f"{side}_attention_heads")),
        connection=_connection_config(foreign, side),
    )


def _connection_config(foreign: ForeignModel, side: str) -> ConnectionConfig:
    weight = foreign.state.get(f"{side}.history.weight")
    if weight is None:
        return ResidualConfig()
    settings = foreign.settings
    softmax = bool(settings.get("normalize_learned_weight", False))
    window = int(settings.get("history_window_size", -1))
    return DlclConfig(
        learned=bool(settings.get(f"{side}_learnable", True)),
        start="one" if settings.get("init_value") == "one" else "average",
        norm_embedding=f"{side}.history.layer_norms.0.weight" in foreign.state,
        softmax=softmax,
        groups=weight.shape[2],
        # Without softmax their window is only where the weights start: what was learned outside of it counts.
        window=window if softmax and window > 0 else None,
        dropout=float(settings.get("history_dropout", 0.0)),
    )


_LAYER = {
    "self_attn.in_proj_": "attention.input.",
    "self_attn.out_proj.": "attention.output.",
    "encoder_attn.out_proj.": "cross_attention.output.",
    "encoder_attn.query_": "cross_attention.query.",
    "encoder_attn.key_value_": "cross_attention.key_value.",
    "fc1.": "feed_forward.expand.",
    "fc2.": "feed_forward.contract.",
}
_NORMS = {
    "encoder": ("around_attention", "around_feed_forward"),
    "decoder": ("around_attention", "around_cross_attention", "around_feed_forward"),
}
_EMBEDDING = {"encoder": "source_embedding", "decoder": "target_embedding"}
_NO_PARAMETER = re.compile(r"(encoder|decoder)\.(version|embed_positions\.(_float_tensor|weights))")


def _rename(foreign: ForeignModel, config: ModelConfig) -> dict[str, Tensor]:
    ours: dict[str, Tensor] = {}
    for name, tensor in foreign.state.items():
        if _NO_PARAMETER.fullmatch(name):
            continue
        if name == "decoder.embed_tokens.weight" and config.share_embeddings:
            continue
        renamed = _rename_one(name, tensor)
        if renamed is None:
            raise InputError(f"{foreign.path} holds {name}, which deepnmt does not understand")
        ours.update(renamed)
    return ours


def _rename_one(name: str, tensor: Tensor) -> dict[str, Tensor] | None:
    """Our name and value for one of theirs; the packed projection of cross attention becomes two."""
    if name == "decoder.embed_out":
        return {"output.weight": tensor}
    side, _, rest = name.partition(".")
    if side not in _EMBEDDING:
        return None
    if rest in ("layer_norm.weight", "layer_norm.bias"):
        return {f"{side}.final_norm.{rest.rpartition('.')[2]}": tensor}
    if rest in ("embed_tokens.weight", "embed_positions.weight"):
        return {f"{_EMBEDDING[side]}.{rest.removeprefix('embed_')}": tensor}
    if rest == "history.weight":
        return {f"{side}.connection.weight": tensor}
    if match := re.fullmatch(r"history\.layer_norms\.(\d+)\.(weight|bias)", rest):
        return {f"{side}.connection.norms.{match[1]}.{match[2]}": tensor}
    if match := re.fullmatch(r"layers\.(\d+)\.(.+)", rest):
        return _rename_in_layer(side, f"{side}.layers.{match[1]}", match[2], tensor)
    return None


def _rename_in_layer(side: str, layer: str, rest: str, tensor: Tensor) -> dict[str, Tensor] | None:
    kind = rest.rpartition(".")[2].rpartition("_")[2]  # weight or bias
    if rest.startswith("encoder_attn.in_proj_"):
        dim = len(tensor) // 3
        query, key_value = tensor[:dim], tensor[dim:]
        return {
            f"{layer}.cross_attention.query.{kind}": query,
            f"{layer}.cross_attention.key_value.{kind}": key_value,
        }
    if match := re.fullmatch(r"layer_norms\.(\d)\.(weight|bias)", rest):
        names = _NORMS[side]
        return {f"{layer}.{names[int(match[1])]}.norm.{match[2]}": tensor} if int(match[1]) < len(names) else None
    for theirs, mine in _LAYER.items():
        if rest.startswith(theirs) and kind in ("weight", "bias"):
            return {f"{layer}.{mine}{kind}": tensor}
    return None
