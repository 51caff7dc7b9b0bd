"""The real departures, read once for all tests of the demo."""

from __future__ import annotations

import pytest

from stateline.demo import data, oracle


@pytest.fixture(scope="session")
def departures() -> list[data.SourceRecord]:
    return data.departures()


@pytest.fixture(scope="session")
def whole_year() -> oracle.Answers:
    """What the stores must answer after the last departure."""
    return oracle.expected(336_776)
