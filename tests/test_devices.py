"""Which device is taken: the one asked for or the best, and never a worse one without a word."""

from pathlib import Path

import pytest
import torch

from deepnmt import devices
from deepnmt.devices import choose_device, use_threads
from deepnmt.errors import InputError


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """With a GPU and its driver, and a torch that is built without CUDA."""
    (tmp_path / "version").write_text("NVRM version: ...")
    monkeypatch.setattr(devices, "NVIDIA_DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    devices._say_once.cache_clear()
    return monkeypatch


@pytest.mark.parametrize(("asked", "taken"), [(None, "cuda"), ("cpu", "cpu"), ("cuda", "cuda"), ("cuda:1", "cuda:1")])
def test_the_gpu_is_taken_where_torch_can_use_it(
    machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: str | None, taken: str
) -> None:
    machine.setattr(torch.cuda, "is_available", lambda: True)
    machine.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device(asked) == taken
    assert capsys.readouterr().err == ""


def test_a_gpu_that_stays_unused_is_named_once(machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert [choose_device(None) for _ in range(3)] == ["cpu"] * 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"not using the GPU of this machine (torch {torch.__version__} is built without CUDA" in said


def test_one_asked_for_in_vain_is_refused_with_the_reason(machine: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"device cuda: torch sees no GPU \(torch .* is built without CUDA"):
        choose_device("cuda")
    machine.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(InputError, match=r"device cuda:1: torch sees no GPU \(torch .* needs a driver for CUDA 13\.0"):
        choose_device("cuda:1")
    machine.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(InputError, match=r"torch sees no GPU \(CUDA_VISIBLE_DEVICES is 7\)"):
        choose_device("cuda")


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_one_that_is_hidden_or_not_there_is_not_missed(
    machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hidden: str
) -> None:
    machine.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert choose_device(None) == "cpu"
    with pytest.raises(InputError, match=r"device cuda: torch sees no GPU$"):
        choose_device("cuda")
    machine.delenv("CUDA_VISIBLE_DEVICES")
    machine.setattr(devices, "NVIDIA_DRIVER", Path("/nowhere"))
    assert choose_device(None) == "cpu"
    assert capsys.readouterr().err == ""


def test_only_one_process_of_a_host_says_it(machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    machine.setenv("LOCAL_RANK", "1")
    assert choose_device(None) == "cpu"
    assert choose_device("cpu") == "cpu"
    assert capsys.readouterr().err == ""


def test_a_device_that_cannot_be_is_refused(machine: pytest.MonkeyPatch) -> None:
    for name in ("gpu", "cuda:x", ""):
        with pytest.raises(InputError, match=f"device '{name}' is unknown: choose cpu, cuda"):
            choose_device(name)
    with pytest.raises(InputError, match="device meta does not work here: choose cpu or cuda"):
        choose_device("meta")
    machine.setattr(torch.cuda, "is_available", lambda: True)
    machine.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=r"device cuda:2: torch sees 2, cuda:0 to cuda:1"):
        choose_device("cuda:2")


def test_threads_are_all_cores_unless_someone_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    use_threads(None)
    use_threads(2)
    monkeypatch.delenv("OMP_NUM_THREADS")
    use_threads(None)
    assert asked == [2, devices.available_cores()]
    with pytest.raises(InputError, match="threads must be at least 1, not 0"):
        use_threads(0)
