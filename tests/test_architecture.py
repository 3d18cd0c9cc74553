"""Who may import whom: a walk over the imports of every file, those inside functions too."""

import ast
import re
from pathlib import Path

from pytest import mark

PACKAGE = Path(__file__).parents[1] / "deepnmt"
# From the top down. Neighbours on a line do not import each other: the rooms of a line meet in `api`.
ROWS = [
    ["cli"],
    ["commands"],
    ["demo", "reproduction"],
    ["api"],
    ["serving", "analysis", "evaluation"],
    ["decoding", "training"],
    ["config"],
    ["model", "data"],
]
# Pure data, which the recipe in config.py is made of: it alone may look up to them, and they import nothing but ground.
SECTIONS = {("training", "config"), ("decoding", "config")}
GROUND = {"columns", "devices", "errors", "files", "flat_yaml", "heatmap", "languages", "settings", "progress", "text"}
LEVEL = {room: len(ROWS) - depth for depth, row in enumerate(ROWS) for room in row} | dict.fromkeys(GROUND, 0)
ENTRANCES = {"__init__", "__main__"}  # the package's own front doors


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(source, package):
    """(line, names below deepnmt) for everything of deepnmt that a file in `package` (a tuple of names) imports.

    The front door `deepnmt` itself, which has the version, belongs to no room.
    """
    for node in ast.walk(ast.parse(source)):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "").split(".") if node.module else []
            if node.level:
                base = [*package[: len(package) - node.level + 1], *base]
            modules = [[*base, alias.name] for alias in node.names]
        for names in modules:
            if names[0] == "deepnmt" and len(names) > 1 and not names[1].startswith("__"):
                yield node.lineno, tuple(names[1:])


def imported_rooms(source, package):
    return {names[0] for _, names in imported_modules(source, package)}


def violations(source, path):
    room = room_of(path)
    if room in ENTRANCES:
        return
    package = ("deepnmt", *path.relative_to(PACKAGE).parts[:-1])
    for line, (other, *rest) in imported_modules(source, package):
        if room == "config" and (other, *rest[:1]) in SECTIONS:
            continue
        if other != room and LEVEL[other] >= LEVEL[room] and not {room, other} <= GROUND:
            yield f"{path.relative_to(PACKAGE.parent)}, line {line}: {room} must not import {other}"


FILES = sorted(PACKAGE.rglob("*.py"))


def test_every_file_belongs_to_a_room():
    assert {room_of(path) for path in FILES} - ENTRANCES <= LEVEL.keys()


def test_imports_go_down_only():
    found = [violation for path in FILES for violation in violations(path.read_text(encoding="utf-8"), path)]
    assert not found, "\n".join(found)


def test_the_ground_floor_stands_on_its_own():
    for path in FILES:
        if room_of(path) in GROUND:
            assert imported_rooms(path.read_text(encoding="utf-8"), ("deepnmt",)) <= GROUND, path.name


def test_the_sections_of_a_recipe_are_pure_data():
    for room, name in SECTIONS:
        source = (PACKAGE / room / f"{name}.py").read_text(encoding="utf-8")
        assert imported_rooms(source, ("deepnmt", room)) <= GROUND, room
        assert "torch" not in source, room


@mark.parametrize(
    ("path", "source", "expected"),
    [
        ("model/x.py", "from deepnmt.data.batching import Batch", "model must not import data"),
        ("data/x.py", "import deepnmt.model.config", "data must not import model"),
        ("training/x.py", "def f():\n    from deepnmt.decoding import search", "training must not import decoding"),
        ("decoding/x.py", "from ..evaluation import scores", "decoding must not import evaluation"),
        ("model/connections/x.py", "from ...training import loss", "model must not import training"),
        ("analysis/x.py", "from deepnmt import serving", "analysis must not import serving"),
        ("data/x.py", "if TYPE_CHECKING:\n    from deepnmt.config import Recipe", "data must not import config"),
        ("config.py", "from deepnmt.training.state import TrainingState", "config must not import training"),
        ("config.py", "from deepnmt.training.config import TrainingConfig", None),
        ("training/x.py", "from deepnmt.config import Recipe", None),
        ("analysis/x.py", "import deepnmt.api.train", "analysis must not import api"),
        ("errors.py", "from deepnmt.model import config", "errors must not import model"),
        ("config.py", "from deepnmt.commands import train", "config must not import commands"),
        ("model/x.py", "from deepnmt import __version__", None),
        ("model/x.py", "from deepnmt.errors import InputError", None),
        ("model/connections/x.py", "from ..norms import LayerNorm", None),
        ("training/x.py", "from deepnmt.model.transformer import Transformer", None),
        ("commands/x.py", "from deepnmt.decoding import a\nfrom deepnmt.config import b", None),
    ],
)
def test_the_walk_sees_every_way_to_import(path, source, expected):
    found = list(violations(source, PACKAGE / path))
    assert [violation.split(": ")[1] for violation in found] == ([expected] if expected else [])


def test_the_search_knows_no_model():
    """It receives a step function; only what joins the two imports the model."""
    source = (PACKAGE / "decoding" / "search.py").read_text(encoding="utf-8")
    assert "model" not in imported_rooms(source, ("deepnmt", "decoding"))


def test_no_drawers():
    for path in FILES:
        assert path.stem not in ("utils", "util", "common", "helpers", "misc"), path


def test_every_folder_of_tests_can_be_run_beside_any_other():
    """pytest puts every folder of tests on the path: a second module of one name would hide the first."""
    files = [path for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py"]
    stems = [path.stem for path in files]
    assert sorted(set(stems)) == sorted(stems)
    for path in files:
        modules = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
        assert "conftest" not in modules, path


def test_the_makefile_names_tests_that_exist():
    """With several workers pytest runs nothing at all, and does not say why, where one of them is missing."""
    root = Path(__file__).parents[1]
    named = re.findall(r"tests/[\w/.]+", (root / "Makefile").read_text(encoding="utf-8"))
    assert named and not [path for path in named if not (root / path).exists()]
