"""A few of the kill points of soak.py: a run of each kind is killed once and resumed."""

import pytest
from soak import CASES, Setup

from deepnmt.training.checkpoint import list_checkpoints, read_state
from deepnmt.training.curves import read_log

CONTAINED = {"plain", "packed", "two-ranks"}  # in other cases


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Setup(tmp_path_factory.mktemp("soak"))


@pytest.mark.parametrize("name", [name for name in CASES if name not in CONTAINED])
def test_a_killed_run_ends_as_an_uninterrupted_one(place, name):
    place.kill_and_compare(name, kills=1, seed="test")


def test_the_cases_are_what_they_are_called(place):
    """Each switches on what it says: the rollbacks happen, the pieces shrink, the patience ends."""
    lines = read_log(place.uninterrupted("rollbacks"))
    assert [line["step"] for line in lines if line["kind"] == "rollback"] == [6, 9, 9]
    lines = read_log(place.uninterrupted("growing"))
    assert [(line["kind"], line["step"]) for line in lines if line["kind"] in ("growth", "rollback")] == [
        *(("rollback", 6), ("growth", 6), ("rollback", 9), ("rollback", 9))
    ], "the first rollback is from the deep model to the shallow one, which grows again"
    for name, part in (("splits", "split_limit"), ("packed-splits", "split_room")):
        states = [read_state(path) for path in list_checkpoints(place.uninterrupted(name) / "checkpoints")]
        assert all(state[part] for state in states)
    assert read_log(place.uninterrupted("early-stopping"))[-1]["step"] < 14
