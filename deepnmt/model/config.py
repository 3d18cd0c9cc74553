"""The configuration of a model, which is saved with the weights and suffices to rebuild it."""

from dataclasses import dataclass, field
from typing import Literal

from deepnmt.model.connections import CONNECTIONS, ConnectionConfig
from deepnmt.model.connections.residual import ResidualConfig
from deepnmt.model.norms import EPS
from deepnmt.model.sublayers import SUBLAYERS, NormPlacement, SublayerConfig
from deepnmt.settings import check_bounds

CONNECTION_CONFIGS = {kind: connection.Config for kind, connection in CONNECTIONS.items()}
SUBLAYER_CONFIGS = {kind: sublayer.Config for kind, sublayer in SUBLAYERS.items()}


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """An encoder or a decoder."""

    num_layers: int = 6
    dim: int = 512
    ffn_dim: int = 2048
    num_heads: int = 8
    connection: ConnectionConfig = field(default_factory=ResidualConfig, metadata={"variants": CONNECTION_CONFIGS})
    sublayer: SublayerConfig | None = field(default=None, metadata={"variants": SUBLAYER_CONFIGS})  # else model.norm
    norm_eps: float | None = None  # of the norms around sub-layers and of the result; None: that of norm_kind
    layer_dropout: float = 0.0  # probability of skipping a layer in training (LayerDrop)
    sublayer_dropout: float = 0.0  # the same for the top sub-layer, decreasing to zero at the bottom

    def __post_init__(self) -> None:
        check_bounds(self, "num_layers dim ffn_dim num_heads", least=1)
        check_bounds(self, "layer_dropout sublayer_dropout", least=0, below=1)
        check_bounds(self, "norm_eps", above=0)
        if self.dim % self.num_heads:
            raise ValueError(f"num_heads = {self.num_heads} does not divide dim = {self.dim}")
        if self.dim % 2:
            raise ValueError(f"dim = {self.dim} must be even: positions are pairs of sine and cosine")
        self.connection.check(self.dim)

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    source_vocab_size: int
    target_vocab_size: int
    norm: NormPlacement = "pre"  # of stacks without a `sublayer`
    norm_kind: Literal["layer", "rms"] = "layer"
    qk_norm: bool = False  # queries and keys are normalised, head by head
    encoder: StackConfig = field(default_factory=StackConfig)
    decoder: StackConfig = field(default_factory=StackConfig)
    share_embeddings: bool = False  # one table for source and target
    tie_output: bool = True  # the output projection is the target's table
    positions: Literal["sinusoidal", "sinusoidal-hf", "learned", "relative", "rotary"] = "sinusoidal"
    max_positions: int = 1024  # of learned positions; the others have no limit
    max_distance: int = 16  # of relative positions; larger distances are clipped
    relative_values: bool = True  # relative positions are added to the values too, not only to the keys
    first_position: int | None = None  # the number of the first position; None: the one after pad_id
    activation: Literal["relu", "gelu", "swish", "swiglu"] = "relu"
    scale_embeddings: bool = True  # multiply them by the square root of the width
    output_bias: bool = False
    start_id: int | None = None  # symbol the decoder starts with; None: the end symbol, as the data has it
    dropout: float = 0.1  # on the embedding and on every sub-layer's output
    attention_dropout: float = 0.0  # on the attention weights
    ffn_dropout: float = 0.0  # inside the feed-forward layer
    pad_id: int = 1

    def __post_init__(self) -> None:
        check_bounds(self, "dropout attention_dropout ffn_dropout", least=0, below=1)
        check_bounds(self, "pad_id first_position", least=0)
        check_bounds(self, "max_positions max_distance", least=1)
        for name in ("source_vocab_size", "target_vocab_size"):
            if getattr(self, name) <= self.pad_id:
                raise ValueError(f"{name} = {getattr(self, name)} must be larger than pad_id = {self.pad_id}")
        if self.start_id is not None and not 0 <= self.start_id < self.target_vocab_size:
            raise ValueError(f"start_id = {self.start_id} is not in the target vocabulary")
        if self.share_embeddings and self.source_vocab_size != self.target_vocab_size:
            raise ValueError(
                f"share_embeddings = true needs one vocabulary, but source_vocab_size = {self.source_vocab_size} "
                f"and target_vocab_size = {self.target_vocab_size}; set model.share_embeddings=false, or prepare the "
                "data with a joint vocabulary"
            )
        if self.share_embeddings and self.encoder.dim != self.decoder.dim:
            raise ValueError(
                f"share_embeddings = true needs one width, but encoder.dim = {self.encoder.dim} "
                f"and decoder.dim = {self.decoder.dim}; set both alike, or model.share_embeddings=false"
            )
        for name, stack in self.stacks.items():
            if self.positions == "rotary" and stack.head_dim % 2:
                raise ValueError(
                    f'positions = "rotary" needs heads of even width, but {name}.dim = {stack.dim} and '
                    f"{name}.num_heads = {stack.num_heads}"
                )
            sublayer = self.sublayer_of(stack).kind
            if CONNECTIONS[stack.connection.kind].needs_branches and SUBLAYERS[sublayer].placement == "post":
                raise ValueError(
                    f"{name}.connection.kind = {stack.connection.kind} needs layers that add to their input, which "
                    f"sub-layers of kind {sublayer} do not; pre does"
                )

    @property
    def stacks(self) -> dict[str, StackConfig]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    @property
    def position_limit(self) -> int | None:
        """The length of the longest sequence with positions; None: no limit."""
        return self.max_positions if self.positions == "learned" else None

    @property
    def position_offset(self) -> int:
        """The number of the first position; in the authors' code the one after the padding's id."""
        return self.pad_id + 1 if self.first_position is None else self.first_position

    def eps_of(self, stack: StackConfig) -> float:
        """The epsilon of the norms around a stack's sub-layers and of its result."""
        return stack.norm_eps or EPS[self.norm_kind]

    def sublayer_of(self, stack: StackConfig) -> SublayerConfig:
        """The scheme around the sub-layers of a stack."""
        return stack.sublayer or SUBLAYER_CONFIGS[self.norm]()
