"""Sub-LN: pre-norm with a second norm inside the function, before its last matrix."""

import math

from deepnmt.model.sublayers.pre import PreNorm
from deepnmt.model.sublayers.sublayer import Function, Place, SublayerConfig, scale_branch


class SubLnConfig(SublayerConfig):
    kind = "sub-ln"


class SubLn(PreNorm):
    """x + W_o LN(heads(LN(x))) and x + W_2 LN(f(W_1 LN(x))) (Wang et al. 2022, https://arxiv.org/abs/2210.06423).

    With N encoder and M decoder layers, all matrices but those of queries and keys are initialised larger by sqrt(log
    3M log 2N / 3) in the encoder and sqrt(log 3M) in the decoder. Cross-attention has neither the inner norm nor the
    gain.
    """

    Config = SubLnConfig
    grows = False
    norms_inside = True

    def __init__(self, config: SubLnConfig, place: Place) -> None:
        super().__init__(config, place)
        decoder, encoder = math.log(3 * place.num_decoder_layers), math.log(2 * place.num_encoder_layers) / 3
        self.gain = math.sqrt(decoder if place.is_decoder else decoder * encoder)
        if place.is_cross_attention:
            self.gain = 1.0

    def initialize(self, function: Function) -> None:
        scale_branch(function, self.gain)
