"""Picks the rows of a stream that are aggregated or joined. Drops and counts the others, as Kafka Streams does."""

from __future__ import annotations

from collections.abc import Sequence

from stateline.processing.failures import FailureHandler, Reason
from stateline.processing.operators.rows import LazyColumn, Rows


def picked(rows: Rows, places: Sequence[int], failures: FailureHandler, reason: Reason) -> Rows:
    """Return the rows at these places, and count the others as dropped for this reason."""
    failures.drop(len(rows.records) - len(places), reason)
    return rows.pick(places)


def with_key_and_value(rows: Rows, failures: FailureHandler) -> Rows:
    return with_value(with_key(rows, failures), failures)


def with_key(rows: Rows, failures: FailureHandler) -> Rows:
    return _having(rows, rows.keys, failures, "no_key")


def with_value(rows: Rows, failures: FailureHandler) -> Rows:
    return _having(rows, rows.values, failures, "no_value")


def _having(rows: Rows, column: LazyColumn, failures: FailureHandler, reason: Reason) -> Rows:
    if None not in column.raw:
        return rows
    return picked(rows, [place for place, data in enumerate(column.raw) if data is not None], failures, reason)
