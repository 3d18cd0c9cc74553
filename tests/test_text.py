import bz2
import gzip
import lzma
from pathlib import Path

import pytest
import zstandard

from deepnmt import text
from deepnmt.data.parallel import ParallelFile, parallel_chunks
from deepnmt.errors import InputError
from deepnmt.text import iterate_lines

LINES = [f"Zeile {i}, schön".encode() for i in range(5000)]
CONTENT = b"\n".join(LINES) + b"\n"
PACKERS = {
    "plain": bytes,
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


def written(folder: Path, content: bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", PACKERS)
def test_the_lines_are_the_same_however_the_file_is_packed(tmp_path: Path, kind: str) -> None:
    assert list(iterate_lines(written(tmp_path, PACKERS[kind](CONTENT)))) == LINES


@pytest.mark.parametrize("kind", [kind for kind in PACKERS if kind != "plain"])
def test_parts_packed_one_by_one_and_put_end_to_end_are_one_text(tmp_path: Path, kind: str) -> None:
    packed = PACKERS[kind](CONTENT) + PACKERS[kind](b"more\n")
    assert list(iterate_lines(written(tmp_path, packed))) == [*LINES, b"more"]


@pytest.mark.parametrize("kind", [kind for kind in PACKERS if kind != "plain"])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_packed_file_cut_short_is_refused(tmp_path: Path, kind: str, share: float) -> None:
    packed = PACKERS[kind](CONTENT)
    with pytest.raises(InputError, match=r"file is (truncated|damaged)"):
        list(iterate_lines(written(tmp_path, packed[: int(share * len(packed))])))


@pytest.mark.parametrize("kind", [kind for kind in PACKERS if kind != "plain"])
def test_a_packed_file_with_a_wrong_byte_is_refused_or_read_right(tmp_path: Path, kind: str) -> None:
    packed = bytearray(PACKERS[kind](CONTENT))
    for at in range(8, 20):
        packed[at] ^= 0xFF
    with pytest.raises(InputError, match="file is"):
        list(iterate_lines(written(tmp_path, bytes(packed))))


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfa\nb", [b"a", b"b"]),
        (b"a\n\nb\n", [b"a", b"", b"b"]),
        (b"\n", [b""]),
        (b"a\x0bb\xc2\x85c\n", [b"a\x0bb\xc2\x85c"]),
    ],
    ids=["crlf", "byte order mark, no last line end", "blank line", "only a line end", "other separators stay inside"],
)
def test_line_ends_and_byte_order_marks_are_understood(tmp_path: Path, content: bytes, lines: list[bytes]) -> None:
    assert list(iterate_lines(written(tmp_path, content))) == lines


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (gzip.compress(b""), "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (bytes(range(256)) * 20, "is a binary file"),
        (b"\x00" * 100, "is a binary file"),
        ("text".encode("utf-16"), "is UTF-16"),
        ("text".encode("utf-32"), "is UTF-32"),
    ],
    ids=["empty", "empty inside", "only a byte order mark", "binary", "zeros", "utf-16", "utf-32"],
)
def test_what_is_not_text_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=message) as refusal:
        list(iterate_lines(path))
    assert str(path) in str(refusal.value)


def test_a_single_nul_in_much_text_is_left_to_cleaning(tmp_path: Path) -> None:
    assert list(iterate_lines(written(tmp_path, CONTENT + b"a\x00b\n")))[-1] == b"a\x00b"


@pytest.mark.parametrize("ended", [b"", b"\nmore\n"], ids=["last line", "middle line"])
def test_a_gigantic_line_is_refused_with_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bytes
) -> None:
    monkeypatch.setattr(text, "MAX_LINE_BYTES", 70_000)
    path = written(tmp_path, b"a\nb\n" + b"x" * 80_000 + ended)
    with pytest.raises(InputError, match=r"line 3 of .* is longer than 70,000 bytes"):
        list(iterate_lines(path))


def test_a_gigantic_file_without_line_ends_is_refused_before_it_is_all_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "endless"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(4):
            file.write(b"x" * (1 << 20))
    blocks = text._line_blocks(path, may_be_empty=False)
    with pytest.raises(InputError, match="line 1 of"):
        list(blocks)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere does not exist"):
        list(iterate_lines(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="is a folder"):
        list(iterate_lines(tmp_path))


@pytest.mark.parametrize(("first", "second"), [(5000, 4999), (10, 5000), (4000, 4001)])
def test_unequal_line_counts_are_refused_with_both_counts_and_files(tmp_path: Path, first: int, second: int) -> None:
    source = written(tmp_path, b"x\n" * first, "source")
    target = written(tmp_path, b"y\n" * second, "target")
    with pytest.raises(InputError) as refusal:
        list(parallel_chunks([ParallelFile(source, target)], 1000))
    for part in (f"{source} has {first:,} lines", f"{target} has {second:,}"):
        assert part in str(refusal.value)


def test_chunks_follow_the_files_and_know_their_lines(tmp_path: Path) -> None:
    files = [
        ParallelFile(written(tmp_path, b"a\nb\nc\n", "1"), written(tmp_path, b"A\nB\nC\n", "2")),
        ParallelFile(written(tmp_path, b"d\tD\ne\tE\n", "3")),
    ]
    chunks = list(parallel_chunks(files, 2))
    assert [list(chunk.numbered()) for chunk in chunks] == [
        [(1, [b"a", b"A"]), (2, [b"b", b"B"])],
        [(3, [b"c", b"C"])],
        [(1, [b"d", b"D"]), (2, [b"e", b"E"])],
    ]
