import io
import json
import lzma
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from deepnmt.cli import main
from deepnmt.data import catalogues
from deepnmt.errors import InputError, RunError

PARTS = 120


def wheel(folder: Path) -> Path:
    path = folder / "homeassistant-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for part in range(PARTS):
            for language, hello in (("en", "Hello"), ("de", "Hallo")):
                table = {
                    "config": {
                        "title": f"{hello} {{name}}, part {part}",
                        "step": {"abort": "Unexpected error" if language == "en" else "Unerwarteter Fehler"},
                    },
                    "same": "Home Assistant",
                    "word": "Yes" if language == "en" else "Ja",
                    "markup": "{a} `b` https://x.y/z" if language == "en" else "{a} `c` https://x.y/z",
                    "lines": f"First {hello}{part}\n\nSecond {hello}{part}",
                    f"only_{language}": "not paired at all",
                }
                archive.writestr(f"homeassistant/components/part{part}/translations/{language}.json", json.dumps(table))
        archive.writestr("homeassistant-1.dist-info/licenses/LICENSE.md", "Apache License")
        archive.writestr("homeassistant/components/part0/translations/fr.json", "{}")
    return path


def package(folder: Path, language: str, pack: Callable[[bytes], bytes], suffix: str) -> Path:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as files:
        for page in range(60):
            word = {"en-US": "Press", "de": "Drücke"}[language]
            content = (
                f'<html><p>no id</p><h1 id="hd_1">{word} <b>key {page}</b>\n now</h1>'
                f'<p id="par_2">{word} &amp; hold<br>{page}</p><p id="par_{language}">{word} alone</p></html>'
            ).encode()
            entry = tarfile.TarInfo(f"./usr/share/libreoffice/help/{language}/text/page{page}.html")
            entry.size = len(content)
            files.addfile(entry, io.BytesIO(content))
    path = folder / f"libreoffice-help-{language}.deb"
    members = {"debian-binary": b"2.0\n", "control.tar": b"odd", f"data.tar{suffix}": pack(data.getvalue())}
    with path.open("wb") as file:
        file.write(b"!<arch>\n")
        for name, content in members.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode())
            file.write(content + b"\n" * (len(content) % 2))
    return path


def read(folder: Path, split: str) -> list[tuple[str, str]]:
    sides = [(folder / f"{split}.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de")]
    return list(zip(*sides, strict=True))


def test_strings_are_paired_by_key_and_split_by_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = wheel(tmp_path), tmp_path / "out"
    command = ["corpus", "homeassistant", "--languages", "en", "de", "--package", str(path), "--out", str(out)]
    assert main(command) == 0
    splits = {split: read(out, split) for split in catalogues.SPLITS}
    everything = [pair for pairs in splits.values() for pair in pairs]
    assert ("Unexpected error", "Unerwarteter Fehler") in splits["train"]
    for number in range(PARTS):
        own = {f"Hello {{name}}, part {number}", f"First Hello{number}", f"Second Hello{number}"}
        homes = [split for split, pairs in splits.items() if own & {source for source, _ in pairs}]
        assert len(homes) == 1, f"part {number} is in {homes}"
        assert own <= {source for source, _ in splits[homes[0]]}
    assert all(splits.values())
    assert len(everything) == 3 * PARTS + 1 == len({source for source, _ in everything})
    assert f"train {len(splits['train']):,} pairs" in capsys.readouterr().out
    assert (out / "LICENSE").read_text() == "Apache License"
    assert "Apache-2.0" in (out / "README.md").read_text()
    assert "homeassistant-1-py3" in (out / "README.md").read_text(), "the package that was read, not the usual one"
    assert main(command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("pack", "suffix"), [(bytes, ""), (zstandard.ZstdCompressor().compress, ".zst")], ids=["plain", "zst"]
)
def test_paragraphs_are_paired_by_page_and_id(tmp_path: Path, pack: Callable[[bytes], bytes], suffix: str) -> None:
    packages = [str(package(tmp_path, language, pack, suffix)) for language in ("en-US", "de")]
    out = tmp_path / "out"
    assert main(["corpus", "libreoffice", "--languages", "en", "de", "--package", *packages, "--out", str(out)]) == 0
    pairs = {pair for split in catalogues.SPLITS for pair in read(out, split)}
    assert len(pairs) == 120
    assert ("Press key 7 now", "Drücke key 7 now") in pairs
    assert ("Press & hold 7", "Drücke & hold 7") in pairs


