"""Starting torch's compiler early must not break what does without it."""

import sys

import pytest

from deepnmt.model.kernels.compilers import start_compilers


def test_a_compiler_that_cannot_be_imported_fails_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    start_compilers.cache_clear()
    thread = start_compilers()
    assert start_compilers() is thread
    thread.join()
    start_compilers.cache_clear()
