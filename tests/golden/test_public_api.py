"""What the documentation lets an application call is called in the same way in later versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from golden.public_api import FILES, broken, public_api

KEPT = sorted(FILES.glob("*.api.json"))


@pytest.mark.parametrize("file", KEPT, ids=[file.name.removesuffix(".api.json") for file in KEPT])
def test_what_an_earlier_version_could_be_asked_for_can_be_asked_for(file: Path) -> None:
    assert broken(json.loads(file.read_text(encoding="utf-8")), public_api()) == []


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({}, ["f: is gone"]),
        ({"f": None}, ["f: cannot be called"]),
        ({"f": ["a", "*", "c="]}, ["f: does not take b"]),
        ({"f": ["a", "c=", "b="]}, ["f: takes b at another place"]),
        ({"f": ["a", "b=", "c"]}, ["f: needs c"]),
        ({"f": ["a", "b="]}, ["f: does not take c"]),
        ({"f": ["a", "b", "*", "c="]}, ["f: needs b"]),
        ({"f": ["a", "b=", "d", "*", "c="]}, ["f: needs d"]),
    ],
)
def test_changes_that_break_a_call_are_found(now: dict[str, list[str] | None], why: list[str]) -> None:
    assert broken({"f": ["a", "b=", "*", "c="]}, now) == why


@pytest.mark.parametrize("now", [["a", "b=", "*", "c="], ["a=", "b=", "d=", "*", "c=", "e="], ["a", "b=", "c="]])
def test_changes_that_break_no_call_are_not(now: list[str]) -> None:
    assert broken({"f": ["a", "b=", "*", "c="]}, {"f": now, "g": None}) == []
