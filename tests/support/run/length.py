"""How long a run of the tests is to be: that of `make test`, or that of `make test-all` with every count in full."""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

Count = TypeVar("Count")
_LONG = "PYTEST_STATELINE_LONG"


def make_long() -> None:
    """From now on, here and in processes that are started from here, counts are the long ones."""
    os.environ[_LONG] = "1"


def long_or_short(long: Count, short: Count) -> Count:
    """The first with pytest's option ``--long``, which `make test-all` gives; otherwise the second."""
    return long if _LONG in os.environ else short


def long_only() -> pytest.MarkDecorator:
    """Marks a test whose shorter sibling shows the same but for its name: `make test` skips it."""
    return pytest.mark.skipif(long_or_short(False, True), reason="`make test-all` runs it")
