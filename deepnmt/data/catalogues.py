"""Small parallel corpora from public packages: string catalogues and help pages of free software.

The packages are only read, never installed or executed.
"""

import hashlib
import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path
from typing import Any

from deepnmt.errors import InputError, RunError
from deepnmt.files import check_out, replacing, sha256, write_json, write_text
from deepnmt.languages import base_language
from deepnmt.text import joined, unpacked

HOMEASSISTANT = "homeassistant==2026.10.4"
HOMEASSISTANT_SHA256 = "71843060980a763187d856a8ff170640f1e287a7b741334cd838c81404f1f452"
_HOMEASSISTANT_PYTHON = "3.14.2"
_HELD_OUT_SHARE = 0.05
# What the readers of archives, compressed data and JSON raise.
_ARCHIVES = (zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error)
DAMAGE = (AttributeError, EOFError, NotImplementedError, OSError, ValueError, *_ARCHIVES)

Pairs = dict[str, list[tuple[str, str]]]
"""Pairs by the part of the software (an integration, a help page) they come from."""


@dataclass(frozen=True)
class Catalogue:
    """Where the text comes from, its licence, and the pairs."""

    name: str
    origin: str
    licence: str
    licence_text: str
    parts: Pairs


def _download_homeassistant(languages: Sequence[str], folder: Path) -> list[Path]:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", _HOMEASSISTANT_PYTHON, "--dest", str(folder), HOMEASSISTANT]
    _call(command, f"pip could not download {HOMEASSISTANT}")
    (wheel,) = folder.glob("*.whl")
    found = sha256(wheel)
    if found != HOMEASSISTANT_SHA256:
        raise RunError(f"{wheel.name} has SHA-256 {found}, not the expected {HOMEASSISTANT_SHA256}; it is not used")
    return [wheel]


def read_homeassistant(languages: Sequence[str], wheel: Path) -> Catalogue:
    """The interface strings of Home Assistant, paired by key."""
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(archive.namelist())
        found = [re.fullmatch(r"(.*)/translations/([^/]+)\.json", name) for name in names]
        texts = {(match[1], match[2]): match.string for match in found if match}  # by folder and language
        known = sorted({language for _, language in texts})
        for language in languages:
            if language not in known:
                raise InputError(f"{wheel.name} has no language {language!r}; it has {', '.join(known)}")
        parts: Pairs = {}
        for folder in (folder for folder, language in texts if language == languages[1]):
            if (folder, languages[0]) in texts:
                sides = (json.loads(archive.read(texts[folder, language])) for language in languages)
                source, target = (dict(_leaves(side)) for side in sides)
                pairs = (_line_pairs(source[key], target[key]) for key in source if key in target)
                parts[folder.rpartition("/")[2]] = list(chain.from_iterable(pairs))
        licences = [name for name in names if re.search(r"dist-info/(licenses/)?LICENSE[^/]*$", name)]
        text = archive.read(licences[0]).decode("utf-8") if licences else ""
    origin = f"the string catalogues in the Python package {wheel.name} (Home Assistant, Open Home Foundation)"
    return Catalogue("homeassistant", origin, "Apache-2.0", text, parts)


def _leaves(table: Any, path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}/{key}")
        elif isinstance(value, str):
            yield f"{path}/{key}", value


def _line_pairs(source: str, target: str) -> list[tuple[str, str]]:
    """Pair paragraphs if both sides have the same number of them, otherwise the whole texts."""
    sides = [[" ".join(line.split()) for line in text.splitlines() if line.strip()] for text in (source, target)]
    if len(sides[0]) != len(sides[1]):
        sides = [[" ".join(lines)] for lines in sides]
    return list(zip(*sides, strict=True))


def _download_libreoffice(languages: Sequence[str], folder: Path) -> list[Path]:
    names = [f"libreoffice-help-{'en-us' if language == 'en' else language.lower()}" for language in languages]
    _call(["apt-get", "download", *names], f"apt-get could not download {' and '.join(names)}", folder)
    return [next(folder.glob(f"{name}_*.deb")) for name in names]


def read_libreoffice(languages: Sequence[str], *packages: Path) -> Catalogue:
    """The help of LibreOffice, paragraphs paired by their ids."""
    source, target = (dict(_paragraphs(*pair)) for pair in zip(packages, languages, strict=True))
    parts: Pairs = {}
    for (page, number), text in source.items():
        if (page, number) in target:
            parts.setdefault(page, []).append((text, target[page, number]))
    origin = (
        f"the help pages in the Debian packages {packages[0].name} and {packages[1].name} (The Document Foundation)"
    )
    notice = "LibreOffice help, Mozilla Public License 2.0, https://www.mozilla.org/MPL/2.0/\n"
    return Catalogue("libreoffice", origin, "MPL-2.0", notice, parts)


def _paragraphs(package: Path, language: str) -> Iterator[tuple[tuple[str, str], str]]:
    """((page, paragraph id), text) of every paragraph of a help package in this language."""
    languages = set()
    with _package_files(package) as files:
        for member in files:
            match = re.fullmatch(r"(?:\./)?usr/share/libreoffice/help/([^/]+)/(text/.*)\.html", member.name)
            content = files.extractfile(member) if match and member.isfile() else None
            if match and content:
                languages.add(match[1])
                if base_language(match[1]) != base_language(language):
                    continue
                page = _HelpPage()
                page.feed(content.read().decode("utf-8", "replace"))
                for number, text in page.paragraphs.items():
                    yield (match[2], number), text
    if languages and base_language(language) not in map(base_language, languages):
        found = ", ".join(sorted(languages))
        raise InputError(f"{package} is in {found}, not in {language}; give the packages in the order of the languages")


