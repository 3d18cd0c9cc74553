import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepnmt.data.cleaning import EXAMPLES_PER_REASON, Judge, ReasonCounts, SeenKeys, keys, pair_keys
from deepnmt.data.prepare_settings import REASONS, CleaningSettings
from deepnmt.errors import InputError


def limits(**changes: object) -> CleaningSettings:
    return CleaningSettings(**{"max_length": 40, "max_ratio": 2.0, "length_unit": "words", **changes})  # type: ignore[arg-type]


@given(st.lists(st.lists(st.integers(0, 50), max_size=20), max_size=20))
def test_seen_keys_are_a_set_that_tells_what_is_new(batches: list[list[int]]) -> None:
    seen, plain = SeenKeys(), set()
    for batch in batches:
        expected = []
        for key in batch:
            expected.append(key not in plain)
            plain.add(key)
        assert seen.add(np.array(batch, np.uint64)).tolist() == expected


def test_seen_keys_hold_a_handful_of_arrays_however_many_batches() -> None:
    seen = SeenKeys()
    random = np.random.default_rng(0)
    for _ in range(500):
        seen.add(random.integers(0, 2**63, 100).astype(np.uint64))
    assert len(seen._runs) < 12
    assert sum(len(run) for run in seen._runs) == 50_000


def test_keys_tell_pairs_and_their_directions_apart() -> None:
    first, second = keys([b"a", b"b", b"a"]), keys([b"b", b"a", b"b"])
    pairs = pair_keys(first, second)
    assert pairs[0] == pairs[2] != pairs[1]


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("a", "b", None),
        ("", "b", "empty"),
        (" \u00a0", "b", "empty"),
        ("a\x07", "b", "control"),
        ("a\x00", "b", "control"),
        ("a", "b\ufffd", "control"),
        ("a\x85", "b", None),
        ("tab\tbed", "b", None),
        ("same ", " same", "identical"),
    ],
)
def test_the_judge_names_the_reason(source: str, target: str, reason: str | None) -> None:
    assert Judge(limits(), ("en", "de"))(source, target) == reason


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [(40, 40, None), (41, 40, "too-long"), (20, 40, None), (19, 39, "ratio"), (5, 11, "ratio"), (1, 10, None)],
)
def test_lengths_at_the_limit_stay(source: int, target: int, reason: str | None) -> None:
    assert limits().judge_lengths(source, target) == reason
    assert limits().judge_lengths(target, source) == reason
    assert limits(keep=("too-long", "ratio")).judge_lengths(source, target) is None
    assert limits(max_length=0, max_ratio=0).judge_lengths(source, target) is None


def test_a_reason_to_keep_is_not_acted_on() -> None:
    judge = Judge(limits(keep=("identical", "control")), ("en", "de"))
    assert judge("same", "same") is None
    assert judge("\x01", "x") is None


@pytest.mark.parametrize(
    ("languages", "source", "target", "reason"),
    [
        (("en", "zh"), "Hello, 3 GPT-4", "你好 GPT", None),
        (("en", "zh"), "Hello", "Bonjour", "script"),
        (("en", "ru"), "Привет", "Привет", "script"),
        (("en", "ja"), "Hi", "ひらがなカタカナ漢字", None),
        (("de", "pt-BR"), "100 %", "100 %.", None),
    ],
)
def test_the_script_check_wants_a_third_of_the_letters(
    languages: tuple[str, str], source: str, target: str, reason: str | None
) -> None:
    judge = Judge(limits(language_check="script", keep=("identical",)), languages)
    assert judge(source, target) == reason
    assert Judge(limits(language_check="script", keep=("identical", "script")), languages)(source, target) is None


def test_the_language_check_sees_a_third_language_in_lines_long_enough_to_tell() -> None:
    pytest.importorskip("py3langid")
    judge = Judge(limits(language_check="langid"), ("en", "de"))
    english = "This is a perfectly ordinary sentence of the English language."
    assert judge(english, "Das ist ein ganz gewöhnlicher Satz der deutschen Sprache.") is None
    assert judge(english, "C'est une phrase tout à fait ordinaire de la langue française.") == "language"
    assert judge("Hotel", "Taxi") is None


@pytest.mark.parametrize("check", ["script", "langid"])
def test_a_language_that_the_check_does_not_know_is_refused(check: str) -> None:
    with pytest.raises(InputError, match="'xx'"):
        Judge(limits(language_check=check), ("en", "xx"))


def test_merging_adds_counts_and_keeps_the_first_examples() -> None:
    total = ReasonCounts()
    for start in (0, 2, 4):
        part = ReasonCounts()
        for number in range(start, start + 2):
            part.add("empty", f"file:{number}", "x" * 1000, "")
        total.merge(part)
    table = total.table()
    assert table["empty"]["count"] == 6
    assert [example["where"] for example in table["empty"]["examples"]] == ["file:0", "file:1", "file:2"]
    assert len(table["empty"]["examples"]) == EXAMPLES_PER_REASON
    assert len(table["empty"]["examples"][0]["source"]) == 200


def test_the_table_lists_reasons_in_their_usual_order() -> None:
    counted = ReasonCounts()
    for reason in reversed(REASONS):
        counted.add(reason, "", "", "")
    assert list(counted.table()) == list(REASONS)
