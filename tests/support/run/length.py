"""How long a run of the tests is to be: that of `make test`, or that of `make test-all` with every count in full."""

from __future__ import annotations

import os
from itertools import product
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


def long_only(why: str) -> pytest.MarkDecorator:
    """Marks a test that `make test` skips, and says why it may."""
    return pytest.mark.skipif(long_or_short(False, True), reason=f"{why}: `make test-all` runs it")


def on_each_log_with_each_guarantee() -> pytest.MarkDecorator:
    """Gives a test the fixture `bootstrap` and a `guarantee`: all four pairs, or two that have each of them once."""
    pairs = list(product(["embedded", "kafka"], ["at_least_once", "exactly_once_v2"]))
    return pytest.mark.parametrize(
        ("bootstrap", "guarantee"), long_or_short(pairs, [pairs[0], pairs[3]]), indirect=["bootstrap"]
    )