class _HelpPage(HTMLParser):
    """Collects the text of paragraphs and headings that have an id."""

    def __init__(self) -> None:
        super().__init__()
        self.paragraphs: dict[str, str] = {}
        self._open: tuple[str, str] | None = None
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        number = dict(attributes).get("id") or ""
        if number.startswith(("par_", "hd_")):
            self._open, self._text = (tag, number), []
        elif tag == "br":
            self._text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self._open and tag == self._open[0]:
            self.paragraphs[self._open[1]] = " ".join("".join(self._text).split())
            self._open = None

    def handle_data(self, data: str) -> None:
        if self._open:
            self._text.append(data)


def _package_files(package: Path) -> tarfile.TarFile:
    """The files of a Debian package: an `ar` archive with a compressed tar in it."""
    content = package.read_bytes()
    position = 8 if content.startswith(b"!<arch>\n") else len(content)
    while position + 60 <= len(content):
        name, size = content[position : position + 16], int(content[position + 48 : position + 58])
        position += 60
        if name.startswith(b"data.tar"):
            member = io.BufferedReader(io.BytesIO(content[position : position + size]))
            return tarfile.open(fileobj=io.BytesIO(b"".join(unpacked(member, package))))
        position += size + size % 2
    raise ValueError("there is no data.tar in it")


def _call(command: list[str], failure: str, folder: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise InputError(f"{failure}: there is no {command[0]} on this machine") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(f"{failure}: {last}")


SPLITS = ("train", "valid", "test")


def split(parts: Pairs) -> Pairs:
    """Split by part into train, valid and test, without sources of a larger split in a smaller one.

    The split of a part depends only on its name, so it stays the same when other parts change.
    """
    pairs: Pairs = {name: [] for name in SPLITS}
    for part in sorted(parts):
        share = int.from_bytes(hashlib.sha256(part.encode("utf-8")).digest()[:4], "big") / 2**32
        held_out = {0: "test", 1: "valid"}.get(int(share / _HELD_OUT_SHARE), "train")
        pairs[held_out] += [pair for pair in parts[part] if worth_translating(*pair)]
    seen: set[str] = set()
    for name in SPLITS:
        pairs[name] = [pair for pair in dict.fromkeys(pairs[name]) if pair[0] not in seen]
        seen |= {source for source, _ in pairs[name]}
    return pairs


# Placeholders, code, links, tags.
_MARKUP = re.compile(r"\{[^{}]*\}|`[^`]*`|\]\([^)]*\)|https?://\S+|<[^<>]*>|%\S+%")


def worth_translating(source: str, target: str) -> bool:
    """True for pairs that differ, have more than one word on a side, and letters outside markup on both."""
    if source == target or (len(source.split()) < 2 and len(target.split()) < 2):
        return False
    return all(any(letter.isalpha() for letter in _MARKUP.sub(" ", text)) for text in (source, target))


def make_corpus(
    name: str, languages: Sequence[str], out: Path, packages: Sequence[Path] = (), overwrite: bool = False
) -> tuple[Catalogue, dict[str, int]]:
    """Write a corpus from these package files, or from downloaded ones; return it and the number of pairs per split.

    The folder `out` gets {train,valid,test}.LANGUAGE, the licence and the origin.
    """
    if languages[0] == languages[1]:
        raise InputError(f"both languages are {languages[0]!r}; a parallel corpus needs two")
    download, read, count = _CATALOGUES[name]
    if packages and len(packages) != count:
        raise InputError(f"--package: {name} takes {count} file{'s'[: count - 1]}, not {len(packages)}")
    check_out(out, overwrite, "a corpus", "corpus.json")
    with tempfile.TemporaryDirectory() as folder:
        packages = packages or download(languages, Path(folder))
        try:
            catalogue = read(languages, *packages)
        except DAMAGE as error:
            why = str(getattr(error, "strerror", None) or error).partition("\n")[0]
            files = " or ".join(map(str, packages))
            raise InputError(f"{files} cannot be read as a package of {name}: {why}") from error
    pairs = split(catalogue.parts)
    counts = {name: len(listed) for name, listed in pairs.items()}
    if not counts["train"]:
        raise InputError(f"{catalogue.name} has no pairs of {' and '.join(languages)}")
    with replacing(out) as folder:
        folder.mkdir()
        for name, listed in pairs.items():
            for side, language in enumerate(languages):
                write_text(folder / f"{name}.{language}", joined(pair[side] for pair in listed))
        write_text(folder / "LICENSE", catalogue.licence_text)
        write_text(folder / "README.md", _readme(catalogue, languages, counts))
        about = {"name": catalogue.name, "origin": catalogue.origin, "licence": catalogue.licence}
        write_json(folder / "corpus.json", {**about, "languages": list(languages), "pairs": counts})
    return catalogue, counts


def _readme(catalogue: Catalogue, languages: Sequence[str], counts: dict[str, int]) -> str:
    return (
        f"# {catalogue.name}, {languages[0]} and {languages[1]}\n"
        f"Taken from {catalogue.origin}. Licence: {catalogue.licence}, see LICENSE.\n\n"
        + "".join(f"- {name}: {count:,} pairs\n" for name, count in counts.items())
        + "\nIdentical pairs, pairs of single words and strings without words are left out. The splits are made of "
        "different parts of the software, and no source of valid or test occurs in train.\n"
    )


# Download function, read function, number of files.
_CATALOGUES: dict[str, tuple[Callable[..., list[Path]], Callable[..., Catalogue], int]] = {
    "homeassistant": (_download_homeassistant, read_homeassistant, 1),
    "libreoffice": (_download_libreoffice, read_libreoffice, 2),
}
