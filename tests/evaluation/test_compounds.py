"""Compound splitting, on cases worked by hand and against the Perl expression of the published script."""

import random
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepnmt.evaluation.multibleu import split_compounds

BY_HAND = {
    "": "",
    "Haus": "Haus",
    "rich-text format": "rich ##AT##-##AT## text format",
    "a - b": "a - b",
    "-a b-": "-a b-",
    "ab-cd-ef": "ab ##AT##-##AT## cd ##AT##-##AT## ef",
    # The b is used up by the first match.
    "a-b-c": "a ##AT##-##AT## b-c",
    "1-2-3-4": "1 ##AT##-##AT## 2-3 ##AT##-##AT## 4",
    "a--b": "a ##AT##-##AT## -b",
    "a---b": "a ##AT##-##AT## --b",
    # Two bytes, so one for each match.
    "x-ö-y": "x ##AT##-##AT## ö ##AT##-##AT## y",
    "US-Präsident , E-Mail": "US ##AT##-##AT## Präsident , E ##AT##-##AT## Mail",
    "9–10": "9–10",
}


@pytest.mark.parametrize(("line", "split"), BY_HAND.items())
def test_cases_worked_by_hand(line: str, split: str) -> None:
    assert split_compounds(line) == split


@given(st.text())
def test_only_marks_are_added_so_removing_them_restores_the_line(line: str) -> None:
    assert split_compounds(line).replace(" ##AT##-##AT## ", "-") == line.replace(" ##AT##-##AT## ", "-")


@pytest.mark.skipif(shutil.which("perl") is None, reason="no perl here")
def test_equals_the_perl_expression_of_the_published_script() -> None:
    choose = random.Random(1)
    lines = ["".join(choose.choices("ab-ö€ -–", k=choose.randrange(20))) for _ in range(2000)]
    lines += list(BY_HAND)
    ran = subprocess.run(
        ["perl", "-ple", r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        encoding="utf-8",
        check=True,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "LC_ALL": "C"},
    )
    assert ran.stdout.split("\n")[:-1] == [split_compounds(line) for line in lines]
