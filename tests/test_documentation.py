"""The documentation names nothing that does not exist: pages, headings, commands, options, settings, presets."""

import dataclasses
import re
import shlex
import typing
from pathlib import Path

from pytest import mark

from deepnmt import cli
from deepnmt.config import Recipe, preset_names
from deepnmt.errors import InputError
from deepnmt.reproduction.experiment import EXPERIMENTS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "results").rglob("*.md")]
FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
GUIDES = {"add-a-connection.md", "add-a-sublayer.md"}  # add schemes of their own: tests/test_docs.py follows them
every_page = mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def code(page: Path) -> list[str]:
    """The blocks of a page that are not Python, and its code between backticks."""
    text = page.read_text(encoding="utf-8")
    blocks = [block for language, block in FENCED.findall(text) if language != "python"]
    return [*blocks, *(span for _, span in CODE.findall(prose(page)))]


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        found.append(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return {
        name if not before else f"{name}-{before}" for i, name in enumerate(found) for before in [found[:i].count(name)]
    }


@every_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)|<img[^>]* src=[\"']([^\"']+)", CODE.sub("", prose(page))):
        target, _, anchor = "".join(link).partition("#")
        if not re.match(r"\w+:", target):
            path = page.parent / target if target else page
            assert path.exists(), f"{target} does not exist"
            assert not anchor or anchor in anchors(path), f"{target} has no heading #{anchor}"


def commands(text: str) -> list[list[str]]:
    """The words after `deepnmt` of each call in a shell script."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if re.search(r"\bdeepnmt [a-z]", line):
            lexer = shlex.shlex(line.strip(" $"), posix=True, punctuation_chars="|;&<>()")
            lexer.whitespace_split, lexer.commenters = True, "#"
            words = list(lexer)
            for i, word in enumerate(words):
                if word == "deepnmt" and (i == 0 or words[i - 1] in {"|", "&&", ";", "-m"} or "=" in words[i - 1]):
                    end = next((n for n in range(i, len(words)) if set(words[n]) <= set("|;&<>()")), len(words))
                    found.append(words[i + 1 : end])
    return found


def check_command(words: list[str]) -> None:
    """Parse the call, with any number N; where something is left out ("..."), the rest must be known."""
    is_partial = any(word.strip("….") == "" for word in words)
    try:
        cli._parse(["1" if word == "N" else word for word in words if word.strip("….")])
    except SystemExit:  # --help
        pass
    except InputError as error:
        if not (is_partial and re.search(r"arguments are required|: expected .*\bargument", str(error))):
            raise AssertionError(f"deepnmt {shlex.join(words)}: {error}") from error


@every_page
def test_commands_parse(page: Path, capsys) -> None:
    blocks = [block for _, block in FENCED.findall(page.read_text(encoding="utf-8"))]
    spans = [f"{span} ..." for _, span in CODE.findall(prose(page)) if span.startswith("deepnmt ") and "/" not in span]
    for words in (words for text in [*blocks, *spans] for words in commands(text)):
        check_command(words)


@mark.parametrize("name", cli.COMMANDS)
def test_the_examples_of_the_help_parse(name, capsys) -> None:
    command = __import__(f"deepnmt.commands.{name}", fromlist=["EXAMPLE"])
    calls = commands(command.EXAMPLE)
    assert calls
    for words in calls:
        check_command(words)


def settings(kind: type, prefix: str = "") -> set[str]:
    """The dotted names of all settings and sections, with those of every variant."""
    found = set()
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name = f"{prefix}{field.name}"
        found.add(name)
        if variants := field.metadata.get("variants"):
            found |= {f"{name}.kind"}.union(*(settings(variant, f"{name}.") for variant in variants.values()))
        for hint in (hints[field.name], *typing.get_args(hints[field.name])):  # a section may be absent
            found |= settings(hint, f"{name}.") if dataclasses.is_dataclass(hint) else set()
    return found


SETTINGS = settings(Recipe)
SECTIONS = "|".join(field.name for field in dataclasses.fields(Recipe))
NAMED = re.compile(rf"(?<![\w./-])(?:{SECTIONS})(?:\.[a-z][a-z_]*)+(?![\w(/])")
FILES = {"json", "safetensors", "npz", "toml", "gz", "pt", "py", "md"}


@every_page
def test_settings_exist(page: Path) -> None:
    if page.name == "architecture.md":
        return  # names modules; tests/test_docs.py looks them up
    for text in code(page) if page.name not in GUIDES else ():
        for name in NAMED.findall(text):
            if name.rpartition(".")[2] not in FILES and not name.startswith("batching.weights."):
                assert name in SETTINGS, f"{name} is no setting"


PRESET = re.compile(r"(?<![\w./*-])(?:en-de|zh-en|beyond)-[a-z0-9]+(?:-[a-z0-9]+)*(?![\w./*-])")


@every_page
def test_presets_exist(page: Path) -> None:
    known = {*preset_names(), *EXPERIMENTS}
    for text in code(page) if page.name not in GUIDES else ():
        for name in PRESET.findall(text):  # some arms of a study are a preset at another depth
            assert name in known or name.removesuffix("-30l") in known, f"there is no preset {name}"
