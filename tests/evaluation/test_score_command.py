"""`deepnmt score` as its user meets it: files in, table or JSON out, refusals in one sentence."""

import gzip
import io
import json
import lzma
import sys
import types
from pathlib import Path

import pytest

from deepnmt.cli import main
from deepnmt.evaluation import comet
from deepnmt.text import read_lines

OUT = ["Die Katze saß auf der Matte.", "Er kam, sah und siegte nicht."]
REFERENCE = ["Die Katze sitzt auf der Matte.", "Er kam, sah und siegte."]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, lines in (("out.de", OUT), ("ref.de", REFERENCE)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["score", *arguments]) == 2
    output, error = capsys.readouterr()
    assert output == ""
    assert error.count("\n") == 1
    return error.removeprefix("deepnmt: ").strip()


def test_a_pipe_gets_one_line_a_score(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = ["--source-lang", "en", "--target-lang", "de"]
    assert main(["score", "--hypothesis", "out.de", "--reference", "ref.de", *pair]) == 0
    output, error = capsys.readouterr()
    assert error == ""
    assert [line.split("|")[0].split()[-1] for line in output.splitlines()[1:]] == (
        ["BLEU"] * 5 + ["chrF2", "chrF2++", "TER"]
    )


def test_json_holds_what_is_needed_to_read_it_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["score", "--hypothesis", "out.de", "ref.de", "--reference", "ref.de", "ref.de", "--target-lang", "de"]
    assert main([*arguments, "--samples", "50", "--json"]) == 0
    first = capsys.readouterr().out
    assert main([*arguments, "--samples", "50", "--json"]) == 0
    assert capsys.readouterr().out == first
    report = json.loads(first)
    assert report["references"] == ["ref.de", "ref.de"]
    assert report["num_lines"] == 2
    assert report["test"] == {"name": "paired bootstrap", "samples": 50, "baseline": "out.de"}
    assert [system["hypothesis"] for system in report["systems"]] == ["out.de", "ref.de"]
    assert report["systems"][1]["scores"]["bleu"]["value"] == pytest.approx(100)
    assert "nrefs:2|bs:50" in report["systems"][0]["scores"]["bleu"]["signature"]


def test_test_none_scores_several_without_p_values(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--hypothesis", "out.de", "ref.de", "--reference", "ref.de"]
    assert main(["score", *files, "--test", "none", "--metrics", "chrf", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["test"] is None
    assert [system["scores"]["chrf"]["p_value"] for system in report["systems"]] == [None, None]


def test_what_was_done_differently_is_said_beside_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "--hypothesis", "out.de", "--reference", "ref.de", "--metrics", "bleu"]) == 0
    assert capsys.readouterr().err == ""
    arguments = ["--target-lang", "tlh", "--metrics", "multi_bleu"]
    assert main(["score", "--hypothesis", "out.de", "--reference", "ref.de", *arguments]) == 0
    assert capsys.readouterr().err.startswith("note: Moses has no abbreviations for target language 'tlh'")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, lambda content: content])
def test_packed_files_windows_line_ends_and_a_byte_order_mark_change_nothing(folder: Path, pack) -> None:  # type: ignore[no-untyped-def]
    suffix = {gzip.compress: ".gz", lzma.compress: ".xz"}.get(pack, "")
    path = folder / f"windows.de{suffix}"
    path.write_bytes(pack(b"\xef\xbb\xbf" + "\r\n".join(OUT).encode() + b"\r\n"))
    assert read_lines(str(path)) == OUT


def test_only_a_line_feed_ends_a_line_and_empty_lines_stay(folder: Path) -> None:
    (folder / "odd").write_bytes("a\u2028b\x0cc\rd\n\nlast".encode())
    assert read_lines("odd") == ["a\u2028b\x0cc\rd", "", "last"]


def test_standard_input_is_a_file_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("out.de").read_bytes())))
    assert main(["score", "--hypothesis", "-", "--reference", "ref.de", "--metrics", "bleu"]) == 0
    piped = capsys.readouterr().out
    assert main(["score", "--hypothesis", "out.de", "--reference", "ref.de", "--metrics", "bleu"]) == 0
    assert capsys.readouterr().out == piped


