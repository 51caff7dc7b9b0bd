"""The real departures, read once for all tests of the demo."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from flights import data, oracle


@pytest.fixture(scope="session", autouse=True)
def files_read_once() -> Iterator[None]:
    """The oracle reads a year of departures for each answer otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_rows", "_scheduled"):
            patch.setattr(oracle, name, cache(getattr(oracle, name)))
        yield


@pytest.fixture(scope="session")
def departures() -> list[data.SourceRecord]:
    return data.departures()


@pytest.fixture(scope="session")
def whole_year() -> oracle.Answers:
    """What the stores must answer after the last departure."""
    return oracle.expected(336_776)
