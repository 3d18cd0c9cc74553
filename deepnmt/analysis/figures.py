"""Pictures of `charts` as files: SVG as it is, PNG and PDF by way of matplotlib."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deepnmt.errors import InputError
from deepnmt.files import replacing, write_text

ANCHORS = {"start": "left", "middle": "center", "end": "right"}


def check_format(out: Path) -> None:
    """Refuse a format that needs matplotlib where there is none: before a long measurement, not after it."""
    if out.suffix in (".png", ".pdf") and find_spec("matplotlib") is None:
        raise InputError(f"{out} needs matplotlib: pip install 'deepnmt[plot]' (or write .svg, .html or .csv)")


def save_figure(svg: str, out: Path) -> None:
    """Write a picture; the file name selects the format."""
    if out.suffix == ".svg":
        write_text(out, svg + "\n")
        return
    from matplotlib.figure import Figure

    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    figure = Figure(figsize=(width / 72, height / 72))  # a unit of the SVG is a point
    place = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    place.axis("off")
    for order, (element, x, y) in enumerate(_elements(root, 0, 0)):
        artist = _artist(element, x, y)
        artist.set(zorder=order)
        place.add_artist(artist)
    with replacing(out) as aside:
        undated = {"CreationDate": None} if out.suffix == ".pdf" else {}  # equal figures are equal files
        figure.savefig(aside, format=out.suffix[1:], dpi=200, metadata=undated)


def _elements(parent: ElementTree.Element, x: float, y: float) -> Iterator[tuple[ElementTree.Element, float, float]]:
    """Every element that is drawn, and where its part of the picture is."""
    for element in parent:
        if moved := re.fullmatch(r"translate\((\S+) (\S+)\)", element.get("transform", "")):
            yield from _elements(element[0], x + float(moved[1]), y + float(moved[2]))
        elif element.get("width") != "100%":  # the background
            yield element, x, y


def _artist(element: ElementTree.Element, left: float, top: float) -> Any:
    """What matplotlib calls an element; `charts` has these four kinds."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle, Rectangle
    from matplotlib.text import Text

    kind, given = element.tag.rpartition("}")[2], element.attrib
    fill, stroke = given.get("fill", "none"), given.get("stroke", "none")
    thickness = float(given.get("stroke-width", 1))
    if kind == "polyline":
        points = [point.split(",") for point in given["points"].split()]
        dashes = tuple(float(part) / thickness for part in given.get("stroke-dasharray", "").split())
        style: dict[str, Any] = {"color": stroke, "lw": thickness, "ls": (0, dashes) if dashes else "-"}
        return Line2D([left + float(x) for x, _ in points], [top + float(y) for _, y in points], **style)
    if kind == "circle":
        return Circle((left + float(given["cx"]), top + float(given["cy"])), float(given["r"]), fc=fill, ec=stroke)
    x, y = left + float(given["x"]), top + float(given["y"])
    if kind == "rect":
        return Rectangle((x, y), float(given["width"]), float(given["height"]), fc=fill, ec=stroke, lw=thickness)
    turned: dict[str, Any] = {"rotation": 90, "rotation_mode": "anchor"} if "transform" in given else {}
    style = {"size": float(given["font-size"]), "weight": given["font-weight"], "ha": ANCHORS[given["text-anchor"]]}
    return Text(x, y, (element.text or "").replace("$", r"\$"), color=fill, **style, **turned)
