"""Which rows of a stream are aggregated or joined; the others are dropped and counted, as Kafka Streams does."""

from __future__ import annotations

from collections.abc import Sequence

from stateline.processing.failures import FailureHandler
from stateline.processing.operators.rows import Rows


def picked(rows: Rows, places: Sequence[int], failures: FailureHandler, why: str) -> Rows:
    """The rows at these places; `why` is what is wrong with the others, as `FailureHandler.drop` says it."""
    failures.drop(len(rows.records) - len(places), why)
    return rows.pick(places)


def with_key_and_value(rows: Rows, failures: FailureHandler) -> Rows:
    """The rows that have both."""
    if None not in rows.keys.raw and None not in rows.values.raw:
        return rows
    pairs = zip(rows.keys.raw, rows.values.raw, strict=True)
    places = [place for place, (key, value) in enumerate(pairs) if key is not None and value is not None]
    return picked(rows, places, failures, "have no key or no value")


def with_value(rows: Rows, failures: FailureHandler) -> Rows:
    """The rows that have a value."""
    if None not in rows.values.raw:
        return rows
    places = [place for place, value in enumerate(rows.values.raw) if value is not None]
    return picked(rows, places, failures, "have no value")


def with_key(rows: Rows, failures: FailureHandler) -> Rows:
    """The rows that have a key."""
    if None not in rows.keys.raw:
        return rows
    places = [place for place, key in enumerate(rows.keys.raw) if key is not None]
    return picked(rows, places, failures, "have no key")
