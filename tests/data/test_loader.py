import threading
from pathlib import Path

import pytest
import torch
from streams import make_corpus, same

from deepnmt.data.batching import BatchingConfig, BatchStream, Update
from deepnmt.data.dataset import Corpus, CorpusWriter
from deepnmt.data.loader import Loader


def make_stream(folder: Path, layout: str) -> BatchStream:
    with CorpusWriter(folder, "text", (60_000, 60_000)) as writer:
        writer.append(*make_corpus(60).sides)
    config = BatchingConfig(tokens_per_batch=64, layout=layout)  # type: ignore[arg-type]
    return BatchStream({"text": Corpus.open(folder, "text")}, config, seed=1, tokens_per_update=128)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("deepnmt-loader")]


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("depth", [1, 2, 7])
def test_prefetching_changes_neither_updates_nor_state(tmp_path: Path, layout: str, depth: int) -> None:
    plain = make_stream(tmp_path, layout)
    with Loader(make_stream(tmp_path, layout), depth=depth) as loader:
        assert loader.state() == plain.state()
        for _ in range(40):
            assert same(next(loader), next(plain))
            assert loader.state() == plain.state()


def test_an_error_while_prefetching_reaches_the_consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = make_stream(tmp_path, "padded")
    original = BatchStream.update

    def fail_later(self: BatchStream, epoch: int, index: int) -> Update:
        if index == 3:
            raise RuntimeError("the disk is gone")
        return original(self, epoch, index)

    monkeypatch.setattr(BatchStream, "update", fail_later)
    loader = Loader(stream, depth=2)
    for _ in range(3):
        next(loader)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        next(loader)
    assert not threads()
    assert list(loader) == []


def test_closing_ends_the_thread_whatever_it_waits_for(tmp_path: Path) -> None:
    for consumed in (0, 1, 5):
        loader = Loader(make_stream(tmp_path, "packed"), depth=1)
        for _ in range(consumed):
            next(loader)
        loader.close()
        assert not threads()


def test_every_tensor_is_pinned_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[int] = []

    def pin(self: torch.Tensor) -> torch.Tensor:
        copy = self.clone()
        pinned.append(copy.data_ptr())
        return copy

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    with Loader(make_stream(tmp_path, "packed"), pin_memory=True) as loader:
        tensors = [t for batch in next(loader).batches for t in vars(batch).values() if isinstance(t, torch.Tensor)]
    assert len(tensors) >= 5
    assert {tensor.data_ptr() for tensor in tensors} <= set(pinned)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_updates_are_pinned_and_arrive_on_the_device(tmp_path: Path) -> None:
    plain = make_stream(tmp_path, "packed")
    with Loader(make_stream(tmp_path, "packed"), pin_memory=True) as loader:
        for _ in range(5):
            batch, expected = next(loader).batches[0], next(plain).batches[0]
            assert batch.source.is_pinned()
            assert torch.equal(batch.to("cuda", non_blocking=True).source.cpu(), expected.source)