def test_refusals_name_the_file_and_what_is_wrong(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("short").write_text("one line\n")
    Path("empty").write_text("")
    Path("latin").write_bytes(b"gut\nsch\xf6n\n")
    Path("broken.xz").write_bytes(lzma.compress(b"text\n")[:-8])
    reference = ["--reference", "ref.de"]
    expected = {
        "short": "short has 1 lines and ref.de has 2: corresponding lines must be translations of the same sentence",
        "empty": "empty is empty",
        "latin": "latin, line 2: not valid UTF-8 at byte 4; convert the file to UTF-8 first",
        "nowhere": "nowhere does not exist",
        ".": ". is a folder, not a text file",
    }
    for file, message in expected.items():
        assert refusal(capsys, "--hypothesis", file, *reference) == message
        assert refusal(capsys, "--reference", "out.de", "--hypothesis", "out.de", file).startswith(message[:20])
    assert refusal(capsys, "--hypothesis", "broken.xz", *reference).startswith("broken.xz is truncated")
    assert "standard input" in refusal(capsys, "--hypothesis", "-", "--reference", "-")
    assert "--confidence" in refusal(capsys, "--hypothesis", "out.de", *reference, "--samples", "9")
    assert "above 1" in refusal(capsys, "--hypothesis", "out.de", *reference, "--samples", "1")
    assert "invalid choice: 'blue'" in refusal(capsys, "--hypothesis", "out.de", *reference, "--metrics", "blue")


def test_comet_that_is_not_installed_tells_how_to_run_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "--hypothesis", "out.de", "--reference", "ref.de", "--comet")
    assert "pip install unbabel-comet" in message
    assert "--comet-scores comet.json" in message


COMET_FILES = {
    "to_json": json.dumps({"out.de": [{"src": "x", "mt": "y", "COMET": 0.5}, {"src": "x", "mt": "y", "COMET": 0.7}]}),
    "printed": "out.de\tSegment 0\tscore: 0.5000\nout.de\tSegment 1\tscore: 0.7000\nout.de\tscore: 0.6000\n",
    "numbers": "0.5\n0.7\n",
}


@pytest.mark.parametrize("kind", COMET_FILES)
def test_comets_own_output_is_read(folder: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    Path("comet.out").write_text(COMET_FILES[kind])
    files = ["--hypothesis", "out.de", "--reference", "ref.de", "--metrics", "bleu", "--comet-scores", "comet.out"]
    assert main(["score", *files, "--comet-model", "Unbabel/wmt22-comet-da"]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.split() == [
        "COMET",
        "0.6000",
        "COMET|nrefs:1|segments:2|model:Unbabel/wmt22-comet-da|read:comet.out",
    ]


def test_comet_files_that_do_not_fit_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--hypothesis", "out.de", "--reference", "ref.de", "--comet-scores"]
    for content, message in {
        "0.5\n": "c has 1 COMET scores and the hypothesis has 2 lines",
        "0.5\ngood\n": "c, line 2: 'good' is not a COMET score",
        '{"a": [{"mt": "x"}]}': "c is not output of comet-score --to_json",
        '{"a": [], "b": []}': "c holds 2 systems: give one file per hypothesis",
    }.items():
        Path("c").write_text(content)
        assert refusal(capsys, *files, "c").startswith(message)
    assert "give one per hypothesis" in refusal(capsys, *files, "c", "c")


def test_an_installed_comet_is_run(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Model:
        def predict(self, data: list[dict[str, str]], **settings: object) -> types.SimpleNamespace:
            seen.extend(data)
            return types.SimpleNamespace(scores=[0.8, 0.9])

    stand_in = types.SimpleNamespace(download_model=lambda name: name, load_from_checkpoint=lambda path: Model())
    monkeypatch.setitem(sys.modules, "comet", stand_in)
    monkeypatch.setattr(comet.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(comet.importlib.metadata, "version", lambda name: "2.2.6")
    files = ["--hypothesis", "out.de", "--reference", "ref.de", "--metrics", "chrf", "--comet"]
    assert "--source" in refusal(capsys, *files)
    Path("src.en").write_text("The cat sat.\nHe came.\n")
    assert main(["score", *files, "--source", "src.en"]) == 0
    assert "0.8500  COMET|nrefs:1|segments:2|model:Unbabel/wmt22-comet-da|version:2.2.6" in capsys.readouterr().out
    assert seen[1] == {"src": "He came.", "mt": OUT[1], "ref": REFERENCE[1]}
