"""Picks the rows of a stream that are aggregated or joined. Drops and counts the others, as Kafka Streams does."""

from __future__ import annotations

from collections.abc import Sequence

from stateline.processing.failures import FailureHandler, Reason
from stateline.processing.operators.rows import Rows


def picked(rows: Rows, places: Sequence[int], failures: FailureHandler, reason: Reason) -> Rows:
    """Return the rows at these places, and count the others as dropped for this reason."""
    failures.drop(len(rows.records) - len(places), reason)
    return rows.pick(places)


def with_key_and_value(rows: Rows, failures: FailureHandler) -> Rows:
    if None not in rows.keys.raw and None not in rows.values.raw:
        return rows
    pairs = zip(rows.keys.raw, rows.values.raw, strict=True)
    places = [place for place, (key, value) in enumerate(pairs) if key is not None and value is not None]
    keyless = rows.keys.raw.count(None)
    failures.drop(keyless, "no_key")
    failures.drop(len(rows.records) - len(places) - keyless, "no_value")
    return rows.pick(places)


def with_value(rows: Rows, failures: FailureHandler) -> Rows:
    if None not in rows.values.raw:
        return rows
    places = [place for place, value in enumerate(rows.values.raw) if value is not None]
    return picked(rows, places, failures, "no_value")


def with_key(rows: Rows, failures: FailureHandler) -> Rows:
    if None not in rows.keys.raw:
        return rows
    places = [place for place, key in enumerate(rows.keys.raw) if key is not None]
    return picked(rows, places, failures, "no_key")
