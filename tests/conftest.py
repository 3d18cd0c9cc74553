"""What all tests share: one thread, no deadline for an example, and no GPU tests where there is no GPU.

Only fixtures and hooks stand in a conftest.py: what tests import has a file with a name of its own.
"""

import fcntl
import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

# Tiny models are slower on several threads, and much slower beside other work. Set before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest

# The time an example takes says more about what else the machine does than about the code.
hypothesis.settings.register_profile("deepnmt", deadline=None)
hypothesis.settings.load_profile("deepnmt")


@pytest.fixture(autouse=True)
def one_thread():
    """A command that a test runs may choose its own number of threads; the next test has one again."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def unchanged():
    """`with unchanged(folder):` what happens inside leaves every file and folder of it as it was, to the last byte."""

    def contents(folder):
        return {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
            for path in [folder, *folder.rglob("*")]
            if path.exists()
        }

    @contextmanager
    def watch(*folders):
        before = [contents(folder) for folder in folders]
        yield
        assert [contents(folder) for folder in folders] == before

    return watch


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Makes a folder that takes seconds to make, such as a trained model, once for all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name: str, make: Callable[[Path], object]) -> Path:
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (shared / name).exists():
                aside = tmp_path_factory.mktemp("aside") / name
                make(aside)
                aside.rename(shared / name)
        return shared / name

    return made


# Begun first, so that at the end no worker is left alone with one of them.
LONGEST = (
    "test_tutorial.py",
    "test_soak.py",
    "test_export_onnx.py",
    "test_study.py",
    "test_train_command.py",
    "test_learning.py",
    "test_demo.py",
    "test_trainer.py",
    "test_resume.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
