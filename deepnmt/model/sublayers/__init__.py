"""The schemes around a sub-layer, one file each. A new scheme is one file and one line here."""

from deepnmt.model.sublayers.deepnorm import DeepNorm
from deepnmt.model.sublayers.layer_scale import LayerScale
from deepnmt.model.sublayers.post import PostNorm
from deepnmt.model.sublayers.pre import PreNorm
from deepnmt.model.sublayers.sublayer import NormPlacement, Place, Sublayer, SublayerConfig

SUBLAYERS: dict[str, type[Sublayer]] = {
    "pre": PreNorm,
    "post": PostNorm,
    "deepnorm": DeepNorm,
    "layer-scale": LayerScale,
}

__all__ = ["SUBLAYERS", "NormPlacement", "Place", "Sublayer", "SublayerConfig"]
