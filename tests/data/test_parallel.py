"""Files whose lines do not correspond are noticed, and others are not suspected."""

from itertools import count

import pytest
from grammar import english_german

from deepnmt.data.parallel import ParallelFile, RawChunk, parallel_chunks, warn_of_misalignment

PAIRS = english_german(1000)


def warnings(tmp_path, capsys, sources, targets, size=500):
    files = tmp_path / "a.en", tmp_path / "a.de"
    for path, lines in zip(files, (sources, targets), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    chunks = list(parallel_chunks([ParallelFile(*files)], size))
    assert list(warn_of_misalignment(chunks)) == chunks
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("shift", [1, -1, 400])
def test_lines_that_are_shifted_are_told_once(tmp_path, capsys, shift):
    sources, targets = zip(*PAIRS, strict=True)
    (warning,) = warnings(tmp_path, capsys, sources, targets[shift:] + targets[:shift])
    assert warning.startswith(f"deepnmt: {tmp_path}/a.en and {tmp_path}/a.de: the lengths of lines 1 to 500 hardly")
    assert warning.endswith("; does line n of one translate line n of the other?")


def test_a_shift_in_the_middle_is_found(tmp_path, capsys):
    sources, targets = zip(*PAIRS, strict=True)
    (warning,) = warnings(tmp_path, capsys, sources, targets[:490] + targets[491:] + targets[:1])
    assert "the lengths of lines 501 to 1,000 hardly correlate" in warning


@pytest.mark.parametrize(
    "pairs",
    [PAIRS, PAIRS[:100], [("same", "same")] * 500, [(source, source[:3]) for source, _ in PAIRS]],
    ids=["aligned", "few", "equal", "one side equal"],
)
def test_other_text_is_not_suspected(tmp_path, capsys, pairs):
    assert warnings(tmp_path, capsys, *zip(*pairs, strict=True)) == []


def test_columns_of_one_file_are_not_checked(tmp_path, capsys):
    numbers = count()
    lines = [b"%s\t%s" % (b"a" * (next(numbers) % 7), b"b" * (next(numbers) % 11)) for _ in range(500)]
    assert len(list(warn_of_misalignment([RawChunk(ParallelFile(tmp_path), 1, [lines])]))) == 1
    assert capsys.readouterr().err == ""