def test_help_packages_in_the_wrong_order_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packages = [str(package(tmp_path, language, bytes, "")) for language in ("de", "en-US")]
    command = ["corpus", "libreoffice", "--languages", "en", "de", "--out", str(tmp_path / "out"), "--package"]
    assert main([*command, *packages]) == 2
    assert "libreoffice-help-de.deb is in de, not in en; give the packages in the order" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "target", "worth"),
    [
        ("Light on", "Licht an", True),
        ("Start", "Los geht's", True),
        ("Yes", "Ja", False),
        ("Smart TV", "Smart TV", False),
        ("{name} {id}", "{id} {name}", False),
        ("{name} is on", "{name} ist an", True),
        ("<b> </b> 1", "<i> </i> 1", False),
    ],
)
def test_what_is_worth_translating(source: str, target: str, worth: bool) -> None:
    assert catalogues.worth_translating(source, target) is worth


def test_a_language_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no language 'xx'; it has de, en, fr"):
        catalogues.read_homeassistant(("en", "xx"), wheel(tmp_path))


def test_a_download_with_another_digest_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(command: list[str], failure: str, folder: str | None = None) -> None:
        wheel(Path(command[command.index("--dest") + 1]))

    monkeypatch.setattr(catalogues, "_call", download)
    with pytest.raises(RunError, match="has SHA-256"):
        catalogues.make_corpus("homeassistant", ("en", "de"), tmp_path / "out")


def test_a_machine_without_apt_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="there is no apt-get on this machine"):
        catalogues.make_corpus("libreoffice", ("en", "de"), tmp_path / "out")


def test_a_failing_download_ends_with_its_last_line() -> None:
    with pytest.raises(RunError, match="no luck: why"):
        catalogues._call(["sh", "-c", "echo first >&2; echo why >&2; exit 1"], "no luck")


@pytest.mark.parametrize("name", ["homeassistant", "libreoffice"])
def test_a_file_that_is_not_a_package_is_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"nonsense")
    files = [str(path)] * (1 if name == "homeassistant" else 2)
    out = tmp_path / "out"
    assert main(["corpus", name, "--languages", "en", "de", "--package", *files, "--out", str(out)]) == 2
    assert str(path) in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("name", ["homeassistant", "libreoffice"])
def test_a_damaged_package_is_refused(tmp_path: Path, name: str) -> None:
    packages = [wheel(tmp_path)]
    if name == "libreoffice":
        packages = [package(tmp_path, language, lzma.compress, ".xz") for language in ("en-US", "de")]
    whole, draw = packages[-1].read_bytes(), random.Random(0)
    for i in range(40):
        content = bytearray(whole)
        content[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        packages[-1].write_bytes(content if i % 2 else whole[: draw.randrange(len(whole))])
        try:
            catalogues.make_corpus(name, ["en", "de"], tmp_path / "out", packages, overwrite=True)
        except InputError as error:
            assert str(packages[-1]) in str(error) or "has no language" in str(error)
        else:
            assert i % 2, "a changed character may be read, a truncated file not"


def test_a_folder_of_other_things_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = wheel(tmp_path), tmp_path / "mine"
    out.mkdir()
    (out / "thesis.txt").write_text("precious")
    command = ["corpus", "homeassistant", "--languages", "en", "de", "--package", str(path), "--out", str(out)]
    assert main([*command, "--overwrite"]) == 2
    assert "is not a corpus and will not be overwritten" in capsys.readouterr().err
    assert (out / "thesis.txt").read_text() == "precious"
