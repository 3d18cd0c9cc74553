import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepnmt.data.dataset import Corpus, CorpusWriter, Dataset, Side, train_file_name
from deepnmt.errors import InputError

SOURCE = [[5, 6, 7], [], [8], [9, 10]]
TARGET = [[11], [12, 13], [], [14, 15, 16]]

sentences = st.lists(st.lists(st.integers(0, 99_999), max_size=6), max_size=12)


def write(folder: Path, name: str, source: list[list[int]], target: list[list[int]], vocab: int = 100) -> None:
    with CorpusWriter(folder, name, (vocab, vocab)) as writer:
        writer.append(Side.of(source[:2]), Side.of(target[:2]))
        writer.append(Side.of(source[2:]), Side.of(target[2:]))


def make_dataset(folder: Path) -> Path:
    entry = {"pairs": 4, "source_tokens": 6, "target_tokens": 6}
    for name in (train_file_name("valid"), "valid"):
        write(folder, name, SOURCE, TARGET)
    for side in ("source", "target"):
        (folder / f"valid.{side}.txt").write_text(f"one {side}\n\ntwo\u2028lines\r\n\n", encoding="utf-8", newline="")
    meta = {"format": 1, "train": [{"name": "valid", **entry}], "valid": entry, "test": None}
    (folder / "dataset.json").write_text(json.dumps(meta), encoding="utf-8")
    return folder


@given(pairs=sentences, cut=st.integers(0, 12))
def test_what_was_written_in_chunks_is_read_back_exactly(
    pairs: list[list[int]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    target = pairs[::-1]
    with CorpusWriter(folder, "c", (100_000, 100_000)) as writer:
        writer.append(Side.of(pairs[:cut]), Side.of(target[:cut]))
        writer.append(Side.of(pairs[cut:]), Side.of(target[cut:]))
    corpus = Corpus.open(folder, "c")
    assert len(corpus) == len(pairs) == writer.pairs
    assert [corpus.source[i].tolist() for i in range(len(corpus))] == pairs
    assert [corpus.target[i].tolist() for i in range(len(corpus))] == target
    assert corpus.source.lengths.tolist() == [len(ids) for ids in pairs]
    assert writer.counts()["source_tokens"] == sum(map(len, pairs))


@pytest.mark.parametrize(("vocab", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_ids_take_as_many_bytes_as_the_vocabulary_needs(tmp_path: Path, vocab: int, dtype: type) -> None:
    write(tmp_path, "c", [[vocab - 1]], [[0]], vocab)
    corpus = Corpus.open(tmp_path, "c")
    assert corpus.source[0].dtype == dtype
    assert corpus.source[0].tolist() == [vocab - 1]


def test_an_id_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="vocabulary of 100"):
        write(tmp_path, "c", [[100]], [[1]])


def test_indices_outside_the_corpus_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "c", SOURCE, TARGET)
    corpus = Corpus.open(tmp_path, "c")
    assert corpus.source[-1].tolist() == SOURCE[-1]
    with pytest.raises(IndexError):
        corpus.source[4]


@pytest.mark.parametrize("file", ["c.source.ids", "c.source.offsets", "c.target.ids", "c.target.offsets"])
def test_truncated_files_are_refused_by_name(tmp_path: Path, file: str) -> None:
    write(tmp_path, "c", SOURCE, TARGET)
    path = tmp_path / file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=f"{file} is damaged"):
        Corpus.open(tmp_path, "c")


@pytest.mark.parametrize("file", ["c.source.ids", "c.target.offsets", "c.json"])
def test_missing_files_are_refused_by_name(tmp_path: Path, file: str) -> None:
    write(tmp_path, "c", SOURCE, TARGET)
    (tmp_path / file).unlink()
    with pytest.raises(InputError, match=f"{file} does not exist; prepare"):
        Corpus.open(tmp_path, "c")


def test_offsets_of_another_corpus_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "c", SOURCE, TARGET)
    np.array([0, 1, 2, 3, 4], "<i8").tofile(tmp_path / "c.source.offsets")
    with pytest.raises(InputError, match=r"c\.source\.offsets does not fit"):
        Corpus.open(tmp_path, "c")


def test_offsets_that_do_not_ascend_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "c", SOURCE, TARGET)
    np.array([0, 5, 4, 4, 6], "<i8").tofile(tmp_path / "c.source.offsets")
    with pytest.raises(InputError, match="do not ascend"):
        _ = Corpus.open(tmp_path, "c").source.lengths


@pytest.mark.parametrize("content", ["{", "[]", '{"pairs": 4}', '{"pairs": "many"}', "\0"])
def test_a_damaged_description_is_refused(tmp_path: Path, content: str) -> None:
    write(tmp_path, "c", SOURCE, TARGET)
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(InputError, match=r"c\.json"):
        Corpus.open(tmp_path, "c")


def test_a_dataset_opens_with_its_corpora_and_the_text_as_written(tmp_path: Path) -> None:
    dataset = Dataset.open(make_dataset(tmp_path))
    assert list(dataset.train) == ["valid"]
    assert dataset.valid is not None
    assert dataset.valid.target[3].tolist() == TARGET[3]
    assert dataset.test is None
    assert dataset.test_text is None
    assert dataset.valid_text is not None
    assert dataset.valid_text[0] == ["one source", "", "two\u2028lines\r", ""]
    dataset.verify()


def test_one_flipped_bit_is_found_by_verify(tmp_path: Path) -> None:
    path = make_dataset(tmp_path) / "train.valid.target.ids"
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"train\.valid\.target\.ids is damaged"):
        Dataset.open(tmp_path).verify()


def test_what_is_not_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        Dataset.open(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"it has no dataset\.json"):
        Dataset.open(tmp_path)


@pytest.mark.parametrize("version", [None, 2, "1"])
def test_an_unknown_format_is_refused(tmp_path: Path, version: object) -> None:
    path = make_dataset(tmp_path) / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": version}))
    with pytest.raises(InputError, match="deepnmt reads 1"):
        Dataset.open(tmp_path)


@pytest.mark.parametrize("key", ["train", "valid", "test"])
def test_a_description_without_its_corpora_is_refused(tmp_path: Path, key: str) -> None:
    path = make_dataset(tmp_path) / "dataset.json"
    meta = json.loads(path.read_text())
    del meta[key]
    path.write_text(json.dumps(meta))
    with pytest.raises(InputError, match="does not list its corpora"):
        Dataset.open(tmp_path)


def test_text_with_another_number_of_lines_is_refused(tmp_path: Path) -> None:
    make_dataset(tmp_path)
    (tmp_path / "valid.source.txt").write_text("one\n")
    with pytest.raises(InputError, match=r"valid\.source\.txt has 1 lines for 4 pairs"):
        _ = Dataset.open(tmp_path).valid_text
