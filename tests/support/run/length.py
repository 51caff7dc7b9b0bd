"""How long a run of the tests is to be: that of `make test`, or that of `make test-all` with every count in full."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
    """Marks a test that `make test` leaves out, and says why it may."""
    return pytest.mark.long_only(why)


def on_one_log(log: str, why: str) -> pytest.MarkDecorator:
    """Marks a test with the fixture `bootstrap` that the gate runs on `log` alone, and says why it may."""
    other = "kafka" if log == "embedded" else "embedded"
    return pytest.mark.parametrize("bootstrap", [log, pytest.param(other, marks=long_only(why))], indirect=True)


every_pair = pytest.mark.every_pair
"""Of a test that is another one under each guarantee: it runs on either log under both of them in the gate, too."""


def of_each_store(on_kafka: Sequence[str]) -> pytest.MarkDecorator:
    """Of a test that asks each `store` on either log: those that the gate asks on Kafka, too. How changes look does not
    depend on the log, and how they are read not on the store, but for where they come from."""
    return pytest.mark.of_each_store(on_kafka)


def is_for_the_long_run(item: pytest.Item) -> bool:
    """Whether `make test` leaves this one out: it is marked so, or it is one of those that run on either log under
    either guarantee: there it is at least once on the embedded log and exactly once on Kafka."""
    if item.get_closest_marker("long_only") is not None:
        return long_or_short(False, True)
    given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    pair = given.get("bootstrap"), given.get("guarantee")
    of_each = item.get_closest_marker("of_each_store")
    if of_each is not None and given.get("bootstrap") == "kafka" and given["store"] not in of_each.args[0]:
        return long_or_short(False, True)
    if item.get_closest_marker(every_pair.name) is not None:
        return False
    return long_or_short(False, pair in (("embedded", "exactly_once_v2"), ("kafka", "at_least_once")))
