"""Which rows of a stream are aggregated."""

from __future__ import annotations

from collections.abc import Sequence

from stateline.log.interface import Record
from stateline.worker.failures import FailureHandler
from stateline.worker.operators.rows import Rows


def grouped(rows: Rows, failures: FailureHandler) -> tuple[list[bytes], Sequence[int], Sequence[Record]]:
    """Keys, timestamps and records of the rows that have a key and a value; the others are dropped and counted."""
    kept = with_key_and_value(rows, failures)
    return kept.keys.raw, kept.timestamps, kept.records  # type: ignore[return-value]  # none is None now


def with_key_and_value(rows: Rows, failures: FailureHandler) -> Rows:
    """The rows that have both; the others are dropped and counted, as Kafka Streams does."""
    if None not in rows.keys.raw and None not in rows.values.raw:
        return rows
    pairs = zip(rows.keys.raw, rows.values.raw, strict=True)
    kept = rows.pick([place for place, (key, value) in enumerate(pairs) if key is not None and value is not None])
    failures.drop(len(rows.records) - len(kept.records), "have no key or no value")
    return kept


def with_value(rows: Rows, failures: FailureHandler) -> Rows:
    """The rows that have a value; the others are dropped and counted."""
    if None not in rows.values.raw:
        return rows
    kept = rows.pick([place for place, value in enumerate(rows.values.raw) if value is not None])
    failures.drop(len(rows.records) - len(kept.records), "have no value")
    return kept


def with_key(rows: Rows, failures: FailureHandler) -> Rows:
    """The rows that have a key; the others are dropped and counted."""
    if None not in rows.keys.raw:
        return rows
    kept = rows.pick([place for place, key in enumerate(rows.keys.raw) if key is not None])
    failures.drop(len(rows.records) - len(kept.records), "have no key")
    return kept
