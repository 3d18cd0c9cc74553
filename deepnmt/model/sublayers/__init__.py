"""The schemes around a sub-layer, one file each. A new scheme is one file and one line here."""

from deepnmt.model.sublayers.admin import Admin
from deepnmt.model.sublayers.b2t import B2t
from deepnmt.model.sublayers.deepnorm import DeepNorm
from deepnmt.model.sublayers.layer_scale import LayerScale
from deepnmt.model.sublayers.mix import Mix
from deepnmt.model.sublayers.peri import Peri
from deepnmt.model.sublayers.post import PostNorm
from deepnmt.model.sublayers.pre import PreNorm
from deepnmt.model.sublayers.rezero import ReZero
from deepnmt.model.sublayers.scaled import ScaledNorm
from deepnmt.model.sublayers.sub_ln import SubLn
from deepnmt.model.sublayers.sublayer import NormPlacement, Place, Sublayer, SublayerConfig

SUBLAYERS: dict[str, type[Sublayer]] = {
    "pre": PreNorm,
    "post": PostNorm,
    "deepnorm": DeepNorm,
    "admin": Admin,
    "b2t": B2t,
    "peri": Peri,
    "sub-ln": SubLn,
    "scaled": ScaledNorm,
    "layer-scale": LayerScale,
    "mix": Mix,
    "rezero": ReZero,
}

__all__ = ["SUBLAYERS", "NormPlacement", "Place", "Sublayer", "SublayerConfig"]
